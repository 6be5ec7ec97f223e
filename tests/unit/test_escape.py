import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_compile.escape import for_markdown, one_line, printable, shorten


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("encoder/layer.0/Größe_名前", "encoder/layer.0/Größe_名前"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[2J\x9b31m", r"\x1b[2J\x9b31m"),
        ("safe\u202egpj.exe", r"safe\u202egpj.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\ud800", r"\ud800"),
        ("\x00\x7f", r"\x00\x7f"),
        ("[red]x[/red]", "[red]x[/red]"),
    ],
)
def test_what_a_terminal_may_not_see_is_spelled_out(name, shown):
    assert printable(name) == shown


@given(st.text(st.characters()))
def test_printable_text_is_printable_and_can_be_encoded(text):
    assert printable(text).isprintable()
    assert printable(text).encode("utf-8").decode("utf-8") == printable(text)


@given(st.text(st.characters()))
def test_a_message_becomes_one_printable_line(text):
    assert one_line(text).isprintable()


def test_lines_are_joined_by_spaces():
    assert one_line("cannot load:\n\n   ==> Context: bad\r\nnode \x1b\n") == r"cannot load: ==> Context: bad node \x1b"


def test_the_middle_of_a_long_name_is_cut():
    assert shorten("encoder.layer.11.attention", 11) == "encod…ntion"
    assert shorten("encoder.layer.11.attention", 10) == "enco…ntion"
    assert shorten("short", 5) == "short"


@given(st.text(), st.integers(1, 40))
def test_a_shortened_text_fits(text, width):
    assert len(shorten(text, width)) <= width


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("heterps-paper, 4 ms (fast).", "heterps-paper, 4 ms (fast)."),
        ("a_b*c", r"a\_b\*c"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("![x](http://y)", r"!\[x\](http:\//y)"),
        ("www.x.com @me #12 $x$", r"www\.x.com \@me \#12 \$x\$"),
        ("- item", r"\- item"),
        ("1. item", r"1\. item"),
        ("cell | cell", r"cell \| cell"),
        ("line\n# heading", "line\\\\n\\# heading"),
        ("\\", "\\\\"),
    ],
)
def test_markdown_shows_a_name_as_it_is(name, shown):
    assert for_markdown(name) == shown


def test_every_character_there_is_survives():
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    assert printable(everything).isprintable()
