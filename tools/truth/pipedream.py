"""PipeDream's own dynamic programme (SOSP 2019, section 3.1), written from the paper, against our plans by its formula.

Of layers i..j on m workers with bandwidth B, times C and parameters W of all their layers, a mini-batch of one worker::

    T(i..j, m)  = max( C,  2 (m - 1) W / B ) / m
    A(j, m)     = min( T(0..j, m),  min over i < j, k < m of  max( A(i, m - k),  2 a_i / B,  T(i+1..j, k) ) )

a_i is what leaves layer i. A graph is taken as a chain of what its down-sets leave open: layers of the recursion are
down-sets in an order that extends their inclusion, and i is one within j.

Left out: its second level of machines within machines.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from heterps_compile.cluster.load import make_cluster
from heterps_compile.passes.free_layers import join_layers
from heterps_compile.passes.replicate_stages import replicate_stages
from heterps_compile.prediction.predict_step import predict_step
from heterps_compile.problem_file.given_plan import GivenPlan
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.pipedream_problem import read_pipedream
from heterps_compile.problem_file.read_problem import NEUTRAL_DEVICE

T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """A down-set: the sums of its layers, what leaves it, and the states within it but the empty one."""

    work_s: float
    weight_bytes: float
    leaving_bytes: float
    within: tuple[int, ...]


def states(problem: GivenProblem, device: str) -> list[State]:
    """All down-sets, smaller ones first, by adding one ready group of layers at a time.

    Layers that cost nothing are joined to others beforehand, as they are for our search: else GNMT has 7,874 down-sets,
    and the recursion would take hours.
    """
    joined = join_layers(problem, device, joins=True)
    group_of = {layer: number for number, layers in enumerate(joined.groups) for layer in layers}
    values = [
        (1 << group_of[problem.position[edge.producer]], edge.bytes_per_sample,
         sum({1 << group_of[problem.position[reader]] for reader in edge.readers}))
        for edge in problem.edges
        if problem.position[edge.producer] in group_of
    ]  # fmt: skip
    found, latest = {0}, [0]
    while latest:
        grown = {
            mask | 1 << i
            for mask in latest
            for i, before in enumerate(joined.before)
            if not mask >> i & 1 and all(mask >> each & 1 for each in before)
        }
        latest = sorted(grown - found)
        found |= grown
    masks = sorted(found, key=int.bit_count)
    listed = []
    for number, mask in enumerate(masks):
        layers = [layer for group, held in enumerate(joined.groups) if mask >> group & 1 for layer in held]
        inside = [problem.layers[i].times[0] for i in layers]
        listed.append(
            State(
                sum(each.forward_s[0] + each.backward_s[0] for each in inside),
                sum(each.parameter_bytes for each in inside),
                sum(size for made, size, read in values if made & mask and read & ~mask),
                tuple(i for i in range(1, number) if masks[i] & ~mask == 0),
            )
        )
    return listed


def stage_s(work_s: float, weight_bytes: float, workers: int, bandwidth: float) -> float:
    """T, of a stage."""
    return max(work_s, 2 * (workers - 1) * weight_bytes / bandwidth) / workers


def their_plan_s(found: list[State], workers: int, bandwidth: float) -> float:
    """A of all layers and workers: the recursion as the paper has it."""
    best = [[float("inf")] * (workers + 1) for _ in found]
    for j, state in enumerate(found):
        if j == 0:
            continue
        for m in range(1, workers + 1):
            least = stage_s(state.work_s, state.weight_bytes, m, bandwidth)
            for i in state.within:
                before = found[i]
                work_s, weight = state.work_s - before.work_s, state.weight_bytes - before.weight_bytes
                link_s = 2 * before.leaving_bytes / bandwidth
                for k in range(1, m):
                    least = min(least, max(best[i][m - k], link_s, stage_s(work_s, weight, k, bandwidth)))
            best[j][m] = least
    return best[-1][workers]


def their_search(problem: GivenProblem, workers: int, bandwidth: float) -> float:
    return their_plan_s(states(problem, "gpu"), workers, bandwidth)


def by_their_formula_s(problem: GivenProblem, plan: GivenPlan, bandwidth: float) -> tuple[float, float, str]:
    """Our plan's time by their formula, what `predict` says of it, and its replicas."""
    longest_s, inside = 0.0, 0
    for stage in plan.stages:
        times = [problem.layers[i].times[0] for i in stage.layers]
        work_s = sum(each.forward_s[0] + each.backward_s[0] for each in times)
        weight = sum(each.parameter_bytes for each in times)
        longest_s = max(longest_s, stage_s(work_s, weight, stage.width, bandwidth))
        inside |= sum(1 << i for i in stage.layers)
        leaving = sum(
            edge.bytes_per_sample
            for edge in problem.edges
            if inside >> problem.position[edge.producer] & 1
            and any(not inside >> problem.position[reader] & 1 for reader in edge.readers)
        )
        longest_s = max(longest_s, 2 * leaving / bandwidth)
    widths = "-".join(str(stage.width) for stage in plan.stages)
    return longest_s, predict_step(problem, plan).step_s, widths


def pool(units: int, bandwidth: float) -> object:
    device = {"name": "gpu", "kind": "gpu", "network_bandwidth": f"{bandwidth} B/s", "max_units": units}
    return make_cluster({"device": [{**NEUTRAL_DEVICE, **device}]}, "flat", "flat")


@dataclass(frozen=True)
class Against:
    graph: str
    workers: int
    their_s: float
    our_s: float
    predicted_s: float
    widths: str
    their_search_s: float
    our_search_s: float


def compare(folder: Path, workers: int, bandwidth: float) -> list[Against]:
    """Both plans of every graph; a search is timed from the problem to the plan, the best of three."""
    rows = []
    for path in sorted(folder.glob("*.graph.txt")):
        problem = read_pipedream(path, pool(workers, bandwidth))
        our_search_s, found = _timed(partial(replicate_stages, problem))
        their_search_s, their_s = _timed(partial(their_search, problem, workers, bandwidth))
        plan = found.plan
        our_s, predicted_s, widths = by_their_formula_s(problem, plan, bandwidth)
        name = path.name.split(".")[0]
        rows.append(Against(name, workers, their_s, our_s, predicted_s, widths, their_search_s, our_search_s))
    return rows


def _timed(search: Callable[[], T]) -> tuple[float, T]:
    times = []
    for _ in range(3):
        began = time.perf_counter()
        found = search()
        times.append(time.perf_counter() - began)
    return min(times), found
