"""What a choice of machines is to reach: so many samples, by when, for how much, with how many machines.

Left out: how a goal is judged (``option.py``).
"""

import re
from dataclasses import dataclass, field, replace

from heterps_compile.errors import InputError
from heterps_compile.escape import short
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.transient.lifetime import Weibull, exponential
from heterps_compile.units import NUMBER, counted, format_duration, format_money, format_percent

HOUR_S = 3600.0
MOST_MACHINES = 16
"""In a set, where a user names no other limit."""

_MOST_OF_MACHINES = 256
_MOST_SAMPLES = 1e18
_MOST_BATCHES = 16
_MOST_MONEY = 1e15
_UNITS_S = {"s": 1.0, "min": 60.0, "h": HOUR_S, "d": 24 * HOUR_S}
_DURATION = re.compile(rf"\s*({NUMBER})\s*([A-Za-z]*)\s*", re.ASCII)
_MONEY = re.compile(rf"\s*({NUMBER})\s*([A-Z]{{3}})?\s*", re.ASCII)
_FORM = "give one number with one unit of s, min, h or d, such as 36h"


USUAL_LIFETIME = Weibull(shape=0.53, scale_hours=115.0)
"""Of a transient machine, where a user names no other: 7.8 % are gone within an hour, 35 % within a day."""

USUAL_START_UP_S = 180.0
"""Until a machine in the place of a lost one computes, where a user names no other time."""


@dataclass(frozen=True, slots=True)
class KindLifetime:
    """How long machines of one kind were seen to live.

    Attributes:
        gpu: The kind, "" for virtual CPUs.
        law: That was fitted.
        words: What is to be known of it, in a sentence.
    """

    gpu: str
    law: Weibull
    words: str


