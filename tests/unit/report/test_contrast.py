"""Text stands out from its ground: contrast ratios of WCAG 2.2, 4.5 for text and 3 for what only marks."""

import re
from importlib import resources
from itertools import combinations
from math import dist

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


COLOUR_BLIND = {
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What is left of linear red, green and blue: Machado, Oliveira and Fernandes 2009, severity 1."""


def seen(colour: str, kind: str) -> tuple[float, float, float]:
    """Return a colour in CIE L*a*b*, as somebody sees it who lacks one kind of cones."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    r, g, b = (min(1.0, max(0.0, sum(a * p for a, p in zip(row, linear, strict=True)))) for row in COLOUR_BLIND[kind])
    rows = ((0.4339, 0.3762, 0.1899), (0.2126, 0.7152, 0.0722), (0.0177, 0.1095, 0.8728))  # to XYZ, white being 1
    shares = (sum(a * p for a, p in zip(row, (r, g, b), strict=True)) for row in rows)
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in shares)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@themes
def test_colours_that_stand_side_by_side_are_told_apart_without_one_kind_of_cones(theme):
    for kind in COLOUR_BLIND:
        for one, two in combinations(STRONG[theme][:4], 2):
            assert dist(seen(one, kind), seen(two, kind)) > 10, (kind, one, two)


@themes
def test_boxes_of_stages_are_seen_on_paper(theme):
    paper = GREYS[theme][3]
    assert [line for _, line in DEVICES[theme] if contrast(line, paper) < MARK] == []


def test_the_page_has_the_colours_of_the_pictures():
    light, dark = (set(re.findall(r"#[0-9a-f]{6}", part)) for part in CSS.read_text("utf-8").split("@media", 2)[:2])
    for theme, colours in enumerate((light, dark)):
        assert {GREYS[theme][0], GREYS[theme][1], *(fill for fill, _ in DEVICES[theme])} <= colours
