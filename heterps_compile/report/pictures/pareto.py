"""Throughput against price: the cheapest plan at every one of several throughputs, and a picture of them.

The picture marks the plans that none of the others beats, and the one that was chosen.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.objective import plans_of_the_problem
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.readings import STEADY_STATE
from heterps_compile.units import format_count, format_money, format_rate

from .svg import WIDTH, Picture, legend, line, listed, picture, text

FLOORS = 12
_LEAST_PART, _MOST_PART = 0.1, 10.0  # of the chosen plan's throughput
_LEAST_SEARCH_S = 0.05
_LEFT, _NARROW_LEFT, _RIGHT, _HEIGHT, _TICK = 110.0, 56.0, 40.0, 260.0, 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """The cheapest plan found at a floor.

    Attributes:
        floor: Samples/s it had to reach; 0 for none.
        throughput_samples_per_s: That it reaches.
        price_per_hour: Of its units.
        is_proven: Whether no plan at this floor has a better objective.
        is_on_front: Whether no other point is at least as fast and cheaper, or as cheap and faster.
    """

    floor: float
    throughput_samples_per_s: float
    price_per_hour: float
    is_proven: bool
    is_on_front: bool = False


def usual_floors(throughput: float, count: int = FLOORS) -> list[float]:
    """Return floors around a plan's throughput, in equal ratios from a tenth to ten times, itself among them."""
    ratio = (_MOST_PART / _LEAST_PART) ** (1 / (count - 1))
    return sorted([throughput, *(throughput * _LEAST_PART * ratio**i for i in range(count))])


def pareto(
    problem: Problem, floors: Sequence[float], *, time_limit_s: float = 10.0, warm_start: Placement | None = None
) -> tuple[Point, ...]:
    """Search the cheapest plan at every floor, ascending in throughput; a floor that nothing reaches has no point.

    Args:
        problem: Whose objective, budget and floor are replaced: every point is the cheapest per sample.
        floors: Samples/s.
        time_limit_s: For all searches together; those it leaves no time for are left out.
        warm_start: Where to begin.
    """
    deadline = time.monotonic() + time_limit_s
    search, found = Exact(), list[Point]()
    for done, floor in enumerate(sorted(set(floors))):
        left_s = deadline - time.monotonic()
        if left_s < _LEAST_SEARCH_S:
            break
        asked = replace(problem, objective="cost", min_throughput=floor, budget_per_hour=math.inf)
        try:
            result = search(asked, time_limit_s=left_s / (len(set(floors)) - done), warm_start=warm_start)
        except InfeasibleError:
            continue
        priced = detail(asked, result.placement)
        found.append(Point(floor, priced.throughput, priced.price_per_hour, result.gap == 0))
        warm_start = result.placement
    return _with_front(found)


