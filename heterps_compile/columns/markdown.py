"""Columns as Markdown; every name is escaped."""

from collections.abc import Iterator, Sequence

from heterps_compile.escape import for_markdown

from .column import FILES, Column, Medium, Row, pairs, shown, texts

_ROOM = 60  # characters for names


def markdown_table(columns: Sequence[Column[Row]], rows: Sequence[Row], currency: str) -> list[str]:
    """Return the lines of a table."""
    used = shown(columns, Medium.README)
    cells = zip(*(_cells(column, rows) for column in used), strict=True)
    headings = [column.heading(currency) for column in used]
    rule = ["---:" if column.unit.is_number else "---" for column in used]
    return [f"| {' | '.join(line)} |" for line in (headings, rule, *cells)]


def _cells(column: Column[Row], rows: Sequence[Row]) -> Iterator[str]:
    if column.unit is FILES:
        return (", ".join(f"`{name}`" for name in column.value(row)) or "-" for row in rows)
    told = texts(column, rows, _ROOM)
    return iter(told) if column.unit.is_number else map(for_markdown, told)


def markdown_pairs(columns: Sequence[Column[Row]], row: Row, currency: str) -> list[str]:
    """Return the lines of a summary, as a list."""
    return ["- " + for_markdown(f"{name}: {text}") for name, text in pairs(columns, row, Medium.README, currency)]
