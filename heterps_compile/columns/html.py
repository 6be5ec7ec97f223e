"""Columns as HTML, for the report and for notebooks; every name is escaped.

Left out: style sheets.
"""

from collections.abc import Callable, Sequence
from html import escape

from .column import DEVICE, Column, Medium, Row, pairs, shown, texts

_ROOM = 60  # characters for names


def html_table(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    currency: str,
    medium: Medium,
    class_of_device: Callable[[str], str] | None = None,
) -> str:
    """Return a table.

    Args:
        columns: Of the table.
        rows: Of the table.
        currency: Of prices.
        medium: The page or a notebook.
        class_of_device: Returns the class of the chip around a device type; None draws no chips.
    """
    used = shown(columns, medium)
    headings = [escape(column.heading(currency)) for column in used]
    kinds = [' class="number"' if column.unit.is_number else "" for column in used]
    head = "".join(f"<th{kind}>{heading}</th>" for kind, heading in zip(kinds, headings, strict=True))
    lines = []
    for row, cells in zip(rows, zip(*(texts(column, rows, _ROOM) for column in used), strict=True), strict=True):
        shown_cells = (
            f'<td{kind} data-label="{heading}">{_cell(column, row, text, class_of_device)}</td>'
            for column, kind, heading, text in zip(used, kinds, headings, cells, strict=True)
        )
        lines.append(f"<tr>{''.join(shown_cells)}</tr>")
    return f'<table class="stack"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _cell(column: Column[Row], row: Row, text: str, class_of_device: Callable[[str], str] | None) -> str:
    if column.unit is DEVICE and class_of_device is not None:
        return f'<span class="chip {escape(class_of_device(column.value(row)))}">{escape(text)}</span>'
    return escape(text)


def html_pairs(columns: Sequence[Column[Row]], row: Row, currency: str, medium: Medium) -> str:
    """Return a summary, as a list of descriptions."""
    lines = (f"<dt>{escape(n)}</dt><dd>{escape(text)}</dd>" for n, text in pairs(columns, row, medium, currency))
    return f"<dl>{''.join(lines)}</dl>"
