"""The worked example of ``passes/placement/proof/README.md``: every number in it comes out of the code."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from small_problems import plain_problem

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.passes.placement.proof.effort import ACCELERATORS, EFFORT
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.proof.lagrangian import Lagrangian
from heterps_compile.passes.placement.proof.path_programme import Coupling, coupled_path
from heterps_compile.passes.placement.proof.paths import ListedSegments, SegmentPrices, StageCounts, cheapest_path
from heterps_compile.passes.placement.proof.trivial_bounds import batch_price, trivial_bound

README = (Path(__file__).parents[5] / "passes/placement/proof/README.md").read_text("utf-8")
# an embedding and five dense layers, on a CPU core for 1 an hour and a GPU for 4; replicas divide everything
SIX = plain_problem([[1.0, 4.0]] + [[8.0, 1.0]] * 5, [1.0, 4.0])
TWO_GPUS = replace(SIX, max_units=np.array([100, 2]))


def price(problem: Problem, slow_s: float, fast_s: float) -> tuple[float, str]:
    """Return the price of the cheapest path in a range of times of a batch, and the path."""
    chain, counts = Chain(problem), StageCounts.at_least(1)
    prices = SegmentPrices(problem, slow_s, fast_s, np.zeros(2))
    graph = ListedSegments(chain.all_segments(), prices, chain.length, NO_DEADLINE)
    to_go = graph.to_go(counts)
    path = cheapest_path(graph, counts, to_go)
    steps = zip(path.first, path.end, path.type, prices.units(path.demand), strict=True)
    shown = " | ".join(f"{a}-{c} {('cpu', 'gpu')[t]} x{units:.0f}" for a, c, t, units in steps)
    return float(to_go[0, 0]), shown


def relaxed(multiplier: float) -> tuple[float, float]:
    """Return the Lagrangian bound at 1 s with a multiplier per GPU, and how many GPUs its path lacks."""
    found = Lagrangian(Chain(TWO_GPUS), NO_DEADLINE, lambda _: None).solve(
        None, 1.0, 1.0, np.array([0.0, multiplier, 0.0])
    )
    return found.bound, found.excess[1]


def test_every_number_of_the_example_is_in_the_readme() -> None:
    chain = Chain(SIX)
    at_one = SegmentPrices.at(TWO_GPUS, 1.0)
    segments = Chain(TWO_GPUS).all_segments()
    cost, units = at_one.of(segments.demand, segments.type), at_one.units(segments.demand)
    programme = coupled_path(segments, cost, units, Coupling.of(TWO_GPUS, 6), NO_DEADLINE)
    best = Exact()(TWO_GPUS)
    assert best.bound == best.value
    at_best, plan = price(TWO_GPUS, 2.5, 2.5)
    lines = [
        f"{len(chain.all_segments())} segments",
        f"no plan costs less than {batch_price(SIX, trivial_bound(SIX)):g}",
        f"tau = 5.0   {price(SIX, 5.0, 5.0)[1]}   price {price(SIX, 5.0, 5.0)[0]:g}",
        f"tau = 2.5   {plan}   price {at_best:g}",
        f"tau = 1.0   {price(SIX, 1.0, 1.0)[1]}   price {price(SIX, 1.0, 1.0)[0]:g}",
        f"(3, 5]   price at least {price(TWO_GPUS, 5.0, 3.0)[0]:g}",
        f"(1, 5]   price at least {price(TWO_GPUS, 5.0, 1.0)[0]:g}",
        f"above {5.0 * at_best / price(TWO_GPUS, 5.0, 5.0)[0]:g}",
        f"multiplier 0   bound {relaxed(0.0)[0]:g}",
        f"multiplier 4   bound {relaxed(4.0)[0]:g}",
        f"programme: {programme.bound:g}",
        f"optimum: {batch_price(TWO_GPUS, best.value):g}",
    ]
    missing = [line for line in lines if line not in README]
    assert not missing


def test_every_accelerator_has_a_line_and_can_be_switched_off() -> None:
    for name in ACCELERATORS:
        assert f"| {name} |" in README
        assert EFFORT.without(name) != EFFORT
