"""Which number of the pool or of the request decides between two plans: the one that would have to change least.

A lever is a price, a bandwidth or all of them, a latency, the memory or the units of a device type, the floor, the
budget. It is moved away from what it is, all else as it is, until the other placement is worth as much as the plan's;
both are priced anew at every step, with the best replicas each. The number is doubled, or halved, until that is so, and
then found by bisection: a window between two doublings may be missed.

Left out: levers that move together; plans other than those given.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite, log

import numpy as np

from heterps_compile.cost.problem import FREE_PRICE_PER_HOUR, Floats, Placement, Problem
from heterps_compile.cost.server_cost import UNITS_ALONE, Pricing
from heterps_compile.units import format_bytes, format_money, format_percent, format_rate, format_seconds

_STEP, _STEPS, _BISECTIONS = 2.0, 10, 20  # up to a thousand times the number, and to six digits


EVERY_BANDWIDTH = "every bandwidth"


@dataclass(frozen=True, slots=True)
class Decisive:
    """A number at which another placement is worth as much as the plan's.

    Attributes:
        name: Of the lever: ``"price of 'v100'"``.
        now: What it is.
        needed: What it would have to be, this much or further away from what it is.
        text: Both in words, with their unit.
    """

    name: str
    now: float
    needed: float
    text: str

    @property
    def factor(self) -> float:
        """Return how many times what it is it would have to be."""
        return self.needed / self.now


@dataclass(frozen=True, slots=True)
class Lever:
    """A number that can be moved.

    Attributes:
        name: Of it.
        now: What it is.
        scaled: Returns the problem with the number multiplied.
        words: Prints it.
        may_fall: Whether a smaller number could help anything.
    """

    name: str
    now: float
    scaled: Callable[[Problem, float], Problem]
    words: Callable[[float], str]
    may_fall: bool = True


def what_decides(
    problem: Problem, plan: Placement, others: Sequence[Sequence[Placement]], pricing: Pricing = UNITS_ALONE
) -> tuple[tuple[Decisive, ...], ...]:
    """Return for every alternative the levers that would make it worth as much as the plan's, the nearest first.

    None where it is worth as much already, and where no lever does within a factor of a thousand.

    Args:
        problem: The problem.
        plan: The plan's placement.
        others: Alternatives, each of one placement or of several, of which the best counts at every number.
        pricing: What placements cost.
    """
    found: list[list[Decisive]] = [[] for _ in others]
    for lever in levers(problem):
        for number, factor in enumerate(_nearest(problem, lever, plan, others, pricing)):
            if factor is not None:
                found[number].append(_decisive(lever, factor))
    return tuple(tuple(sorted(row, key=_distance)) for row in found)


def _distance(decisive: Decisive) -> float:
    """Return how far a number would have to move; of all bandwidths at once, as far again as half of that."""
    return abs(log(decisive.factor)) * (1.5 if decisive.name == EVERY_BANDWIDTH else 1.0)


def levers(problem: Problem) -> Iterator[Lever]:
    """Yield the levers of a problem."""
    per_hour = f" {problem.currency}/h".replace(" /h", " an hour")
    for t, name in enumerate(problem.type_names):
        price = float(problem.price_per_hour[t])
        if price > FREE_PRICE_PER_HOUR:
            yield Lever(f"price of {name!r}", price, _scale("price_per_hour", t), lambda x: format_money(x) + per_hour)
        yield Lever(
            f"memory of {name!r}",
            float(problem.memory_bytes[t]),
            _scale("memory_bytes", t),
            format_bytes,
            may_fall=False,
        )
        if problem.max_units[t] > 0:
            units = float(problem.max_units[t])
            yield Lever(f"units of {name!r}", units, _units(t), lambda x: f"{int(x):,}", may_fall=False)
    yield from _links(problem)
    yield Lever(EVERY_BANDWIDTH, 1.0, _every_bandwidth, lambda x: f"{x:.3g} times what it is")
    if problem.min_throughput > 0:
        yield Lever(
            "throughput floor",
            problem.min_throughput,
            lambda p, factor: replace(p, min_throughput=p.min_throughput * factor),
            format_rate,
        )
    if isfinite(problem.budget_per_hour):
        yield Lever(
            "budget",
            problem.budget_per_hour,
            lambda p, factor: replace(p, budget_per_hour=p.budget_per_hour * factor),
            lambda x: format_money(x) + per_hour,
            may_fall=False,
        )


def _links(problem: Problem) -> Iterator[Lever]:
    names, links = problem.type_names, problem.link_seconds_per_byte
    for t, name in enumerate(names):
        if links is None:
            per_byte, latency_s = float(problem.seconds_per_byte[t]), float(problem.latency_s[t])
            pairs = [(f"of {name!r}", per_byte, latency_s, t)]
        else:
            assert problem.link_latency_s is not None  # noqa: S101 - both or none
            pairs = [
                (f"between {name!r} and {names[u]!r}", float(links[t, u]), float(problem.link_latency_s[t, u]), u)
                for u in range(t, len(names))
            ]
        for which, per_byte, latency_s, other in pairs:
            if per_byte > 0:
                yield Lever(f"bandwidth {which}", 1 / per_byte, _bandwidth(t, other), lambda x: f"{format_bytes(x)}/s")
            if latency_s > 0:
                yield Lever(f"latency {which}", latency_s, _latency(t, other), format_seconds)


def _scale(field: str, index: int) -> Callable[[Problem, float], Problem]:
    def scaled(problem: Problem, factor: float) -> Problem:
        changed = getattr(problem, field).copy()
        changed[index] *= factor
        return replace(problem, **{field: changed})

    return scaled


def _units(index: int) -> Callable[[Problem, float], Problem]:
    def scaled(problem: Problem, factor: float) -> Problem:
        changed = problem.max_units.copy()
        together = 1 if problem.rented_together is None else int(problem.rented_together[index])
        changed[index] = int(changed[index] * factor * (1 + 1e-12)) // together * together
        return replace(problem, max_units=changed)

    return scaled


def _bandwidth(one: int, other: int) -> Callable[[Problem, float], Problem]:
    def scaled(problem: Problem, factor: float) -> Problem:
        factors = np.ones(problem.type_count)
        if one == other:  # replicas of a type synchronise over its own link
            factors[one] = factor
        problem = _agreeing_faster(problem, factors)
        if problem.link_seconds_per_byte is None:
            per_byte = problem.seconds_per_byte.copy()
            per_byte[one] /= factor
            return replace(problem, seconds_per_byte=per_byte)
        links = problem.link_seconds_per_byte.copy()
        links[one, other] /= factor
        if one != other:
            links[other, one] /= factor
        return replace(problem, link_seconds_per_byte=links, seconds_per_byte=links.min(axis=1))

    return scaled


def _agreeing_faster(problem: Problem, factors: Floats) -> Problem:
    """Return a problem whose replicas agree over that many times the bandwidth, [T]."""
    rules = None if problem.rules is None else tuple(each.on_faster_links(factors) for each in problem.rules)
    return replace(problem, sync_s=problem.sync_s / factors, rules=rules)


def _every_bandwidth(problem: Problem, factor: float) -> Problem:
    links = problem.link_seconds_per_byte
    return replace(
        _agreeing_faster(problem, np.full(problem.type_count, factor)),
        seconds_per_byte=problem.seconds_per_byte / factor,
        link_seconds_per_byte=None if links is None else links / factor,
    )


def _latency(one: int, other: int) -> Callable[[Problem, float], Problem]:
    def scaled(problem: Problem, factor: float) -> Problem:
        if problem.link_latency_s is None:
            latency_s = problem.latency_s.copy()
            latency_s[one] *= factor
            return replace(problem, latency_s=latency_s)
        links = problem.link_latency_s.copy()
        links[one, other] *= factor
        if one != other:
            links[other, one] *= factor
        return replace(problem, link_latency_s=links, latency_s=links.min(axis=1))

    return scaled


def _nearest(
    problem: Problem, lever: Lever, plan: Placement, others: Sequence[Sequence[Placement]], pricing: Pricing
) -> list[float | None]:
    """Return for every alternative the factor nearest to 1 at which it is worth as much as the plan's, or None."""
    found: list[float | None] = [None] * len(others)
    open_ = np.array([not wins for wins in _wins(problem, plan, others, pricing)])
    if not _matters(problem, lever, [plan, *(p for other in others for p in other)], pricing):
        return found
    for step in range(1, _STEPS + 1):
        if not open_.any():
            break
        for base in (_STEP, 1 / _STEP) if lever.may_fall else (_STEP,):
            far = _wins(lever.scaled(problem, base**step), plan, others, pricing)
            for number in map(int, np.flatnonzero(open_ & far)):
                factors = base ** (step - 1), base**step
                found[number] = _bisected(problem, lever, factors, plan, others[number], pricing=pricing)
                open_[number] = False
    return found


