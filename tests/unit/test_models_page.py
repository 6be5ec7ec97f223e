"""docs/models.md counts what its table shows, and README says the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")
HEADER, _, *ROWS = [line[2:-2].split(" | ") for line in PAGE.splitlines() if line.startswith("|")]
WORKS = re.compile(r"\S+(?: in float64)?, \d+ stages, [\d.]+ s")


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "jax"])
def test_the_counts_are_those_of_the_table(backend: str) -> None:
    cells = [row[HEADER.index(backend)] for row in ROWS]
    tried = [cell for cell in cells if cell != "not tried"]
    works = sum(WORKS.fullmatch(cell) is not None for cell in tried)
    assert f"- `{backend}`: {works} of {len(tried)}, {100 * works / len(tried):.0f} %" in PAGE
    readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
    assert f"{works} of {len(tried)} on {backend}" in readme
