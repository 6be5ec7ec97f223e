"""What all pictures share: SVG elements from escaped text, colours that read in dark and light, and PNG.

A picture is one ``<svg>``. It looks the same alone in a file and inside a page: colours are classes, and the style
sheet that every picture carries gives them, once more for dark surroundings. A PNG is drawn from it by resvg (the
optional package ``resvg-py``), always in light: it cannot know its surroundings.

Left out: the pictures themselves (the other files of this folder).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec

from heterps_compile.escape import printable, shorten

from .text_width import SMALL, fitting, text_width, wrapped

WIDTH = 820
NAME_WIDTH = 200  # characters of a name that are ever shown
DEVICE_COLOURS = 8
NARROW = 360  # pixels: the width for a phone; a page shows one or the other
_PIXELS_A_UNIT = 2  # of a PNG, so that text is sharp on today's screens
_MOST_PIXELS = 16_000  # of the height of a PNG
_LEFT, _TITLE_LINE = 12.0, 18.0  # pixels
_LINE = 16.0  # pixels from one line of small text to the next

_LIGHT = (
    ("#cfe2f7", "#2f6fb3"),
    ("#fbdcb8", "#b5650f"),
    ("#cdebd0", "#2c843a"),
    ("#e2d6f5", "#6c48ad"),
    ("#f8d0ce", "#b53633"),
    ("#c6ebe8", "#147873"),
    ("#f4eab5", "#857008"),
    ("#f5d2e7", "#a8377c"),
)
_DARK = (
    ("#1d3f61", "#7cb8f2"),
    ("#573813", "#f2b069"),
    ("#1d4726", "#7bd088"),
    ("#3b2d63", "#bfa8f2"),
    ("#592425", "#f29592"),
    ("#124542", "#66d0cc"),
    ("#473e0d", "#e2ce55"),
    ("#542243", "#ee96cb"),
)
DEVICES = (_LIGHT, _DARK)
"""(fill, line) of devices by turns, in light and in dark."""


GREYS = (("#1b1f24", "#545d67", "#d0d7de", "#ffffff"), ("#e8ecf1", "#a3adb8", "#3a424c", "#14181d"))
"""Ink, soft ink, grid and paper, in light and in dark."""

STRONG = (
    ("#3b76af", "#a5610f", "#17803d", "#4b2e83", "#c2452d"),
    ("#5b9bd8", "#e9a04a", "#8fdc9a", "#dccbff", "#f07a63"),
)
"""Five plain colours that paper-coloured text is read on, in light and in dark; the first four, which stand side by
side, are told apart without seeing red, green or blue."""


def _theme(greys: Sequence[str], strong: Sequence[str], devices: Sequence[tuple[str, str]]) -> str:
    ink, soft, grid, paper = greys
    rules = [
        f".halo{{paint-order:stroke;stroke:{paper};stroke-width:5px}}",
        f".ink{{fill:{ink}}}.soft{{fill:{soft}}}.grid{{stroke:{grid}}}.paper{{fill:{paper}}}.grid-fill{{fill:{grid};stroke:{soft}}}",
        f".line{{stroke:{soft}}}.tip{{fill:{soft}}}.box{{fill:{paper};stroke:{grid}}}",
        *(f".p{i}{{fill:{colour}}}.l{i}{{stroke:{colour}}}" for i, colour in enumerate(strong)),
        f".mark{{stroke:{strong[4]};stroke-width:2}}",
        *(f".d{i}{{fill:{fill};stroke:{line}}}.s{i}{{stroke:{line}}}" for i, (fill, line) in enumerate(devices)),
    ]
    return "".join(rules)


STYLE = (
    "svg.picture{font:12px system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}"
    f"svg.picture .head{{font-weight:600}}svg.picture .small{{font-size:{SMALL:g}px}}"
    "svg.picture .edge{fill:none;stroke-width:1.2}svg.picture .data{stroke-dasharray:3 2}"
    "svg.picture .curve{fill:none;stroke-width:2;stroke-linejoin:round}svg.picture .thin{stroke-width:1}"
    "svg.picture .faint{stroke-opacity:.4}"
    + _theme(GREYS[0], STRONG[0], DEVICES[0])
    + "@media (prefers-color-scheme:dark){"
    + _theme(GREYS[1], STRONG[1], DEVICES[1])
    + "}"
)
"""Classes: p0 .. p4 are five plain colours, l0 .. l4 lines of them, d0 .. d7 fill and line of devices, s0 .. s7 their
lines alone."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn picture.

    Attributes:
        name: What its file is called, without the ending.
        title: What it shows.
        about: More about that; "" for nothing.
        body: The elements in it.
        width: In pixels.
        height: In pixels, of the elements.
        role: As the standard of accessible pages has it.
    """

    name: str
    title: str
    about: str
    body: str
    width: float
    height: float
    role: str

    @property
    def label(self) -> str:
        """Return title and what is said about it."""
        return f"{self.title}: {self.about}" if self.about else self.title

    @property
    def element(self) -> str:
        """Return its text, one element without style sheet and title, as it stands in a page below a heading."""
        return self._around(0.0, [])

    @property
    def svg(self) -> str:
        """Return the picture with its style sheet and its title above it, as it stands in a file of its own."""
        lines = enumerate(self._heading, start=1)
        told = [text(_LEFT, i * _TITLE_LINE - self._band, said, classes) for i, (said, classes) in lines]
        return self._around(self._band, [f"<style>{STYLE}</style>", *told])

    @property
    def whole_height(self) -> float:
        """Return the height in pixels of the picture with its title."""
        return self.height + self._band

    @property
    def _heading(self) -> list[tuple[str, str]]:
        """Return the lines of the title and what is said about it, with their classes."""
        room = self.width - 2 * _LEFT
        about = wrapped(self.about, room, SMALL) if self.about else []
        return [(said, "ink head") for said in wrapped(self.title, room, bold=True)] + [
            (s, "soft small") for s in about
        ]

    @property
    def _band(self) -> float:
        """Return the height of the title in pixels."""
        return len(self._heading) * _TITLE_LINE + 4.0

    def _around(self, band: float, above: Sequence[str]) -> str:
        width, height = f"{self.width:.0f}", f"{self.height + band:.0f}"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 {-band:.0f} {width} {height}" '
            f'width="{width}" height="{height}" role="{self.role}" aria-label="{safe(self.label)}">'
        )
        paper = f'<rect class="paper" y="{-band:.0f}" width="100%" height="100%"/>'
        return "\n".join([head, *above[:1], paper, *above[1:], self.body, "</svg>\n"])


def picture(
    name: str,
    title: str,
    height: float,
    parts: Iterable[str],
    *,
    about: str = "",
    role: str = "img",
    width: float = WIDTH,
) -> Picture:
    """Make a picture from its elements.

    Args:
        name: What its file is called.
        title: What it shows, for everybody who cannot see it too; escaped here.
        height: In pixels.
        parts: Elements.
        about: More about what it shows.
        role: ``"img"`` for one that is read as a whole, ``"group"`` for one with parts of its own.
        width: In pixels.
    """
    return Picture(name, title, about, "\n".join(parts), width, height, role)


def safe(text: str, width: int = NAME_WIDTH) -> str:
    """Return a text of a model for SVG and HTML: printable, cut to so many characters, escaped."""
    return escape(shorten(printable(text), width))


def text(x: float, y: float, words: str, classes: str = "ink", anchor: str = "start") -> str:
    """Return a line of text; ``words`` are escaped here."""
    placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{classes}" x="{x:.1f}" y="{y:.1f}"{placed}>{safe(words)}</text>'


def rect(  # noqa: PLR0917 - a rectangle is four numbers everywhere
    x: float, y: float, width: float, height: float, classes: str, more: str = ""
) -> str:
    """Return a rectangle; ``more`` are attributes as they stand."""
    return f'<rect class="{classes}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{more}/>'


def titled(shape: str, title: str) -> str:
    """Return a shape with a title that is shown on hovering; "" for none."""
    tag = shape[1 : shape.index(" ")]
    return f"{shape.removesuffix('/>')}><title>{safe(title)}</title></{tag}>" if title else shape


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    """Return a line."""
    return f'<line class="{classes}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def legend(items: Iterable[tuple[str, str]], width: float, *, left: float = 12.0) -> tuple[list[str], float]:
    """Draw a coloured square and a word for each item, in as many rows as they take.

    Args:
        items: The square's classes ("" for none) and the words.
        width: Pixels there are.
        left: Where a row begins.

    Returns:
        The elements, and the height of the rows.
    """
    parts, x, y = list[str](), left, 24.0
    for classes, words in items:
        mark = 20.0 if classes else 0.0
        lines = wrapped(words, width - 2 * left - mark)
        taken = mark + max(map(text_width, lines))
        if x > left and x + taken > width - left:
            x, y = left, y + 20
        if classes:
            parts.append(rect(x, y - 11, 14, 14, classes, ' rx="3"'))
        parts += [text(x + mark, y + 16 * i, said, "ink" if classes else "soft") for i, said in enumerate(lines)]
        x, y = x + taken + 18, y + 16 * (len(lines) - 1)
    return parts, y + 16


def listed(
    items: Sequence[str], width: float, top: float, *, left: float = 12.0, alike: Sequence[str] = ()
) -> tuple[list[str], float]:
    """Write short texts in as many columns as there is room for, read from left to right.

    Args:
        items: The texts.
        width: Pixels there are.
        top: Where the first row begins.
        left: Where a row begins.
        alike: Texts of other lists, whose columns are to be as wide.

    Returns:
        The elements, and where the rows end.
    """
    if not items:
        return [], top
    room = width - left - 12.0
    widest = max(text_width(words, SMALL) for words in (*items, *alike)) + 18
    across = max(1, int(room / widest))
    parts = list[str]()
    for index, words in enumerate(items):
        row, column = divmod(index, across)
        shown = fitting(words, min(room, room / across), SMALL)
        parts.append(text(left + column * room / across, top + 12 + row * _LINE, shown, "soft small"))
    return parts, top + -(-len(items) // across) * _LINE + 4


def device_classes(devices: Iterable[str]) -> dict[str, int]:
    """Number the colours of devices, in order of first appearance."""
    return {name: index % DEVICE_COLOURS for index, name in enumerate(dict.fromkeys(devices))}


def ticks(most: float, count: int = 5) -> list[float]:
    """Return round numbers from 0 to ``most``, about so many."""
    if most <= 0:
        return [0.0]
    rough = most / count
    power = 10.0 ** len(str(int(rough))) / 10 if rough >= 1 else 1.0
    while power > rough:
        power /= 10
    step = next(power * nice for nice in (1, 2, 5, 10) if power * nice >= rough)
    return [i * step for i in range(int(most / step * (1 + 1e-9)) + 1)]


def can_draw_png() -> bool:
    """Tell whether resvg-py is installed."""
    return find_spec("resvg_py") is not None


def to_png(drawn: Picture) -> bytes:
    """Draw a picture as PNG, at double size where that is not too high."""
    import resvg_py  # noqa: PLC0415 - optional, and only for PNG

    zoom = min(_PIXELS_A_UNIT, _MOST_PIXELS / drawn.whole_height)
    return bytes(resvg_py.svg_to_bytes(svg_string=drawn.svg, zoom=zoom, sans_serif_family="DejaVu Sans"))
