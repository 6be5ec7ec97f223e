"""Count lines of code per folder, and hold them against the budgets in ARCHITECTURE.md.

    python tools/code_lines.py             # print code, budget and goal of every row
    python tools/code_lines.py --update    # write today's counts into the column `code`; budgets stay as they are

A line of code is neither blank nor comment nor docstring. A row of the table names its folders, separated by commas:
folders of the package, folders of the repository, or the files directly in the package ("top-level files").
"""

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE_FILE = ROOT / "ARCHITECTURE.md"
MEASURED = ("heterps_compile", "passes", "backends", "tests", "tools")
TOP_LEVEL = "top-level files"

ROW = re.compile(r"^\| (?P<name>[^|]+?) +\| +(?P<code>[\d,]+) \| +(?P<budget>[\d,]+) \| +(?P<goal>[\d,]+) \|$", re.M)

# In Python 3.11 no string contains quotes of its own kind, so one expression finds all strings and comments, in order.
# A docstring follows the start of the file (a module's) or a colon that ends a line; nothing follows on its own line.
STRING_OR_COMMENT = re.compile(
    r"""
    (?P<docstring>
        (?P<before>\A|:[ \t]*(?:\#[^\n]*)?\n) (?:[ \t]*(?:\#[^\n]*)?\n)*
        [ \t]*[rRuU]?(?P<quotes>\"""|'''|"|')(?P<text>(?:[^\\]|\\.)*?)(?P=quotes)[ \t]*(?:\#[^\n]*)?(?=\n|\Z)
    )
    | (?P<string> (?P<mark>\"""|''')(?:[^\\]|\\.)*?(?P=mark) | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*' )
    | \#[^\n]*
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Budget:
    """One row of the table, in lines of code."""

    name: str
    code: int
    budget: int
    goal: int

    @property
    def parts(self) -> list[str]:
        """List the folders that the row counts."""
        return self.name.split(", ")


def read_budgets(text: str) -> list[Budget]:
    """Read the rows of the table."""
    return [
        Budget(m["name"], *(int(m[key].replace(",", "")) for key in ("code", "budget", "goal")))
        for m in ROW.finditer(text)
    ]


def write_counts(text: str, counts: dict[str, int]) -> str:
    """Replace the column `code`, and nothing else."""

    def write_row(match: re.Match[str]) -> str:
        start, end = match.start("code") - match.start(), match.end("code") - match.start()
        return f"{match[0][:start]}{counts[match['name']]:,}{match[0][end:]}"

    return ROW.sub(write_row, text)


def find_sources(root: Path = ROOT) -> Iterator[tuple[str, Path]]:
    """Yield every Python file with the part that it belongs to; links are not followed."""
    for folder in MEASURED:
        for here, _, names in os.walk(root / folder):
            for path in (Path(here, name) for name in names if name.endswith(".py")):
                inside = path.relative_to(root).parts
                if not path.is_symlink():
                    part = inside[0] if folder != "heterps_compile" else inside[1] if len(inside) > 2 else TOP_LEVEL
                    yield part, path


def count_code(text: str) -> int:
    """Count the lines that are neither blank nor comment nor docstring."""

    def blank(match: re.Match[str]) -> str:
        return "\n".join("x" * len(match[0].split("\n"))) if match["string"] else match["before"] or ""

    return sum(bool(line.strip()) for line in STRING_OR_COMMENT.sub(blank, text).split("\n"))


def count_parts(root: Path = ROOT) -> Counter[str]:
    """Count lines of code per part."""
    counts: Counter[str] = Counter()
    for part, path in find_sources(root):
        counts[part] += count_code(path.read_text("utf-8"))
    return counts


def row_of_part(budgets: list[Budget]) -> dict[str, str]:
    """Map every part to the row that counts it."""
    return {part: budget.name for budget in budgets for part in budget.parts}


def count_rows(budgets: list[Budget], root: Path = ROOT) -> dict[str, int]:
    """Count lines of code per row; KeyError names a folder without a row."""
    counts = dict.fromkeys((budget.name for budget in budgets), 0)
    rows = row_of_part(budgets)
    for part, lines in count_parts(root).items():
        counts[rows[part]] += lines
    return counts


def main() -> int:
    """Print or update the table; exit code 1 if a row exceeds its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write today's counts into ARCHITECTURE.md")
    update = parser.parse_args().update
    text = TABLE_FILE.read_text("utf-8")
    budgets = read_budgets(text)
    counts = count_rows(budgets)
    if update:
        TABLE_FILE.write_text(write_counts(text, counts), "utf-8")
    print(f"{'folder':<32} {'code':>7} {'budget':>7} {'goal':>7}")
    for row in budgets:
        over = f"  over by {counts[row.name] - row.budget}" * (counts[row.name] > row.budget)
        print(f"{row.name:<32} {counts[row.name]:>7,} {row.budget:>7,} {row.goal:>7,}{over}")
    source = [row for row in budgets if row.name not in ("tests", "tools")]
    total = (
        sum(counts[row.name] for row in source),
        sum(row.budget for row in source),
        sum(row.goal for row in source),
    )
    print(f"{'source':<32} {total[0]:>7,} {total[1]:>7,} {total[2]:>7,}")
    return int(any(counts[row.name] > row.budget for row in budgets))


if __name__ == "__main__":
    sys.exit(main())
