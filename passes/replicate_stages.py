"""Stages with replicas for batches that are of one replica each: the least time from a batch to the next.

The problem is that of PipeDream's paper (SOSP 2019, section 3.1; its program has another formula), for units of one
type: a stage of layers with k replicas takes

    max( sum of layers / k,  all-reduce of k replicas a batch )

and every link between stages the time of the values that cross it, both ways in training; the longest of all is
minimised, with at most N units. Stages are what lies between two down-sets of the layers (``partial_orders.py``), so
that no order of the layers is left out.

For a time tau the fewest units of every stage are known: the first k with sum / k <= tau, if its all-reduce, which
grows with k, takes no longer. The fewest units of a chain of stages up to each down-set then follow stage by stage::

    units[j] = min over i within j, link[i] <= tau of  units[i] + need[i, j]

tau is halved between the largest that cannot be and the time of the best plan, and tried just below that, until both
meet. O(N^2 log) for N
down-sets; nested loops over units, as the paper's recursion has them, fall away.

Left out: types that differ within a plan, machines with a rate of their own inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.problem_file.message_times import group_network, transfer_s
from heterps_compile.problem_file.pose_given import nothing_to_plan
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.sync_rules.network import Network
from heterps_compile.units import format_bytes

from .free_layers import JoinedLayers, join_layers
from .partial_orders import enumerate_down_sets, sample_down_sets

MOST_DOWN_SETS = 3000
_SAMPLED_ORDERS = 8
_MEET = 1e-12  # relative: what rounding makes of one time
_CLOSE = 1e-9  # relative: where the search ends
_NEVER = np.inf


@dataclass(frozen=True, slots=True)
class ReplicatedStages:
    """The best plan.

    Attributes:
        plan: Its stages with their replicas.
        batch_s: Time from a batch to the next.
        bound_s: No plan takes less, of the down-sets that were looked at.
        down_sets: How many.
        is_every_order: Whether these are all.
    """

    plan: GivenPlan
    batch_s: float
    bound_s: float
    down_sets: int
    is_every_order: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Down-sets, smaller ones first, and the pairs of nested ones.

    Attributes:
        holds: [N, L].
        work_s: [N, N], of the layers between two; inf where they are not nested, or do not fit a unit.
        summed_bytes: [N, N], of the gradients of the layers between two.
        network: Between replicas.
        link_s: [N], of the values that leave a down-set.
    """

    holds: NDArray[np.bool_]
    work_s: Floats
    summed_bytes: Floats
    network: Network
    link_s: Floats

    def all_reduce_s(self, units: Floats) -> Floats:
        """Return [N, N], what the all-reduce of so many replicas takes; inf for inf."""
        at = np.where(np.isfinite(units), units, 0).astype(np.int64)
        counts = np.flatnonzero(np.bincount(at.ravel()))
        hops_s, byte_s = np.full(counts[-1] + 1, _NEVER), np.full(counts[-1] + 1, _NEVER)
        for count in counts[counts > 0]:
            hops_s[count] = self.network.hops_s(int(count))
            byte_s[count] = self.network.all_reduce_s(1.0, int(count)) - hops_s[count]
        with np.errstate(invalid="ignore"):
            return np.where(self.summed_bytes > 0, self.summed_bytes * byte_s[at] + hops_s[at], 0.0)


