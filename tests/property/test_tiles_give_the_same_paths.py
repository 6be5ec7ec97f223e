"""Segments made tile by tile give the paths that the list of all segments gives."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_problems import small_problem

from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.paths import (
    Deadline,
    ListedSegments,
    SegmentPrices,
    StageCounts,
    cheapest_path,
)
from heterps_compile.passes.placement.proof.tiled_paths import TiledSegments
from heterps_compile.passes.placement.proof.trivial_bounds import longest_s

NO_LIMIT = 10**9


@pytest.mark.slow  # more of the same kind on larger problems
@pytest.mark.parametrize("rows", [2, 3, 8])
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    slow=st.floats(0.02, 1.0),
    terms=st.tuples(st.sampled_from([0.0, 0.7, 1.0]), st.sampled_from([0.0, 0.4])),
    counts=st.sampled_from([StageCounts.at_least(1), StageCounts.at_least(4), StageCounts.between(2, 6)]),
)
def test_costs_to_go_and_kept_segments_are_the_same(
    rows: int, seed: int, slow: float, terms: tuple[float, float], counts: StageCounts
) -> None:
    problem = small_problem(seed, layers=30, types=3, units=40)
    chain = Chain(problem)
    slow_s = longest_s(problem) * slow * slow
    ratio, multiplier = terms
    prices = SegmentPrices(problem, slow_s, ratio * slow_s, np.full(problem.type_count, multiplier))
    tiled = TiledSegments(chain, prices, Deadline.after(None), rows)
    listed = ListedSegments(chain.all_segments(), prices, chain.length, Deadline.after(None))
    to_go = listed.to_go(counts)
    made = tiled.to_go(counts)
    assert made[0] == pytest.approx(to_go[0], rel=1e-9)
    if not np.isfinite(to_go[0, 0]):
        return
    path = cheapest_path(tiled, counts, made)
    assert path.first.tolist() == [0, *path.end[:-1].tolist()]
    assert prices.of(path.demand, path.type).sum() == pytest.approx(to_go[0, 0], rel=1e-9)
    for limit in (to_go[0, 0] * 1.02, to_go[0, 0] * 1.3):
        kept = tiled.keep_below(counts, made, limit, NO_LIMIT)
        expected = listed.keep_below(counts, to_go, limit, NO_LIMIT)
        assert kept is not None
        assert expected is not None
        triples = [list(zip(s.first, s.end, s.type, strict=True)) for s in (kept, expected)]
        assert triples[0] == triples[1]


def test_positions_that_lead_nowhere_are_no_trouble_where_no_plan_is_known() -> None:
    """A stage that must hold several layers in little memory: from some positions no path goes on."""
    problem = small_problem(1, layers=12, types=2, units=40)
    chain = Chain(problem)
    prices = SegmentPrices(problem, longest_s(problem), 0.0, np.zeros(2))
    tiled = TiledSegments(chain, prices, Deadline.after(None))
    counts = StageCounts.between(1, 2)
    to_go = tiled.to_go(counts)
    to_go[5] = np.inf
    kept = tiled.keep_below(counts, to_go, np.inf, NO_LIMIT)
    assert kept is not None
    assert len(kept) > 0
