"""The path within limits on units whose units cost least, by a table: what all paths one by one say."""

from collections.abc import Iterator

import numpy as np
import pytest

from heterps_compile.cost.problem import Floats
from heterps_compile.cost.replicas import ReplicaDemand
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline, TimeUpError
from heterps_compile.passes.placement.geometry import Segments
from heterps_compile.passes.placement.proof.paths import StageCounts
from heterps_compile.passes.placement.proof.units_table import UnitLimits, cheapest_within


def listed(cells: list[tuple[int, int, int]]) -> Segments:
    first, end, types = (np.array(column, np.int64) for column in zip(*cells, strict=True))
    none = np.zeros(len(cells))
    return Segments(first, end, types, ReplicaDemand(none, none, none, none, none, none))


def every_path(segments: Segments, length: int, position: int = 0) -> Iterator[list[int]]:
    if position == length:
        yield []
    for number in np.flatnonzero(segments.first == position).tolist():
        for rest in every_path(segments, length, int(segments.end[number])):
            yield [number, *rest]


def paid(segments: Segments, units: Floats, limits: UnitLimits, path: list[int]) -> float:
    counts = limits.counts
    used = np.bincount(segments.type[path], units[path], len(limits.most))
    is_counted = counts.least <= len(path) and (counts.more or len(path) <= counts.last)
    if not is_counted or np.any(used > limits.most):
        return np.inf
    cost = float(limits.price @ used)
    return cost if cost <= limits.money else np.inf


@pytest.mark.parametrize("seed", range(40))
def test_it_is_the_cheapest_of_all_paths_within_the_limits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    length, types = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    cells = [
        (a, c, t) for a in range(length) for c in range(a + 1, length + 1) for t in range(types) if rng.random() < 0.8
    ]
    if not cells:
        return
    segments = listed(cells)
    units = np.where(rng.random(len(cells)) < 0.1, np.inf, rng.integers(1, 5, len(cells))).astype(np.float64)
    counts = StageCounts.at_least(int(rng.integers(1, 4))) if seed % 2 else StageCounts.between(1 + seed % 3, 4)
    money = float(rng.integers(2, 20)) if rng.random() < 0.5 else np.inf
    price = np.zeros(types) if seed % 5 == 0 else rng.integers(1, 4, types).astype(np.float64)
    limits = UnitLimits(rng.integers(0, 8, types), price, money, counts)
    best = min((paid(segments, units, limits, path) for path in every_path(segments, length)), default=np.inf)
    found = cheapest_within(segments, units, limits, length, NO_DEADLINE)
    assert (np.inf if found is None else paid(segments, units, limits, found.tolist())) == best


@pytest.mark.parametrize(("most", "is_path"), [([3, 3], False), ([4, 0], True), ([3, 4], False), ([2, 2], False)])
def test_stages_share_the_units_of_their_type(most: list[int], is_path: bool) -> None:
    segments, units = listed([(0, 1, 0), (1, 2, 0)]), np.array([2.0, 2.0])
    limits = UnitLimits(np.array(most), np.ones(2), np.inf, StageCounts.at_least(1))
    assert (cheapest_within(segments, units, limits, 2, NO_DEADLINE) is not None) == is_path


def test_the_type_with_the_most_units_needs_no_numbers_of_its_own() -> None:
    limits = UnitLimits(np.array([1000, 32, 4]), np.ones(3), np.inf, StageCounts.at_least(1))
    assert limits.shape == (1, 33, 5, 1)


def test_it_stops_at_the_deadline() -> None:
    limits = UnitLimits(np.array([3]), np.ones(1), np.inf, StageCounts.at_least(1))
    with pytest.raises(TimeUpError):
        cheapest_within(listed([(0, 1, 0)]), np.ones(1), limits, 1, Deadline.after(0.0))
