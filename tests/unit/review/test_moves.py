"""The moves of a layer, what each makes of the plan, and which number decides."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from reviewed import CPU, GPU, POOL, graph, plan

from heterps_compile.cost.evaluate import detail, evaluate_one
from heterps_compile.cost.interchangeable import interchangeable_layers
from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.plan.request import Request
from heterps_compile.review.explain import Explanation, explain_layer
from heterps_compile.review.explain_words import alike_sentences
from heterps_compile.review.moves import Move, moves_of, outcome_of
from heterps_compile.review.pose import PosedAgain, pose_again
from heterps_compile.review.what_decides import EVERY_BANDWIDTH, levers, what_decides

COUNT = 12
# So many equal tables beside two products.
TABLES = "\n".join(
    [
        *(f"in ids{i} 64x4" for i in range(COUNT)),
        *(f"par t{i} 1000x64" for i in range(COUNT)),
        f"par w1 {64 * COUNT}x4096",
        "par w2 4096x1",
        *(f"embedding emb{i} : ids{i} t{i} -> rows{i} 64x64" for i in range(COUNT)),
        f"view cat : {' '.join(f'rows{i}' for i in range(COUNT))} -> all 64x{64 * COUNT}",
        "gemm fc1 : all w1 -> a 64x4096 flops=402653184",
        "gemm head : a w2 -> y 64x1 flops=524288",
        "out y",
    ]
)
REQUEST = Request(method="exact", min_throughput=300000.0, min_stages=4, pins=(("embedding", "cpu"),))


@cache
def posed(request: Request = REQUEST, text: str = TABLES) -> PosedAgain:
    return pose_again(graph(text), plan(request, text=text), cluster=POOL)


def placed(again: PosedAgain) -> tuple[Problem, Placement]:
    return again.problem, again.fitting(allow_stale=False)


def moves(again: PosedAgain, layer: str) -> tuple[Move, ...]:
    problem, placement = placed(again)
    return moves_of(problem, placement, problem.layer_names.index(layer), interchangeable_layers(problem))


FREE = replace(REQUEST, pins=(), min_stages=2)
"""The same without pins: groups may move."""


@pytest.mark.parametrize("request_", [REQUEST, FREE], ids=["pinned", "free"])
@pytest.mark.parametrize("layer", ["emb3", "fc1"])
def test_every_move_has_the_numbers_of_the_plan_evaluated_again(request_, layer):
    again = posed(request_)
    problem, placement = placed(again)
    found = moves(again, layer)
    assert found
    for move in found:
        outcome, now = move.outcome, detail(problem, move.outcome.placement)
        assert (outcome.value, outcome.throughput, outcome.price_per_hour) == (
            now.value,
            now.throughput,
            now.price_per_hour,
        )
        assert outcome.value == evaluate_one(problem, outcome.placement)
        assert sum(count for _, count in outcome.units) == sum(stage.replicas for stage in now.stages)
        assert outcome.slowest_s == max(stage.time_s for stage in now.stages)
        assert bool(outcome.fault) == bool(now.faults)
        assert outcome.placement != placement
    values = [move.outcome.value for move in found]
    assert values == sorted(values)


def test_moves_are_of_the_layer_the_cuts_the_groups_and_the_stage():
    found = {move.kind for move in moves(posed(FREE), "emb3")}
    assert {"layer", "boundary", "kind"} <= found or {"layer", "boundary", "alike"} <= found
    assert "merge" in found


def test_what_pins_forbid_is_no_move():
    problem, _ = placed(posed())
    gpu = problem.type_names.index("gpu")
    for move in moves(posed(), "emb3"):
        assert not any(move.outcome.placement.types[i] == gpu for i in range(COUNT)) or move.kind in (
            "boundary",
            "merge",
        )
        if any(move.outcome.placement.types[i] == gpu for i in range(COUNT)):
            assert move.outcome.fault.startswith("'gpu': pins, forbidden pairs or what it supports keep from it 'emb")


def test_a_cut_moves_as_far_as_the_words_say():
    starts = placed(posed())[1].starts()
    for move in moves(posed(), "emb3"):
        if move.kind == "boundary":
            words = move.what.split()  # stage 2 begins 1 layer later
            stage, by = int(words[1]), int(words[3]) * (1 if words[-1] == "later" else -1)
            assert move.outcome.placement.starts() == (*starts[:stage], starts[stage] + by, *starts[stage + 1 :])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_bytes": np.array([2.0**34, 1000.0])}, "of the 1000 B on 'gpu'"),
        ({"max_units": np.array([1, 100])}, "of 'cpu', and the pool has 1"),
        ({"min_throughput": 1e9}, "cannot reach 1,000,000,000 samples/s with any number of replicas"),
        ({"max_stages": 1}, "it makes 4 stages, and at least 4, at most 1 are asked for"),
    ],
)
def test_what_makes_no_plan_says_which_limit_with_its_numbers(changes, said):
    problem, placement = placed(posed())
    assert said in outcome_of(replace(problem, **changes), placement).fault


def test_interchangeable_tables_are_told_with_their_shares_and_the_cuts_among_them():
    problem, placement = placed(posed())
    found = explain_layer(posed(), "emb3").alike
    assert found is not None
    assert len(found.layers) == COUNT - 1  # the last is one layer with the concatenation
    bounds = [min(start, COUNT - 1) for start in (*placement.starts(), COUNT)]
    assert dict(found.shares) == {s: j - i for s, (i, j) in enumerate(pairwise(bounds)) if j > i}
    for cut in found.cuts:
        assert 0 in cut.equal
        assert cut.values[cut.places.index(0)] == pytest.approx(evaluate_one(problem, placement))
        for by, value in zip(cut.places, cut.values, strict=True):
            starts = list(placement.starts())
            starts[cut.stage] += by
            types = tuple(placement.types[i] for i in range(len(placement.types)))
            moved = Placement(types, tuple(p for p in starts if p > 0 and types[p] == types[p - 1]))
            assert value == evaluate_one(problem, moved)
    assert alike_sentences(found)[0].startswith("these 11 layers are interchangeable (emb0 to emb10)")
    assert explain_layer(posed(), "fc1").alike is None


@cache
def explained(layer: str) -> Explanation:
    return explain_layer(posed(FREE), layer)


def decided(layer: str) -> list[tuple[Placement, tuple]]:  # type: ignore[type-arg]
    return [(move.outcome.placement, levers_) for move, levers_ in explained(layer).decisive]


@pytest.mark.parametrize("layer", ["emb3", "fc1"])
def test_at_the_decisive_number_the_move_is_worth_as_much_and_short_of_it_less(layer):
    problem, placement = placed(posed(FREE))
    known = {lever.name: lever for lever in levers(problem)}
    seen = 0
    for other, decisive in decided(layer):
        for one in decisive:
            if one.name.startswith("units"):
                continue
            there = known[one.name].scaled(problem, one.factor)
            assert evaluate_one(there, other) <= evaluate_one(there, placement) * (1 + 1e-9), one
            short = known[one.name].scaled(problem, one.factor**0.99)
            assert evaluate_one(short, other) > evaluate_one(short, placement), one
            seen += 1
    assert seen


def test_a_price_that_decides_does_so_in_a_pool_with_that_price():
    again = posed(FREE)
    _, placement = placed(again)
    found = [(o, one) for o, levers_ in decided("emb3") for one in levers_ if one.name == "price of 'gpu'"]
    assert found
    for other, one in found:
        dearer = replace(POOL, device_types=(CPU, replace(GPU, price_per_hour=one.needed)))
        there = pose_again(graph(TABLES), again.plan, cluster=dearer).problem
        assert evaluate_one(there, other) <= evaluate_one(there, placement) * (1 + 1e-6)


def test_a_bandwidth_scaled_is_that_of_a_pool_with_that_network():
    problem = posed().problem
    faster = replace(POOL, device_types=(replace(CPU, network_bytes_per_s=3e9), GPU))
    there = pose_again(graph(TABLES), posed().plan, cluster=faster).problem
    lever = next(lever for lever in levers(problem) if lever.name == "bandwidth of 'cpu'")
    assert lever.now == pytest.approx(1e9)
    assert np.allclose(lever.scaled(problem, 3.0).seconds_per_byte, there.seconds_per_byte, rtol=1e-12)
    assert {EVERY_BANDWIDTH, "throughput floor", "units of 'gpu'", "memory of 'cpu'"} <= {
        lever.name for lever in levers(problem)
    }


def test_nothing_decides_what_is_worth_as_much():
    problem, placement = placed(posed())
    assert what_decides(problem, placement, [[placement]]) == ((),)
