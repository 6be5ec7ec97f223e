"""Hold the first lines of docstrings against the figures recorded in `tools/prose.toml`.

    python tools/prose.py             # exit code 1 if a figure of a folder has risen
    python tools/prose.py --update    # record what has fallen; a rise is written by hand, with the reason in the commit

Docstrings of functions and classes count, by the rows of the budget table in ARCHITECTURE.md; tests and tools do not.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from code_lines import ROOT, STRING_OR_COMMENT, TABLE_FILE, find_sources, read_budgets, row_of_part

RECORD = ROOT / "tools/prose.toml"
LISTED = 12  # lines in a message
PRIVATE = re.compile(
    r"\b(told|tells|what (is|has|it|they|a|the)|nobody|somebody|whoever|likewise|so many|beside"
    r"|where (it|that|there|they)|lies?|stands?|is to be)\b"
)

# A figure of a row is the mean over its first lines, rounded to one decimal.
FIGURES: dict[str, Callable[[str], float]] = {
    "private_percent": lambda line: 100 * bool(PRIVATE.search(line)),
    "mean_words": lambda line: len(line.split()),
    "return_percent": lambda line: 100 * line.startswith("Return"),
}


@dataclass(frozen=True, slots=True)
class FirstLine:
    """The first line of a docstring."""

    where: str
    text: str


def find_first_lines(root: Path = ROOT) -> dict[str, list[FirstLine]]:
    """Collect the first lines per row; KeyError names a folder without a row."""
    rows = row_of_part(read_budgets(TABLE_FILE.read_text("utf-8")))
    found = defaultdict(list)
    for part, path in find_sources(root):
        if part not in ("tests", "tools"):
            text = path.read_text("utf-8")
            for match in STRING_OR_COMMENT.finditer(text):
                if match["before"]:  # a module's docstring has nothing before it
                    where = f"{path.relative_to(root)}:{text.count(chr(10), 0, match.start('text')) + 1}"
                    found[rows[part]].append(FirstLine(where, match["text"].strip().split("\n")[0]))
    return dict(found)


def measure(lines: list[FirstLine], figure: str) -> float:
    """Average a figure over lines."""
    return round(sum(FIGURES[figure](line.text) for line in lines) / max(len(lines), 1), 1)


def texts_when_recorded() -> set[str]:
    """Find the lines with triple quotes at the last commit of the record; none without git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout

    commit = git("log", "-1", "--format=%H", "--", str(RECORD)).strip() or "HEAD"
    return {
        line.strip().lstrip("r").strip('"') for line in git("grep", "-hF", '"""', commit, "--", "*.py").splitlines()
    }


def describe_rise(row: str, figure: str, lines: list[FirstLine], most: float) -> str:
    """Name row, figure and the lines above the recorded mean: the new ones, if there are any."""
    raising = sorted(
        (line for line in lines if FIGURES[figure](line.text) > most), key=lambda x: -FIGURES[figure](x.text)
    )
    old = texts_when_recorded()
    shown = [line for line in raising if line.text not in old] or raising
    return "\n".join(
        [
            f"{row}: {figure} is {measure(lines, figure)} over {len(lines)} first docstring lines; "
            f"expected at most {most}. Fix: reword",
            *(f"    {line.where}: {line.text}" for line in shown[:LISTED]),
            *[f"    and {len(shown) - LISTED} more"] * (len(shown) > LISTED),
        ]
    )


def compare(lines: dict[str, list[FirstLine]], recorded: dict[str, dict[str, float]]) -> list[str]:
    """Describe every figure that has risen; KeyError names a row that is not recorded."""
    return [
        describe_rise(row, figure, lines[row], recorded[row][figure])
        for row in lines
        for figure in FIGURES
        if measure(lines[row], figure) > recorded[row][figure]
    ]


def lower(lines: dict[str, list[FirstLine]], recorded: dict[str, dict[str, float]]) -> str:
    """Render the record with every figure that has fallen."""
    rows = []
    for row, figures in recorded.items():
        least = (f"{figure} = {min(most, measure(lines.get(row, []), figure))}" for figure, most in figures.items())
        rows.append(f'"{row}" = {{ {", ".join(least)} }}\n')
    return "".join(rows)


def main() -> int:
    """Compare, or record what has fallen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="record the figures that have fallen")
    update = parser.parse_args().update
    text = RECORD.read_text("utf-8")
    lines, recorded = find_first_lines(), tomllib.loads(text)
    risen = compare(lines, recorded)
    if update:
        comment = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        RECORD.write_text(comment + lower(lines, recorded), "utf-8")
    print("\n".join(risen) or f"prose: no figure of {sum(map(len, lines.values())):,} first docstring lines has risen")
    return int(bool(risen))


if __name__ == "__main__":
    sys.exit(main())
