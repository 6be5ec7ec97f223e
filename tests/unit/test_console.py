"""Tables and notes fit the columns there are: no word is broken, no number cut off, no line ends in spaces."""

import io
import re

import pytest
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, make_console, note_text, pairs_table, plain_table

WORDS = re.compile(r"[\w./]+")


def printed(width: int, *things: object) -> str:
    stream = io.StringIO()
    console = make_console(stream, width)
    for thing in things:
        console.print(thing)
    return stream.getvalue()


def steps():
    """Return a table of eight columns, 110 wide where there is room."""
    table = plain_table()
    add_text(table, "schedule", no_wrap=True)
    add_numbers(table, "micro-batches", "time of a step", "samples/s", "part of it waiting", "most memory")
    add_text(table, "because", "")
    table.add_row(
        *map(Text, ["interleaved-1f1b", "16", "4.62 ms", "216,123.5", "93.5 %", "9.39 MiB", "it fits", "best"])
    )
    table.add_row(*map(Text, ["gpipe", "8", "14.62 ms", "6,123.5", "3.5 %", "19.39 MiB", "half as much", ""]))
    return table


def test_a_table_that_fits_has_its_headings_in_one_line():
    assert printed(130, steps()).splitlines()[0].split("  ")[0] == "schedule"
    assert "part of it waiting" in printed(130, steps())


def test_a_table_that_is_too_wide_breaks_its_headings_between_words():
    table = plain_table()
    add_text(table, "layer", no_wrap=True)
    add_numbers(table, "time of a step")
    table.add_row(Text("x" * 70), Text("4.62 ms"))
    assert printed(80, table) == (f"{'':72}time of\nlayer{'':67} a step\n{'─' * 79}\n{'x' * 70}  4.62 ms\n")


@pytest.mark.parametrize("width", [80, 90, 100, 120])
def test_no_word_is_broken_and_no_line_is_too_long_or_ends_in_spaces(width):
    wide, narrow = printed(200, steps()), printed(width, steps())
    assert sorted(set(WORDS.findall(narrow))) == sorted(set(WORDS.findall(wide)))
    assert [line for line in narrow.splitlines() if len(line) > width or line != line.rstrip()] == []


def test_a_row_that_fits_in_no_way_becomes_a_paragraph():
    table = plain_table()
    add_text(table, "peak memory of", no_wrap=True)
    add_numbers(table, *(f"schedule{i}" for i in range(9)))
    table.add_row(Text("stage 0"), *(Text(f"{i} MiB") for i in range(9)))
    first, *others = printed(80, table).splitlines()
    assert first == "peak memory of stage 0"
    assert " ".join(line.strip() for line in others) == ", ".join(f"schedule{i} {i} MiB" for i in range(9))


def test_the_further_lines_of_a_note_and_of_a_value_stand_under_the_first():
    assert printed(80, note_text("word " * 20)).splitlines()[1].startswith("      word")
    assert printed(80, pairs_table([("key", "word " * 20)])).splitlines()[1].startswith("     word")


def test_a_terminal_gets_no_spaces_behind_either():
    stream = io.StringIO()
    stream.isatty = lambda: True
    console = make_console(stream, 100)
    console.print(steps())
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert [line for line in plain.splitlines() if line != line.rstrip()] == []
