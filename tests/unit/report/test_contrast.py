"""Text stands out from its ground: contrast ratios of WCAG 2.2, 4.5 for text and 3 for what only marks."""

import re
from importlib import resources

import pytest

from heterps_compile.report.pictures.svg import DEVICES, GREYS, STRONG

CSS = resources.files("heterps_compile.report.templates").joinpath("report.css")
TEXT, MARK = 4.5, 3.0
themes = pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb``, section "relative luminance" of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, two: str) -> float:
    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)


def test_black_on_white_has_the_contrast_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@themes
def test_ink_is_read_on_paper_and_on_every_device(theme):
    ink, soft, _, paper = GREYS[theme]
    grounds = [paper, *(fill for fill, _ in DEVICES[theme])]
    assert [(text, ground) for ground in grounds for text in (ink, soft) if contrast(text, ground) < TEXT] == []


@themes
def test_paper_is_read_on_every_plain_colour(theme):
    paper = GREYS[theme][3]
    assert [colour for colour in STRONG[theme] if contrast(paper, colour) < TEXT] == []


@themes
def test_boxes_of_stages_are_seen_on_paper(theme):
    paper = GREYS[theme][3]
    assert [line for _, line in DEVICES[theme] if contrast(line, paper) < MARK] == []


def test_the_page_has_the_colours_of_the_pictures():
    light, dark = (set(re.findall(r"#[0-9a-f]{6}", part)) for part in CSS.read_text("utf-8").split("@media", 2)[:2])
    for theme, colours in enumerate((light, dark)):
        assert {GREYS[theme][0], GREYS[theme][1], *(fill for fill, _ in DEVICES[theme])} <= colours
