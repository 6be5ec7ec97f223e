"""What the fullest accelerator can hold, and the bound that prices give: below every split, above what ignores cuts."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_workloads import brute_force, drawn, workloads

from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.max_load import fullest as fullest_module
from heterps_compile.passes.max_load.blocks import Blocks, contract
from heterps_compile.passes.max_load.fullest import Fullest, narrow_order, states_of
from heterps_compile.passes.max_load.load_bounds import price_bound, simple_bound

CHAIN = drawn("1 4/40 out=1 -> 2\n2 3/30 out=1 -> 3\n3 3/30 out=1 -> 4\n4 4/9")


def load_ms(blocks: Blocks, held: tuple[int, ...]) -> float:
    cut = [0 < len(set(net) & set(held)) < len(net) for net in blocks.nets]
    return float(blocks.accelerator_ms[list(held)].sum() + blocks.net_ms[cut].sum())


def subsets(blocks: Blocks) -> list[tuple[int, ...]]:
    usable = np.flatnonzero(blocks.on_accelerator).tolist()
    return [held for size in range(len(usable) + 1) for held in combinations(usable, size)]


def test_the_fullest_set_pays_for_what_it_cuts():
    blocks = contract(CHAIN, None)
    fullest = Fullest(blocks, states_of(blocks, NO_DEADLINE), 15.0, NO_DEADLINE)
    most = fullest(np.array([4, 3, 3, 4], np.int32))
    at = {load: int(load / fullest.step_ms) for load in (4, 5, 7, 8, 13, 14)}
    #  a set      -> a      a b     b c: 8, and 6 of price           all of it, nothing cut
    assert {load: int(most[at[load]]) for load in at} == {4: 0, 5: 4, 7: 4, 8: 7, 13: 11, 14: 14}
    assert sorted(fullest.best_set(at[8])) in ([0, 1], [2, 3])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(workloads(), st.lists(st.integers(0, 50), min_size=8, max_size=8), st.integers(1, 30))
def test_no_set_holds_more_than_the_fullest_and_the_fullest_is_a_set_but_for_steps(workload, prices, steps):
    try:
        blocks = contract(workload, None)
    except InfeasibleError:
        return
    price = np.array(prices[: blocks.count], np.int32)
    loads = {held: load_ms(blocks, held) for held in subsets(blocks)}
    most_ms = max(loads.values())
    if most_ms == 0:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fullest_module, "_MOST_STEPS", steps)
        fullest = Fullest(blocks, states_of(blocks, NO_DEADLINE), most_ms, NO_DEADLINE)
        most = fullest(price)
    for held, held_ms in loads.items():
        assert most[min(int(held_ms / fullest.step_ms * (1 + 1e-12)), steps)] >= price[list(held)].sum()
    for load in (0, steps // 2, steps):
        held = tuple(fullest.best_set(load))
        cuts = sum(0 < len(set(net) & set(held)) < len(net) for net in blocks.nets)
        assert price[list(held)].sum() == most[load]
        # every block rounds down by less than a step, every cut net by one, and by what was handed on through it
        assert loads[tuple(sorted(held))] < (load + 2 * blocks.count + cuts + 1) * fullest.step_ms


@settings(max_examples=80, deadline=None, derandomize=True)
@given(workloads(), st.sampled_from([1.0, 1.3, 3.0]))
def test_the_bound_is_below_every_split(workload, factor):
    optimum_ms = brute_force(workload, contiguous=False)
    if np.isfinite(optimum_ms):
        assert price_bound(contract(workload, None), factor * optimum_ms, NO_DEADLINE) <= optimum_ms * (1 + 1e-9)


def test_it_sees_what_is_cut():
    blocks = contract(CHAIN, None)
    assert simple_bound(blocks) == pytest.approx(7.0)
    assert price_bound(blocks, 8.0, NO_DEADLINE) == pytest.approx(8.0, rel=1e-3)


def test_many_small_blocks_are_not_lost_in_rounding(monkeypatch):
    monkeypatch.setattr(fullest_module, "_MOST_STEPS", 100)  # of 0.085: each block is less than one
    lines = [f"{i} 0.05/99 out=1" + (f" -> {i + 1}" if i < 300 else "") for i in range(1, 301)]
    assert price_bound(contract(drawn("\n".join(lines)), None), 8.5, NO_DEADLINE) >= 8.2


def test_where_there_are_too_many_states_or_no_time_it_is_0():
    lines = ["1 1/9 out=1 -> " + " ".join(str(10 * c) for c in range(1, 10))]
    lines += [f"{10 * c} 1/9 out=1 -> " + " ".join(str(1000 + d) for d in range(9)) for c in range(1, 10)]
    lines += [f"{1000 + d} 1/9" for d in range(9)]
    dense = contract(drawn("\n".join(lines)), None)
    assert states_of(dense, NO_DEADLINE) is None
    assert price_bound(dense, 12.0, NO_DEADLINE) == 0.0
    assert price_bound(contract(CHAIN, None), 8.0, Deadline(-np.inf)) == 0.0


def test_one_branch_is_followed_to_its_end_before_the_next():
    blocks = contract(
        drawn("1 1/9 out=1 -> 2 4\n2 1/9 out=1 -> 3\n3 1/9 out=1 -> 6\n4 1/9 out=1 -> 5\n5 1/9 out=1 -> 6\n6 1/9"), None
    )
    order = [blocks.members[block][0] + 1 for block in narrow_order(blocks, NO_DEADLINE)]
    assert order in ([1, 2, 3, 6, 5, 4], [1, 4, 5, 6, 3, 2], [1, 2, 3, 4, 5, 6])
