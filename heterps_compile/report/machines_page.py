"""The page of ``machines --pareto``: what was chosen and why, tables of sets, and money against time as a picture.

It fetches nothing and runs nothing. Names are of catalogues and hostile: the template escapes what it inserts, and the
page's own policy lets no script run.

Left out: the picture (``pictures/machine_front.py``), the sentences (``machines/machines_words.py``).
"""

from collections.abc import Iterator
from importlib import resources

from jinja2 import Environment
from markupsafe import Markup

from heterps_compile.escape import one_line, printable, shorten
from heterps_compile.machines.machines_words import figures, rows, told
from heterps_compile.machines.option import Option
from heterps_compile.machines.search import Answer
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.packages import __version__
from heterps_compile.units import counted, format_duration, format_money, format_seconds, rate_number

from .pictures.machine_front import machine_front
from .pictures.svg import NARROW, STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_TEXT, _MOST_TITLE = 1000, 300
_OWN_STYLE = (
    ".page.one{grid-template-columns:minmax(0,1fr)}section ul{margin:0;padding-left:18px;overflow-wrap:anywhere}"
    "figure{margin-bottom:10px}.figures .number{white-space:nowrap}.figures td,.figures th{padding-right:14px}"
    "@media (min-width:861px){.figures td:first-child:not(:only-child){min-width:5rem}}"
)

_Row = tuple[str, str, tuple[str, ...], bool]


def machines_page(answer: Answer) -> str:
    """Write the page."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["text"] = lambda text: shorten(one_line(text), _MOST_TEXT)
    environment.filters["title"] = lambda text: shorten(printable(text), _MOST_TITLE)
    sentences = [line.partition(": ") for line in told(answer)]
    has_batches = len(answer.goal.batches) > 1
    return environment.from_string(_template("machines.html")).render(
        version=__version__,
        policy=_POLICY,
        style=Markup(_template("report.css")),  # noqa: S704 - the package's own file
        own_style=Markup(_OWN_STYLE),  # noqa: S704 - the package's own
        picture_style=Markup(STYLE),  # noqa: S704 - the package's own
        chosen=answer.best.machines.title,
        asked=f"asked: {sentences[0][2]}",
        tiles=list(_tiles(answer)),
        facts=[(name, value) for name, colon, value in sentences[1:] if colon and name in _FACTS],
        heads=[(name, name) for name in (*(["batch"] * has_batches), f"{CURRENCY}/h", "samples/s")]
        + [
            (head, label)
            for name in ("time", CURRENCY)
            for head, label in ((name, name), ("in 9 of 10", f"{name} in 9 of 10"))
        ],
        rows=[_row(name, option, answer) for name, option in rows(answer)],
        fails=answer.failing is not None,
        front=[_row("", option, answer) for option in answer.front],
        drawn=[
            Markup(machine_front(answer, **width).element)  # noqa: S704 - made of escaped text
            for width in ({}, {"width": NARROW})
        ],
        notes=answer.notes,
    )  # fmt: skip


_FACTS = ("plan", "learned", "why", "elsewhere", "bound", "fails")


def _template(name: str) -> str:
    return resources.files(f"{__package__}.templates").joinpath(name).read_text("utf-8")


def _tiles(answer: Answer) -> Iterator[tuple[str, str, str]]:
    """Yield key figures: what each is, its value, and more about it."""
    best, outlook = answer.best, answer.best.outlook
    yield "time", format_duration(outlook.median_s), f"{format_duration(outlook.most_s)} in nine of ten runs"
    money = format_money(outlook.median_money)
    yield "money", f"{money} {CURRENCY}", f"{format_money(outlook.most_money)} {CURRENCY} in nine of ten runs"
    dates = sorted({rental.offer.price_date.isoformat() for rental, _ in best.machines.parts})
    yield "price", f"{format_money(best.machines.price_per_hour)} {CURRENCY}/h", f"as it was on {' and '.join(dates)}"
    step = f"{format_seconds(best.step.step_s)} a step of {counted(best.batch, 'sample')}"
    yield "throughput", f"{rate_number(best.samples_per_s)} samples/s", step


def _row(name: str, option: Option, answer: Answer) -> _Row:
    cells = tuple(column.text(option) for column in figures(answer.goal))
    return name, option.machines.title, cells, option is answer.best
