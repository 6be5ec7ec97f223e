"""Throughput against price: the cheapest plan at every one of several throughputs, and a picture of them.

The picture marks the plans that none of the others beats, and the one that was chosen.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.objective import plans_of_the_problem
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.readings import STEADY_STATE
from heterps_compile.units import format_count, format_money, format_rate

from .svg import WIDTH, Picture, legend, line, picture, safe, text

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
    """Tell whether there is a plan to choose beside this one: another throughput or another price."""
    ends = {(point.throughput_samples_per_s, point.price_per_hour) for point in points if point.price_per_hour > 0}
    return bool(ends - {(plan.throughput_samples_per_s, plan.price_per_hour)})


def pareto_front(plan: Plan, points: Sequence[Point], *, width: float = WIDTH) -> Picture:
    """Draw price per hour over samples per second, both logarithmic: dots, the front as steps, the plan as a star."""
    paid = [point for point in points if point.price_per_hour > 0]
    rates = [plan.throughput_samples_per_s, *(point.throughput_samples_per_s for point in paid)]
    prices = [price for price in (plan.price_per_hour, *(point.price_per_hour for point in paid)) if price > 0] or [1.0]
    reached = format_rate(plan.throughput_samples_per_s)
    this = f"this plan: {reached}, {_price(plan.price_per_hour, plan.currency)}" if plan.price_per_hour > 0 else ""
    told = [("p4", this or "this plan is free"), ("p0", "the cheapest plan per sample at a throughput floor")]
    parts, top = legend(told, width)
    parts.append(text(12, top + 8, f"{plan.currency}/h over samples/s in the {STEADY_STATE}", "soft"))
    top += 28
    left = _LEFT if width >= WIDTH else _NARROW_LEFT
    across, up = _Axis(rates, left, width - _RIGHT), _Axis(prices, top + _HEIGHT, top)
    for value in across.ticks(round((width - left) / _TICK)):
        parts += [line(across(value), top, across(value), top + _HEIGHT, "grid")]
        parts += [text(across(value), top + _HEIGHT + 18, format_count(value), "soft small", "middle")]
    for value in up.ticks(round(_HEIGHT / _TICK)):
        parts += [line(left, up(value), width - _RIGHT, up(value), "grid")]
        parts += [text(left - 8, up(value) + 4, format_money(value), "soft small", "end")]
    front = [(across(p.throughput_samples_per_s), up(p.price_per_hour)) for p in paid if p.is_on_front]
    if front:
        path = f"M{front[0][0]:.1f} {front[0][1]:.1f}" + "".join(f"V{y:.1f}H{x:.1f}" for x, y in front[1:])
        parts.append(f'<path class="edge s0" d="{path}"/>')
    for point in paid:
        parts.append(_dot(point, across(point.throughput_samples_per_s), up(point.price_per_hour), plan))
    if plan.price_per_hour > 0:
        x, y = across(plan.throughput_samples_per_s), up(plan.price_per_hour)
        parts.append(f'<path class="p4" d="{_star(x, y, 10)}"><title>{safe(this)}</title></path>')
    return picture("pareto", "Throughput against price", top + _HEIGHT + 30, parts, width=width)


def _price(price_per_hour: float, currency: str) -> str:
    return f"{format_money(price_per_hour)} {currency}/h"


def _dot(point: Point, x: float, y: float, plan: Plan) -> str:
    proof = "best found in time"
    if point.is_proven:
        layers = sum(len(stage.layers) for stage in plan.stages)
        proof = f"no {plans_of_the_problem(layers)} is cheaper per sample at this floor"
    words = f"{format_rate(point.throughput_samples_per_s)}, {_price(point.price_per_hour, plan.currency)}: {proof}"
    classes = "p0" if point.is_on_front else "soft"
    return f'<circle class="{classes}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"><title>{safe(words)}</title></circle>'


def _star(x: float, y: float, size: float) -> str:
    corners = []
    for i in range(10):
        angle, radius = math.pi * i / 5, size if i % 2 == 0 else size * 0.45
        corners.append(f"{x + radius * math.sin(angle):.1f} {y - radius * math.cos(angle):.1f}")
    return f"M{'L'.join(corners)}Z"


class _Axis:
    """A logarithmic axis: values to pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        self._least, self._greatest = math.log10(min(values)), math.log10(max(values))
        self._low, self._high = self._least - 0.05, self._greatest + 0.05
        self._first, self._last = first, last

    def __call__(self, value: float) -> float:
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
