"""Pictures as PNG, drawn from their SVG by resvg (the optional package ``resvg-py``).

Left out: dark pictures; a PNG cannot know its surroundings.
"""

from importlib.util import find_spec

from .pictures import Picture

_PIXELS_A_UNIT = 2  # so that text is sharp on today's screens
_MOST_PIXELS = 16_000  # of the height


def can_draw_png() -> bool:
    """Tell whether resvg-py is installed."""
    return find_spec("resvg_py") is not None


def to_png(drawn: Picture) -> bytes:
    """Draw a picture as PNG, at double size where that is not too high."""
    import resvg_py  # noqa: PLC0415 - optional, and only for PNG

    zoom = min(_PIXELS_A_UNIT, _MOST_PIXELS / drawn.height)
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn.svg, zoom=zoom, sans_serif_family="DejaVu Sans"))