def _matters(problem: Problem, lever: Lever, placements: list[Placement], pricing: Pricing) -> bool:
    """Whether a lever, moved as far as it goes, changes the value of any placement."""
    values, most = pricing.values(problem, placements), _STEP**_STEPS
    ends = (most, 1 / most) if lever.may_fall else (most,)
    return any(not np.array_equal(pricing.values(lever.scaled(problem, end), placements), values) for end in ends)


def _bisected(
    problem: Problem,
    lever: Lever,
    factors: tuple[float, float],
    plan: Placement,
    other: Sequence[Placement],
    *,
    pricing: Pricing,
) -> float:
    """Return a factor between one at which the plan wins and one at which the other does; the other does there."""
    near, far = factors
    for _ in range(_BISECTIONS):
        middle = (near * far) ** 0.5
        if _wins(lever.scaled(problem, middle), plan, [other], pricing)[0]:
            far = middle
        else:
            near = middle
    return far


def _wins(problem: Problem, plan: Placement, others: Sequence[Sequence[Placement]], pricing: Pricing) -> list[bool]:
    values = pricing.values(problem, [plan, *(p for other in others for p in other)])
    ends = np.cumsum([1, *(len(other) for other in others)])
    best = [float(np.min(values[begin:end], initial=np.inf)) for begin, end in pairwise(ends)]
    return [isfinite(value) and value <= float(values[0]) for value in best]


def _decisive(lever: Lever, factor: float) -> Decisive:
    needed = lever.now * factor
    if lever.name.startswith("units of"):
        needed = float(int(needed * (1 + 1e-12)))
    at = "or more" if factor > 1 else "or less"
    change = format_percent(100 * (needed / lever.now - 1))
    now = "" if lever.name == EVERY_BANDWIDTH else f"now {lever.words(lever.now)}, "
    which = lever.name if lever.name == EVERY_BANDWIDTH else f"the {lever.name}"
    text = f"{which} were {lever.words(needed)} {at} ({now}{'+' if factor > 1 else ''}{change})"
    return Decisive(lever.name, lever.now, needed, text)