def replicate_stages(
    problem: GivenProblem, device: str, units: int, deadline: Deadline = NO_DEADLINE
) -> ReplicatedStages:
    """Return the plan with the least time from a batch to the next.

    Args:
        problem: Its batches are of one replica each.
        device: Name of the type of all units.
        units: How many there are.
        deadline: When to stop with the best plan so far.

    Raises:
        InputError: where the problem has no times on the type, none of them above 0, or measured all-reduces.
        InfeasibleError: where no stage of one layer fits a unit.
    """
    if problem.all_reduces:
        raise InputError(
            f"problem {shown(problem.name)} has measured all-reduces, and replicas are planned with those of a ring "
            "over the pool's rates; leave all_reduces out"
        )
    groups = [layer.by_group.get((device, 1)) for layer in problem.layers]
    if None in groups:
        missing = problem.layers[groups.index(None)].name
        raise InputError(f"problem {shown(problem.name)} has no times of layer {shown(missing)} on one {shown(device)}")
    works_s = [each.forward_time_s(problem.batch) + each.backward_time_s(problem.batch) for each in groups if each]
    if not any(work_s > 0 for work_s in works_s):
        raise nothing_to_plan(problem, device)
    joined = join_layers(problem, device, joins=_fits_one(problem, device))
    masks, is_every_order = _down_sets(joined, deadline)
    table = _tabulate(problem, device, _holds(joined, masks))
    total_s = float(table.work_s[0, -1]) if np.isfinite(table.work_s[0, -1]) else 0.0
    low_s, best = total_s / units * (1 - _MEET), _chain(table, units, _NEVER)
    if best is None:
        raise InfeasibleError(
            f"no stages of problem {shown(problem.name)} fit {units} x {shown(device)} with "
            f"{format_bytes(problem.known_pool.device_type(device).memory_bytes)} each"
        )
    high_s = _batch_s(table, best)
    while high_s > low_s * (1 + _CLOSE) and not deadline.is_over:
        # first whether anything is faster than the best plan, as times are few: that ends most searches
        for tau_s in (high_s * (1 - _CLOSE), (low_s + high_s) / 2):
            found = _chain(table, units, tau_s)
            if found is None:
                low_s = max(low_s, tau_s)
            else:
                best, high_s = found, _batch_s(table, found)
    stages = tuple(
        GivenStage(
            tuple(int(i) for i in np.flatnonzero(table.holds[end] & ~table.holds[begin])),
            (GivenReplicas(device, count),),
        )
        for begin, end, count in best
    )
    plan = GivenPlan(stages, problem.batch, problem.batch)
    return ReplicatedStages(plan, high_s, min(low_s, high_s), len(table.link_s), is_every_order)


def _fits_one(problem: GivenProblem, device: str) -> bool:
    """Return whether a unit holds the whole model."""
    times = [layer.by_group[device, 1] for layer in problem.layers]
    held_bytes = sum(
        problem.held_per_parameter * each.parameter_bytes + each.activation_bytes_per_sample * problem.batch
        for each in times
    )
    return held_bytes <= problem.known_pool.device_type(device).memory_bytes


def _down_sets(joined: JoinedLayers, deadline: Deadline) -> tuple[list[int], bool]:
    """Return the down-sets of groups, all of them where they are few, else those of some orders."""
    count = len(joined.groups)
    found = enumerate_down_sets(joined, MOST_DOWN_SETS, deadline) if count < MOST_DOWN_SETS else None
    if found is not None:
        return sorted(found, key=int.bit_count), True
    sampled = _prefixes(count, MOST_DOWN_SETS // 2)
    if count < MOST_DOWN_SETS:
        more = sample_down_sets(joined, _SAMPLED_ORDERS, np.random.default_rng(0)) - set(sampled)
        sampled += sorted(more)[: MOST_DOWN_SETS - len(sampled)]
    return sorted(sampled, key=int.bit_count), False


def _holds(joined: JoinedLayers, masks: Sequence[int]) -> NDArray[np.uint8]:
    """Return [N, L], 1 where a down-set holds a layer; all but the empty one hold what the first stage has."""
    count, width = len(joined.groups), (len(joined.groups) + 7) // 8
    packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8)
    bits = np.unpackbits(packed.reshape(len(masks), width), axis=1, count=count, bitorder="little")
    holds = np.zeros((len(masks), sum(map(len, joined.groups)) + len(joined.first)), np.uint8)
    for group, layers in enumerate(joined.groups):
        holds[:, list(layers)] = bits[:, [group]]
    holds[1:, list(joined.first)] = 1
    return holds


def _prefixes(count: int, most: int) -> list[int]:
    """Return prefixes of the file's order, evenly spread where there are more than so many."""
    ends = sorted({round(end) for end in np.linspace(0, count, min(count + 1, most))})
    return [(1 << end) - 1 for end in ends]


