"""Throughput against price: the cheapest plan at every one of several throughputs, and which of them nothing beats.

Left out: the picture (``pictures_pareto.py``).
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.proof.exact import Exact

FLOORS = 12
_LEAST_PART, _MOST_PART = 0.1, 10.0  # of the chosen plan's throughput
_LEAST_SEARCH_S = 0.05


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
    """Mark the points that no other beats; give all by throughput, then price."""
    marked, cheapest = [], math.inf
    for point in sorted(points, key=lambda p: (-p.throughput_samples_per_s, p.price_per_hour)):
        marked.append(replace(point, is_on_front=point.price_per_hour < cheapest))
        cheapest = min(cheapest, point.price_per_hour)
    return tuple(reversed(marked))
