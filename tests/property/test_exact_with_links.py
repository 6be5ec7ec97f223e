"""Where pairs of types have links of their own, the exact search still finds what brute force finds, and proves it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimum import ROUNDING, assert_same_optimum, solve
from small_problems import linked, small_problem, small_problems, small_problems_for

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import flatten_stages
from heterps_compile.passes.placement.baselines.brute import Brute
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.effort import Effort, LinkEffort
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.linked_chain import LinkedChain, linked_segment_count

SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=40, deadline=None)
@given(problem=st.builds(linked, small_problems(max_layers=6), SEEDS))
def test_exact_finds_the_optimum_and_proves_it(problem: Problem) -> None:
    assert_same_optimum(problem)


@settings(max_examples=30, deadline=None)
@given(problem=st.builds(linked, small_problems(max_layers=6, units=2), SEEDS))
def test_exact_finds_the_optimum_where_stages_compete_for_units(problem: Problem) -> None:
    assert_same_optimum(problem)


@settings(max_examples=12, deadline=None)
@given(problem=st.builds(linked, small_problems(max_layers=8, units=4), SEEDS))
def test_exact_finds_the_optimum_of_eight_layers(problem: Problem) -> None:
    assert_same_optimum(problem)


@pytest.mark.parametrize("objective", ["price", "throughput", "latency", "max-load"])
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_exact_finds_the_optimum_of_other_objectives(objective: str, data: st.DataObject) -> None:
    assert_same_optimum(linked(data.draw(small_problems_for(objective, max_layers=5)), data.draw(SEEDS)))


@pytest.mark.slow  # more of the same kind on larger problems
@pytest.mark.parametrize("most_segments", [200, 10**9])
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, structure=st.booleans(), units=st.sampled_from([2, 20]))
def test_without_counting_all_placements_the_bound_is_honest_and_chains_are_proven(
    most_segments: int, seed: int, structure: bool, units: int
) -> None:
    problem = linked(small_problem(seed, layers=6, types=3, structure=structure, units=units), seed)
    best = solve(Brute(), problem)
    links = LinkEffort(most_enumerated=0, most_segments=most_segments)
    found = solve(Exact(Effort(links=links)), problem)
    if best is None:
        assert found is None
    elif found is not None:  # a search that leaves a gap may find none
        assert found.bound <= best.value * (1 + ROUNDING)
        assert found.value >= best.value * (1 - ROUNDING)
        if not structure:
            assert found.bound == found.value == pytest.approx(best.value, rel=ROUNDING)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, structure=st.booleans())
def test_segments_that_know_their_neighbours_bound_stages_and_tell_them_on_chains(seed: int, structure: bool) -> None:
    problem = linked(small_problem(seed, layers=6, types=3, structure=structure), seed)
    chain = LinkedChain(Chain(problem))
    segments = chain.all_segments()
    assert len(segments) <= linked_segment_count(Chain(problem))
    rng = np.random.default_rng(seed)
    following = {state: np.flatnonzero(segments.first == state) for state in np.unique(segments.first).tolist()}
    for _ in range(20):
        state, steps = 0, []
        while state != chain.length and state in following:
            steps.append(int(rng.choice(following[state])))
            state = int(segments.end[steps[-1]])
        if state != chain.length:
            continue  # a memory that no next segment fits
        path = segments.keep(np.array(steps))
        placement = chain.placement(path)
        cuts = np.isin(np.arange(problem.layer_count), placement.cuts)[None]
        stages = flatten_stages(problem, np.array([placement.types]), cuts)
        assert stages.type.tolist() == path.type.tolist()
        true = stages.work.demand()
        for name in ("once_s", "fixed_data_s", "shared_data_s", "shared_compute_s"):
            known = getattr(true, name)
            assert np.all(getattr(path.demand, name) <= known + ROUNDING * np.abs(known) + 1e-12)
            if chain.is_exact:
                assert getattr(path.demand, name) == pytest.approx(getattr(true, name), rel=ROUNDING, abs=1e-12)


def test_links_that_are_all_alike_change_nothing() -> None:
    problem = small_problem(5, layers=12, types=3, structure=False, units=50, memory=False)
    alike = replace(
        problem,
        link_seconds_per_byte=np.repeat(problem.seconds_per_byte[:, None], 3, axis=1),
        link_latency_s=np.repeat(problem.latency_s[:, None], 3, axis=1),
    )
    assert Exact()(alike).value == pytest.approx(Exact()(problem).value, rel=ROUNDING)
