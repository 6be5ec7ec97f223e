"""When transient machines were there: a trace of arrivals and losses, and what a set of machines sees of it.

A set of ``k`` machines holds the oldest ``k`` of those that are there. It is there in a step when ``k`` are, and
broken when it was there in the step before and one of its machines is gone.

Left out: prices, several zones, holes that leave no mark: a machine that goes without having come is found, silence
is not.
"""

import csv
import math
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.plain_file import open_plain

_MOST_EVENTS = 1_000_000
_MOST_STEPS = 1_000_000
_MOST_CELLS = 20_000_000


@dataclass(frozen=True, slots=True)
class Trace:
    """Which machines are there in every step, each step's the oldest first.

    Attributes:
        step_s: Seconds of a step.
        machines: Names, by step.
    """

    step_s: float
    machines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a set of machines sees: whether it is there in each step, and whether it was broken at its start."""

    there: tuple[bool, ...]
    broken: tuple[bool, ...]

    def window(self, first: int, steps: int) -> "Seen":
        """Return some steps; nothing is broken in the first, since nothing was held."""
        return Seen(self.there[first : first + steps], (False, *self.broken[first + 1 : first + steps]))


def read_trace(path: Path, step_s: float = 60.0) -> Trace:
    """Read rows ``milliseconds,add|remove,machine`` in the order of their times.

    Raises:
        InputError: where the file cannot be read, or a row is none, goes back in time, adds a machine that is there or
            removes one that is not.
    """
    there: dict[str, None] = {}
    steps: list[tuple[str, ...]] = []
    last_ms, cells, shown = 0.0, 0, printable(str(path))
    try:
        with TextIOWrapper(open_plain(path), encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.reader(file, strict=True), 1):
                at_ms, kind, name = _event(shown, number, row)
                if at_ms < last_ms:
                    raise InputError(f"{shown}:{number}: {at_ms:g} ms lies before {last_ms:g} ms of the row above")
                if number > _MOST_EVENTS or at_ms / 1000 / step_s > _MOST_STEPS:
                    raise InputError(f"{shown}:{number}: a trace has {_MOST_EVENTS:,} events and steps at most")
                missing = math.ceil(at_ms / 1000 / step_s) - len(steps)
                cells += len(there) * (missing > 0)
                if cells > _MOST_CELLS:
                    raise InputError(
                        f"{shown}:{number}: {len(there):,} machines are there at once, and {cells:,} summed over the "
                        f"steps that differ; a trace has {_MOST_CELLS:,} at most"
                    )
                steps.extend([tuple(there)] * missing)
                last_ms = at_ms
                if (name in there) == (kind == "add"):
                    fault = "comes but is there" if kind == "add" else "goes but was not there"
                    raise InputError(f"{shown}:{number}: {short(name)} {fault}; the trace has a hole before this row")
                if kind == "add":
                    there[name] = None
                else:
                    del there[name]
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise InputError(f"{shown} is no trace: {e}; expected rows such as 60000,add,node19") from e
    if not steps and not there:
        raise InputError(f"{shown} has no events; expected rows such as 60000,add,node19")
    return Trace(step_s, (*steps, tuple(there)))


def _event(shown: str, number: int, row: list[str]) -> tuple[float, str, str]:
    try:
        at_ms = float(row[0])
    except (ValueError, IndexError):
        at_ms = math.nan
    if len(row) != 3 or not row[2].isprintable() or not 0 <= at_ms < math.inf or row[1] not in ("add", "remove"):
        raise InputError(
            f"{shown}:{number}: {short(','.join(row))} is no event; expected milliseconds, add or remove, a machine's "
            "name"
        )
    return at_ms, row[1], row[2]


def seen_by(trace: Trace, machines: int, *, spares: bool = False) -> Seen:
    """Return what a set of some machines sees of a trace.

    Args:
        trace: Of the machines that are there.
        machines: Of the set.
        spares: Whether a machine that is there beside the set takes a lost one's place at once; only a set that is no
            longer there is broken then.

    Raises:
        InputError: where the set is empty.
    """
    if machines < 1:
        raise InputError(f"a set of {machines} machines; it needs one at the least")
    there, broken = [], []
    held: set[str] = set()
    for names in trace.machines:
        members = set(names[:machines]) if len(names) >= machines else set()
        there.append(bool(members))
        broken.append(bool(held) and not members if spares else bool(held) and not held <= set(names))
        held = members
    return Seen(tuple(there), tuple(broken))