@dataclass(frozen=True, slots=True)
class Transience:
    """How transient machines come and go.

    Attributes:
        lifetime: How long one lives.
        start_up_s: From when one is asked for until it computes.
        seen: The kinds that live otherwise.
    """

    lifetime: Weibull = USUAL_LIFETIME
    start_up_s: float = USUAL_START_UP_S
    seen: tuple[KindLifetime, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a start-up that is no time."""
        if not 0 <= self.start_up_s < float("inf"):
            raise InputError(f"a machine starts up within {self.start_up_s:g} s; the time must not be negative")

    def lifetime_of(self, gpu: str) -> Weibull:
        """Return the lifetime of machines of a kind, "" for virtual CPUs."""
        return next((each.law for each in self.seen if each.gpu == gpu), self.lifetime)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is assumed of transient machines, in sentences."""
        which = "transient machines of other kinds" if self.seen else "transient machines"
        law, start_up = self.lifetime, format_duration(self.start_up_s)
        early = format_percent(100 * law.lost_within(1.0))
        option = "--lifetimes" if self.seen else "--lifetime"
        return (
            *(each.words for each in self.seen),
            f"{which} are taken to live {format_duration(law.quantile(0.5) * HOUR_S)} in the median, "
            f"{early} of them no hour, and all machines to start up within {start_up}: say what you know of yours "
            f"({option}, --start-up)",
        )


@dataclass(frozen=True, slots=True)
class Goal:
    """What is asked of a set of machines.

    Attributes:
        samples: That are to be trained on, over all epochs.
        batches: Samples in one step: every one that may be chosen, ascending.
        deadline_s: By when it must be done; None for no deadline.
        budget: What it may cost in all, in US dollars; None for no limit.
        most_machines: In a set.
        spot: Whether transient machines may be chosen too.
        transience: How long these live, and how long another takes to start.
        counts_start: Whether a run begins with the start-up of its machines. It does wherever transient machines may be
            chosen, since these are asked for with the others.

    Raises:
        InputError: where a number makes no sense, or there is neither a deadline nor a budget.
    """

    samples: float
    batches: tuple[int, ...]
    deadline_s: float | None = None
    budget: float | None = None
    most_machines: int = MOST_MACHINES
    spot: bool = False
    transience: Transience = field(default_factory=Transience)
    counts_start: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= _MOST_SAMPLES:
            raise InputError(f"{self.samples:g} samples are to be trained on; give 1 to {_MOST_SAMPLES:g} (--samples)")
        if not 1 <= self.most_machines <= _MOST_OF_MACHINES:
            raise InputError(
                f"a set of at most {self.most_machines} machines is asked for; give 1 to {_MOST_OF_MACHINES} "
                "(--max-machines)"
            )
        if self.deadline_s is None and self.budget is None:
            raise InputError("neither a deadline nor a budget is given; name one (--deadline 24h, --budget '300 USD')")
        if self.deadline_s is not None and not 0 < self.deadline_s < float("inf"):
            raise InputError(f"the deadline is {self.deadline_s:g} s; it must be above 0 and finite")
        if self.budget is not None and not 0 < self.budget <= _MOST_MONEY:
            raise InputError(
                f"the budget is {self.budget:g} {CURRENCY}; it must be above 0 and at most {_MOST_MONEY:g}"
            )
        if not self.batches or min(self.batches) < 1:
            raise InputError(f"the batches are {list(self.batches)}; give one of 1 sample or more (--batch)")

    @property
    def minimises_money(self) -> bool:
        """Return whether the cheapest set is wanted, as where there is a deadline; else the fastest."""
        return self.deadline_s is not None

    @property
    def better(self) -> str:
        """Return what a better set is."""
        return "cheaper" if self.minimises_money else "faster"

    @property
    def first_start_s(self) -> float:
        """Return the seconds until machines that stay compute, from when they are asked for."""
        return self.transience.start_up_s if self.spot or self.counts_start else 0.0

    def with_batch(self, batch: int) -> "Goal":
        """Return the goal with one batch."""
        return replace(self, batches=(batch,))

    def steps(self, batch: int) -> float:
        """Return how many steps of a batch all samples take."""
        return max(1.0, self.samples / batch)


def parse_duration(text: str, *, zero: bool = False) -> float:
    """Return the seconds of "24h", "90 min", "2 d" or "3600 s"; of "0s" too where nothing is a time as well.

    Raises:
        InputError: where it is no positive time with one unit.
    """
    match = _DURATION.fullmatch(text)
    if match is None or match[2] not in _UNITS_S:
        raise InputError(f"{short(text)} is no time: {_FORM}")
    seconds = float(match[1]) * _UNITS_S[match[2]]
    if not 0 <= seconds < float("inf") or (seconds == 0 and not zero):
        raise InputError(f"{short(text)} is no time {'of 0 or more' if zero else 'above 0'}: {_FORM}")
    return seconds


def parse_lifetime(text: str) -> Weibull:
    """Return the law of "20h" (at a constant rate, so long in the mean) or "20h,0.6" (Weibull: scale and shape).

    Raises:
        InputError: where it is neither.
    """
    scale, comma, shape = text.partition(",")
    scale_hours = parse_duration(scale) / HOUR_S
    if not comma:
        return exponential(scale_hours)
    if not re.fullmatch(rf"\s*{NUMBER}\s*", shape, re.ASCII):
        raise InputError(
            f"{short(text)} is no lifetime: give a mean such as 20h, or a Weibull's scale and shape, 20h,0.6"
        )
    return Weibull(float(shape), scale_hours)


def parse_money(text: str) -> float:
    """Return the US dollars of "300 USD" or "300".

    Raises:
        InputError: where it is no positive amount, or in another currency.
    """
    match = _MONEY.fullmatch(text)
    if match is None:
        raise InputError(f"{short(text)} is no amount of money: give one such as '300 {CURRENCY}'")
    if match[2] not in (None, CURRENCY):
        raise InputError(f"{short(text)} is in {match[2]}, and offers are priced in {CURRENCY}; give it in {CURRENCY}")
    amount = float(match[1])
    if not 0 < amount <= _MOST_MONEY:
        raise InputError(
            f"{short(text)} is no amount above 0 and up to {_MOST_MONEY:g}; give one such as '300 {CURRENCY}'"
        )
    return amount


def batches_between(least: int, most: int) -> tuple[int, ...]:
    """Return the batches of a range that are tried: the least, its doubles, and the most.

    Raises:
        InputError: where they are too many.
    """
    batch, found = least, [least]
    while batch * 2 < most:
        batch *= 2
        found.append(batch)
    if most > found[-1]:
        found.append(most)
    if len(found) > _MOST_BATCHES:
        raise InputError(
            f"the batches from {least} to {most} are {len(found)} doublings; give a range of {_MOST_BATCHES}"
        )
    return tuple(found)


def described(goal: Goal) -> str:
    """Say what a goal asks: "2e+09 samples within 24 h, on 16 machines at the most"."""
    limits = [] if goal.deadline_s is None else [f"within {format_duration(goal.deadline_s)}"]
    limits += [] if goal.budget is None else [f"for {format_money(goal.budget)} {CURRENCY}"]
    start = f", which start up within {format_duration(goal.first_start_s)}" if goal.first_start_s else ""
    machines = f"{counted(goal.most_machines, 'machine')} at the most{start}"
    return f"{goal.samples:g} samples {' and '.join(limits)}, on {machines}"