def _with_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Mark the points that no other beats; return all by throughput, then price."""
    marked, cheapest = [], math.inf
    for point in sorted(points, key=lambda p: (-p.throughput_samples_per_s, p.price_per_hour)):
        marked.append(replace(point, is_on_front=point.price_per_hour < cheapest))
        cheapest = min(cheapest, point.price_per_hour)
    return tuple(reversed(marked))


def has_choice(plan: Plan, points: Sequence[Point]) -> bool:
    """Tell whether there is another plan to choose: another throughput or another price, as they are printed."""
    ends = {_ends(p.throughput_samples_per_s, p.price_per_hour, plan) for p in points if p.price_per_hour > 0}
    return bool(ends - {_ends(plan.throughput_samples_per_s, plan.price_per_hour, plan)})


def pareto_front(plan: Plan, points: Sequence[Point], *, width: float = WIDTH) -> Picture:
    """Draw price per hour over samples per second, both logarithmic: dots, the front as steps, the plan as a star."""
    paid = [point for point in points if point.price_per_hour > 0]
    rates = [plan.throughput_samples_per_s, *(point.throughput_samples_per_s for point in paid)]
    prices = [price for price in (plan.price_per_hour, *(point.price_per_hour for point in paid)) if price > 0] or [1.0]
    reached = format_rate(plan.throughput_samples_per_s)
    this = f"this plan: {reached}, {_price(plan.price_per_hour, plan.currency)}" if plan.price_per_hour > 0 else ""
    told = [("p4", this or "this plan is free"), ("p0", "the cheapest plan per sample at a throughput floor")]
    ends = {point: _ends(point.throughput_samples_per_s, point.price_per_hour, plan) for point in paid}
    front = {ends[point] for point in paid if point.is_on_front}
    beaten = {point for point in paid if ends[point] not in front}
    if beaten:
        told.append(("soft", "another plan is as fast and cheaper"))
    if any(point.is_proven for point in paid):
        layers = sum(len(stage.layers) for stage in plan.stages)
        but = "" if all(point.is_proven for point in paid) else ", but where it says best found in time"
        told.append(("", f"no {plans_of_the_problem(layers)} is cheaper per sample at these floors{but}"))
    parts, top = legend(told, width)
    parts.append(text(12, top + 8, f"{plan.currency}/h over samples/s in the {STEADY_STATE}", "soft"))
    top += 28
    left = _LEFT if width >= WIDTH else _NARROW_LEFT
    across, up = Axis(rates, left, width - _RIGHT), Axis(prices, top + _HEIGHT, top)
    for value in across.ticks(round((width - left) / _TICK)):
        parts += [line(across(value), top, across(value), top + _HEIGHT, "grid")]
        parts += [text(across(value), top + _HEIGHT + 18, format_count(value), "soft small", "middle")]
    for value in up.ticks(round(_HEIGHT / _TICK)):
        parts += [line(left, up(value), width - _RIGHT, up(value), "grid")]
        parts += [text(left - 8, up(value) + 4, format_money(value), "soft small", "end")]
    corners = [(across(p.throughput_samples_per_s), up(p.price_per_hour)) for p in paid if p.is_on_front]
    if corners:
        path = f"M{corners[0][0]:.1f} {corners[0][1]:.1f}" + "".join(f"V{y:.1f}H{x:.1f}" for x, y in corners[1:])
        parts.append(f'<path class="edge s0" d="{path}"/>')
    for point in paid:
        x, y = across(point.throughput_samples_per_s), up(point.price_per_hour)
        parts.append(f'<circle class="{"soft" if point in beaten else "p0"}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>')
    if plan.price_per_hour > 0:
        x, y = across(plan.throughput_samples_per_s), up(plan.price_per_hour)
        parts.append(f'<path class="p4" d="{star(x, y, 10)}"/>')
    below, height = listed(list(_told(plan, paid)), width, top + _HEIGHT + 28)
    return picture("pareto", "Throughput against price", height, [*parts, *below], width=width)


def _told(plan: Plan, points: Sequence[Point]) -> Iterator[str]:
    """Yield every point in words, in the order of throughput."""
    proven = {_ends(p.throughput_samples_per_s, p.price_per_hour, plan) for p in points if p.is_proven}
    for said in dict.fromkeys(_ends(p.throughput_samples_per_s, p.price_per_hour, plan) for p in points):
        yield said if said in proven else f"{said}, best found in time"


def _ends(samples_per_s: float, price_per_hour: float, plan: Plan) -> str:
    return f"{format_rate(samples_per_s)}, {_price(price_per_hour, plan.currency)}"


def _price(price_per_hour: float, currency: str) -> str:
    return f"{format_money(price_per_hour)} {currency}/h"


def star(x: float, y: float, size: float) -> str:
    """Return the path of a star around a point."""
    corners = []
    for i in range(10):
        angle, radius = math.pi * i / 5, size if i % 2 == 0 else size * 0.45
        corners.append(f"{x + radius * math.sin(angle):.1f} {y - radius * math.cos(angle):.1f}")
    return f"M{'L'.join(corners)}Z"


class Axis:
    """A logarithmic axis: values to pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self._least, self._greatest = math.log10(min(values)), math.log10(max(values))
        self._low, self._high = self._least - 0.05, self._greatest + 0.05
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
        """Return where a value is drawn."""
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return self._first + part * (self._last - self._first)

    def ticks(self, most: int) -> list[float]:
        """Return 1, 2 and 5 of every power of ten inside, or 1 alone where they are more than ``most``; two at least.

        Values between which no such number lies are marked themselves.
        """
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            values = [step * 10.0**power for power in powers for step in steps]
            inside = [value for value in values if self._low <= math.log10(value) <= self._high]
            if len(inside) <= max(2, most):
                break
        return inside if len(inside) > 1 else [10**self._least, 10**self._greatest]
