"""Lines of text that fit the columns of a terminal.

One rule for all commands: on a terminal every line fits its columns, those of ``COLUMNS`` before its own; where the
output is no terminal, a sentence is one line however long, so that it can be searched for, and a table takes up to
``PLAIN_WIDTH`` columns. Lines break between words alone: a path or a hash that is longer than a line stays whole.

Left out: tables (``console.py``), documents for programs and for pages, which no line of is broken.
"""

import os
import re
from typing import TextIO
from unicodedata import combining, east_asian_width

PLAIN_WIDTH = 120  # columns of a table, where the output is no terminal
_UNTOLD_WIDTH = 80  # columns of a terminal that does not say how many it has
LEAST_WIDTH = 40  # columns; a narrower terminal breaks the lines itself
_LABEL = re.compile(r" *(?:(?:note|Error|warning): |- )?")
_UNIT = re.compile(r"(?<![^\s(+-])(\d[\d.,]*) (?=[^\d\s(])")  # a number and the gap before its unit
_NO_BREAK = "\0"  # stands for that gap: no printable text has it
_GAP = re.compile(r"\S {2,}(?=\S)")  # between the columns of a list


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns that a stream has: those of ``COLUMNS``, else of its terminal, or None where it is none."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return (os.get_terminal_size(stream.fileno()).columns or _UNTOLD_WIDTH) if stream.isatty() else None
    except (AttributeError, OSError, ValueError):  # closed, or a stand-in that lives in memory
        return None


def fit_lines(text: str, width: int | None) -> str:
    """Return a text whose lines fit so many columns, further ones under the first; as it is for None.

    A line that goes on stands under its text: behind ``note: ``, behind the last gap of two spaces or more.
    """
    if width is None:
        return text
    room = max(width, LEAST_WIDTH)
    return "\n".join(fitted for line in text.split("\n") for fitted in _fitted(line, room))


def cells(text: str) -> int:
    """Return the columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def _fitted(line: str, room: int) -> list[str]:
    if cells(line) <= room:
        return [line]
    begin = _text_begins(line, room)
    lines: list[str] = []
    indent, now, is_empty = " " * cells(line[:begin]), line[:begin], True
    for piece in _UNIT.sub(rf"\1{_NO_BREAK}", line[begin:]).split(" "):
        word = piece.replace(_NO_BREAK, " ")
        if is_empty and lines and not word:
            continue  # of a gap that the line was broken in
        if not is_empty and cells(now) + 1 + cells(word) > room:
            lines.append(now.rstrip())
            now, is_empty = indent, True
        now, is_empty = (now if is_empty else f"{now} ") + word, False
    return [*lines, now.rstrip()]


def _text_begins(line: str, room: int) -> int:
    """Return where the text of a line begins; its further lines have half of the columns at least."""
    label = _LABEL.match(line)
    places = [0 if label is None else label.end(), *(gap.end() for gap in _GAP.finditer(line))]
    return max((place for place in places if cells(line[:place]) <= room // 2), default=0)
