"""Lifetimes of transient machines that a user saw: a CSV file, and the law of every kind that it has.

Columns, in any order: ``gpu`` (the kind as offers spell it, ``none`` for virtual CPUs), ``hours`` (the age at which a
machine was lost, or was last seen), ``ended`` (``yes`` where it was lost then, ``no`` where it was still there). A kind
gets a Weibull by maximum likelihood, which takes machines that were still there as censored.

Left out: machines that were started or lost together count as independent; regions and hours of the day.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.offers.csv_rows import Row, check_size, read_rows
from heterps_compile.transient.fit_lifetime import FittedLifetime, Lifespan, fit_lifetime
from heterps_compile.units import counted, format_duration, format_percent

from .goal import HOUR_S, KindLifetime
from .gpu_of_row import gpu_of_row

COLUMNS = ("gpu", "hours", "ended")
LEAST_DEATHS = 3
"""Of a kind, for the two parameters of a Weibull."""

_ENDED = {"yes": True, "no": False}
_MOST_ROWS = 100_000
_MOST_HOURS = 1e6
_NINE_OF_TEN = 1.645  # standard deviations of a normal law, to both sides


def read_lifetimes(path: str | Path) -> tuple[KindLifetime, ...]:
    """Return the law of every kind in a file, in the order in which the kinds come.

    Raises:
        InputError: in one sentence, where the file or a row is none, or a kind has too few machines that were lost.
    """
    where = printable(repr(str(path)))
    spans: defaultdict[str, list[Lifespan]] = defaultdict(list)
    for gpu, span in _spans(Path(path), where):
        spans[gpu].append(span)
    if not spans:
        raise InputError(f"{where} has no machine below its header; add a row, or leave --lifetimes out")
    return tuple(_of_kind(gpu, seen, where) for gpu, seen in spans.items())


def _spans(path: Path, where: str) -> Iterator[tuple[str, Lifespan]]:
    check_size(path, where, "lifetimes")
    for number, row in enumerate(read_rows(path, where), 1):
        if number == 1:
            _check_columns(row, where)
        if number > _MOST_ROWS:
            raise row.wrong(f"lifetimes are at most {_MOST_ROWS:,} rows; keep the newest")
        hours = row.number("hours", "the age in hours at which it was lost or last seen", most=_MOST_HOURS)
        ended = row.cells["ended"].lower()
        if ended not in _ENDED:
            raise row.wrong(f"ended is {short(row.cells['ended'])}; expected yes (it was lost) or no (still there)")
        yield gpu_of_row(row), Lifespan.died(hours) if _ENDED[ended] else Lifespan.alive(hours)


def _of_kind(gpu: str, seen: list[Lifespan], where: str) -> KindLifetime:
    deaths = [span.by_hours for span in seen if span.by_hours < math.inf]
    if len(deaths) < LEAST_DEATHS or len(set(deaths)) < 2:
        ages = counted(len(set(deaths)), "age")
        raise InputError(
            f"{where} has {counted(len(seen), 'machine')} of {gpu or 'virtual CPUs'}, of which {len(deaths)} were lost "
            f"at {ages}; a law needs {LEAST_DEATHS} losses and two ages at the least: add rows, or say --lifetime"
        )
    fit = fit_lifetime(seen)
    median_h = fit.law.quantile(0.5)
    words = (
        f"machines with {gpu or 'virtual CPUs'} are taken to live {format_duration(median_h * HOUR_S)} in the median, "
        f"{format_percent(100 * fit.law.lost_within(1.0))} of them no hour, by the Weibull of {len(seen):,} machines "
        f"in {where}, {len(deaths):,} of which were lost: shape {_interval(fit, 'shape')}, scale "
        f"{_interval(fit, 'scale_hours')} h (90 % intervals)"
    )
    return KindLifetime(gpu, fit.law, words)


def _interval(fit: FittedLifetime, name: str) -> str:
    value, error = getattr(fit.law, name), fit.errors[name]
    if not math.isfinite(error) or error > 10:
        return f"{value:.3g} (not known how nearly)"
    low, high = value * math.exp(-_NINE_OF_TEN * error), value * math.exp(_NINE_OF_TEN * error)
    return f"{value:.3g} ({low:.3g} to {high:.3g})"


def _check_columns(row: Row, where: str) -> None:
    if sorted(row.cells) != sorted(COLUMNS):
        raise InputError(
            f"{where} has the columns {', '.join(map(short, row.cells))}; lifetimes have {', '.join(COLUMNS)}"
        )