def _tabulate(problem: GivenProblem, device: str, bits: NDArray[np.uint8]) -> _Table:
    holds = bits.astype(np.bool_)
    times = [layer.by_group[device, 1] for layer in problem.layers]
    work_s = np.array([each.forward_time_s(problem.batch) + each.backward_time_s(problem.batch) for each in times])
    weight = np.array([each.parameter_bytes for each in times])
    kept = np.array([each.activation_bytes_per_sample * problem.batch for each in times])
    sizes = holds.sum(axis=1)
    outside = (1 - bits).astype(np.float32)
    nested = (bits.astype(np.float32) @ outside.T == 0) & (sizes[:, None] < sizes[None, :])
    weight_bytes = _between(holds, weight)
    held_bytes = problem.held_per_parameter * weight_bytes + (_between(holds, kept) if problem.training else 0.0)
    fits = held_bytes <= problem.known_pool.device_type(device).memory_bytes
    return _Table(
        holds,
        np.where(nested & fits, _between(holds, work_s), _NEVER),
        weight_bytes * problem.training,
        group_network(problem, GivenReplicas(device)),
        _links(problem, device, bits),
    )


def _between(holds: NDArray[np.bool_], of_layers: Floats) -> Floats:
    """Return [N, N], sums over the layers between two down-sets."""
    sums = holds @ of_layers
    return cast("Floats", np.maximum(sums[None, :] - sums[:, None], 0.0))


def _links(problem: GivenProblem, device: str, bits: NDArray[np.uint8]) -> Floats:
    """Return [N], what the values take that leave a down-set."""
    leaving = np.zeros(len(bits))
    for edge in problem.edges:
        readers = [problem.position[reader] for reader in edge.readers]
        out = (bits[:, problem.position[edge.producer]] == 1) & (bits[:, readers].min(axis=1) == 0)
        leaving += out * edge.bytes_per_sample * problem.batch
    one = (GivenReplicas(device),)
    return np.array([problem.directions * transfer_s(problem, one, one, float(size)) for size in leaving])


Chain = list[tuple[int, int, int]]
"""Stages as (down-set before, down-set behind, replicas)."""


def _need(table: _Table, tau_s: float, units: int) -> Floats:
    """Return [N, N], the fewest replicas of every stage; inf where no number takes at most tau."""
    if tau_s == _NEVER:
        return np.where(np.isfinite(table.work_s), 1.0, _NEVER)
    need = np.maximum(np.ceil(table.work_s / (tau_s * (1 + _MEET))), 1.0)
    need[need > units] = _NEVER
    need[table.all_reduce_s(need) > tau_s * (1 + _MEET)] = _NEVER
    return need


def _chain(table: _Table, units: int, tau_s: float) -> Chain | None:
    """Return the stages of the fewest units that take at most tau, None where there are not so many units."""
    need = _need(table, tau_s, units)
    need[table.link_s > tau_s * (1 + _MEET)] = _NEVER
    last = len(need) - 1
    fewest, parents = need[0].copy(), np.zeros(last + 1, np.int64)
    while True:
        through = fewest[:, None] + need
        by = through.argmin(axis=0)
        least = through[by, np.arange(last + 1)]
        better = least < fewest
        if not better.any():
            break
        fewest[better], parents[better] = least[better], by[better]
    if fewest[last] > units:
        return None
    return _walk(need, parents, last)


def _walk(need: Floats, parents: Ints, last: int) -> Chain:
    stages: Chain = []
    end = last
    while end:
        begin = int(parents[end])
        stages.append((begin, end, int(need[begin, end])))
        end = begin
    return stages[::-1]


def _batch_s(table: _Table, chain: Chain) -> float:
    """Return the time from a batch to the next."""
    longest_s = 0.0
    for begin, end, count in chain:
        link_s = table.link_s[begin] if begin else 0.0
        sync_s = table.network.all_reduce_s(float(table.summed_bytes[begin, end]), count)
        longest_s = max(longest_s, float(table.work_s[begin, end]) / count, float(sync_s), float(link_s))
    return longest_s
