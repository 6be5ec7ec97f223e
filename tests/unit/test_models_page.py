"""docs/models.md counts what its table shows, and README says the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")


def _rows(about: str) -> list[list[str]]:
    table = PAGE[PAGE.index(f"<!-- begin of {about} -->") : PAGE.index(f"<!-- end of {about} -->")]
    return [line[2:-2].split(" | ") for line in table.splitlines() if line.startswith("|")]


HEADER, _, *ROWS = _rows("the table")
WORKS = re.compile(r"\S+(?: in float64)?, \d+ stages, [\d.]+ s")


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "jax"])
def test_the_counts_are_those_of_the_table(backend: str) -> None:
    cells = [row[HEADER.index(backend)] for row in ROWS]
    tried = [cell for cell in cells if cell != "not tried"]
    works = sum(WORKS.fullmatch(cell) is not None for cell in tried)
    assert f"- `{backend}`: {works} of {len(tried)}, {100 * works / len(tried):.0f} %" in PAGE
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"{works} of {len(tried)} on {backend}" in readme


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "jax"])
def test_the_counts_of_published_files_are_those_of_the_table(backend: str) -> None:
    header, _, *rows = _rows("published files")
    results = [re.split("[,:]", row[header.index(backend)])[0] for row in rows]
    (told,) = [line for line in PAGE.splitlines() if line.startswith(f"- `{backend}`: ") and "equal" in line]
    counts = re.findall(r"(\d+) ([a-z -]+)", told.partition(": ")[2])
    assert {result: int(count) for count, result in counts} == {r: results.count(r) for r in results}
    assert "wrong" not in results
    assert "crash" not in results
