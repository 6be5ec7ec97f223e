"""Labels find the path that a mixed-integer programme finds, whatever the fees and the bound they begin with."""

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from small_problems import plain_problem

from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.placement.geometry import Chain, Segments
from heterps_compile.passes.placement.proof.effort import LabelEffort
from heterps_compile.passes.placement.proof.label_setting import LimitedPaths
from heterps_compile.passes.placement.proof.path_programme import Coupling, coupled_path

LENGTH, TYPES = 5, 3
SEGMENTS = Chain(plain_problem([[1.0] * TYPES] * LENGTH, [1.0] * TYPES)).all_segments()
UNITS = 1 + (SEGMENTS.end - SEGMENTS.first) // 2  # fewer for one long segment than for many short ones


def cheapest_rest(segments: Segments, cost: np.ndarray) -> np.ndarray:
    to_go = np.full(LENGTH + 1, np.inf)
    to_go[LENGTH] = 0.0
    for first in range(LENGTH - 1, -1, -1):
        begins = segments.first == first
        to_go[first] = (cost[begins] + to_go[segments.end[begins]]).min()
    return to_go


@settings(max_examples=40, deadline=None)
@given(
    prices=st.tuples(*[st.integers(1, 9)] * TYPES),
    noise=st.integers(0, 2**32 - 1),
    limits=st.tuples(*[st.integers(0, 4)] * TYPES),
    fees=st.tuples(*[st.floats(0, 20)] * TYPES),
    share=st.floats(0.01, 1.0),
    most_work=st.sampled_from([10**6, 40]),
)
@example(prices=(1, 1, 1), noise=0, limits=(1, 1, 3), fees=(0.0, 0.0, 0.0), share=0.5, most_work=10**6)
def test_labels_find_what_a_programme_finds(
    *,
    prices: tuple[int, ...],
    noise: int,
    limits: tuple[int, ...],
    fees: tuple[float, ...],
    share: float,
    most_work: int,
) -> None:
    price, fee, most = np.array(prices, np.float64), np.array(fees), np.array(limits)
    cost = price[SEGMENTS.type] * UNITS * np.random.default_rng(noise).uniform(1, 2, len(SEGMENTS))
    coupling = Coupling(LENGTH, most * 1.0, least=1, most=LENGTH, unit_price=price, budget=np.inf)
    optimum = coupled_path(SEGMENTS, cost, UNITS * 1.0, coupling, Deadline.after(60.0))
    with_fees = cost + fee[SEGMENTS.type] * UNITS
    to_go = cheapest_rest(SEGMENTS, with_fees)
    paths = LimitedPaths(SEGMENTS, with_fees, UNITS * 1.0, most, multipliers=fee, to_go=to_go)
    bound = share * cheapest_rest(SEGMENTS, cost)[0]
    found = paths.cheapest(price, float(bound), 1e3, LabelEffort(most_steps=most_work))
    assert found.bound <= optimum.bound * (1 + 1e-9)
    if found.chosen is not None:
        assert cost[found.chosen].sum() == pytest.approx(found.cost)
        assert found.cost >= optimum.bound * (1 - 1e-9)
        assert SEGMENTS.first[found.chosen].tolist() == [0, *SEGMENTS.end[found.chosen][:-1].tolist()]
        assert np.all(np.bincount(SEGMENTS.type[found.chosen], UNITS[found.chosen], TYPES) <= most)
    assume(most_work > 40)
    if np.isinf(optimum.bound):
        assert (found.bound, found.chosen) == (1e3, None)
    else:
        assert found.bound == found.cost == pytest.approx(optimum.bound)
