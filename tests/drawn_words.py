"""The words of a picture with the rectangles that they cover, for laws of where words may stand."""

from xml.etree import ElementTree as ET

from heterps_compile.report.pictures.svg import Picture
from heterps_compile.report.pictures.text_width import SMALL, text_width

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def parsed(drawn: Picture) -> ET.Element:
    return ET.fromstring(drawn.svg)  # noqa: S314 - our own text


def words(drawn: ET.Element) -> list[tuple[str, Rectangle]]:
    """Return every text with the rectangle that it covers at most."""
    found = []
    for text in drawn.iter(f"{SVG}text"):
        classes = (text.get("class") or "").split()
        size = SMALL if "small" in classes else 12.0
        width = text_width(text.text or "", size, bold="head" in classes)
        x, y = float(text.get("x", "")), float(text.get("y", ""))
        left = x - {"end": width, "middle": width / 2}.get(text.get("text-anchor", ""), 0.0)
        found.append((text.text or "", (left, y - 0.8 * size, left + width, y + 0.2 * size)))
    return found


def overlapping(found: list[tuple[str, Rectangle]]) -> list[tuple[str, str]]:
    """Return the pairs of words that cover each other."""
    return [
        (one, two)
        for i, (one, (left, top, right, bottom)) in enumerate(found)
        for two, (other_left, other_top, other_right, other_bottom) in found[i + 1 :]
        if left < other_right and other_left < right and top < other_bottom and other_top < bottom
    ]


def outside(drawn: ET.Element, found: list[tuple[str, Rectangle]]) -> list[str]:
    """Return the words that a picture cuts off."""
    x, y, width, height = map(float, drawn.get("viewBox", "").split())
    return [
        word
        for word, (left, top, right, bottom) in found
        if left < x or top < y or right > x + width or bottom > y + height
    ]
