"""How wide a text is drawn, and a text cut to a width.

The widths are those of DejaVu Sans, the widest of the fonts that the pictures ask for, each rounded up: what fits here
fits in the others.

Left out: the font's kerning, which makes texts narrower.
"""

from types import MappingProxyType

from heterps_compile.escape import printable, shorten

_TWENTIETHS = MappingProxyType(
    {
        character: twentieths
        for twentieths, characters in {
            6: "'IJijl", 7: " ,./:;\\|", 8: "()-[]ft", 9: "!r", 10: '"*_`', 11: "?csz", 12: "FLkvxy",
            13: "$0123456789EPSTYabdeghnopqu{}", 14: "ABCKRVXZ", 15: "NU", 16: "&DGHOQ", 17: "#+<=>^w~\u00d7→",
            18: "M", 19: "%",
        }.items()
        for character in characters
    }
)  # fmt: skip
"""Widths in twentieths of the font's size; every other character takes a whole size."""

SMALL = 11.0
"""Pixels: the size of small text."""

_BOLD = 1.15  # times as wide
_MOST = 200  # characters that are ever measured


def text_width(words: str, size: float = 12.0, *, bold: bool = False) -> float:
    """Return the pixels that a text takes at most."""
    return sum(_TWENTIETHS.get(character, 20) for character in words) / 20 * size * (_BOLD if bold else 1.0)


def fitting(words: str, width: float, size: float = 12.0, *, bold: bool = False) -> str:
    """Cut the middle out of a text that is wider than so many pixels."""
    shown = shorten(printable(words), _MOST)
    for count in range(len(shown), 0, -1):
        if text_width(cut := shorten(shown, count), size, bold=bold) <= width:
            return cut
    return "…" if shown else ""


def wrapped(words: str, width: float, size: float = 12.0, *, bold: bool = False) -> list[str]:
    """Break a text into lines of so many pixels at its spaces; a word that is wider than a line loses its middle."""
    lines = list[str]()
    for word in shorten(printable(words), _MOST).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, bold=bold) <= width:
            lines[-1] = longer
        else:
            lines.append(fitting(word, width, size, bold=bold))
    return lines


def ending(words: str, width: float, size: float = 12.0) -> str:
    """Cut the beginning off a text that is wider than so many pixels: the end of a dotted name tells the most."""
    shown = printable(words)[-_MOST:]
    if len(shown) == len(printable(words)) and text_width(shown, size) <= width:
        return shown
    while shown and text_width(f"…{shown}", size) > width:
        shown = shown[1:]
    return f"…{shown}"
