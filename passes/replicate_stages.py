"""Stages with replicas for batches that are of one replica each: the least time from a batch to the next.

A stage has layers, a degree t of tensor parallelism, and k replicas, which are k t units of one type. For PipeDream
(SOSP 2019, section 3.1; its program has another formula) it takes

    max( work / k,  all-reduce of k replicas a batch )

and every link between stages the time of the values that cross it, both ways in training. For Piper (NeurIPS 2021,
section 3) the parts of a stage add up, with n batches between two all-reduces:

    ( work + all that crosses its borders ) / k  +  2 / n all-reduce of k replicas

The longest of all is minimised, with at most N units. Of a stage with r replicas behind it a unit holds the activations
of ``1 + ceil(r / k)`` batches, for so many are under way. Stages are what lies between two down-sets of the layers
(``partial_orders.py``), so that no order of the layers is left out.

For a time tau the fewest replicas of every stage are known in closed form, given r: those that take at most tau, or
that have room. From the last stage to the first, each down-set keeps the pairs (replicas, units) of the stages behind
it that no other pair beats in both::

    pairs[i] = undominated (r + k, u + k t)  over down-sets j around i, degrees t, pairs (r, u) of j;
               k = fewest(i, j, t, r)

tau is halved between the largest that cannot be and the time of the best plan, and tried just below that, until both
meet. O(N^2 log) for N down-sets and one degree.

Left out: types that differ within a plan, machines with a rate of their own inside.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.passes.deadline import NO_DEADLINE, Deadline, TimeUpError
from heterps_compile.problem_file.given_plan import GivenPlan, GivenReplicas, GivenStage
from heterps_compile.problem_file.given_problem import GivenLayer, GivenProblem, GivenTimes
from heterps_compile.problem_file.message_times import crossings, group_network, summed_share_s, transfer_s
from heterps_compile.problem_file.pose_given import nothing_to_plan
from heterps_compile.problem_file.problem_laws import shown
from heterps_compile.sync_rules.network import Network, ring_share
from heterps_compile.units import format_bytes

from .free_layers import JoinedLayers, join_layers
from .partial_orders import enumerate_down_sets, sample_down_sets

MOST_DOWN_SETS = 3000
_SAMPLED_ORDERS = 8
_AT_ONCE = 4096  # values between layers
_MEET = 1e-12  # relative: what rounding makes of one time
_CLOSE = 1e-9  # relative: where the search ends


@dataclass(frozen=True, slots=True)
class ReplicatedStages:
    """The best plan.

    Attributes:
        plan: Its stages with their replicas.
        batch_s: Time from a batch to the next.
        bound_s: No plan takes less, of the down-sets that were looked at.
        down_sets: How many.
        is_every_order: Whether these are all.
        alone_s: The time with the least degree of tensor parallelism alone, where there are more; inf for no plan.
    """

    plan: GivenPlan
    batch_s: float
    bound_s: float
    down_sets: int
    is_every_order: bool
    alone_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Option:
    """What stages take with a degree of tensor parallelism.

    Attributes:
        group: One replica.
        network: Between replicas.
        endless_s: Of a byte of gradients among ever more replicas, where that adds up.
        sums: [5, N], over each down-set: layers without times, work in s, bytes of gradients, bytes of the activations
            of a batch, all other bytes held.
        moved_s: [N, N], what crosses the borders of the stage between two down-sets, where that adds up.
    """

    group: GivenReplicas
    network: Network
    endless_s: float
    sums: Floats
    moved_s: Floats


@dataclass(frozen=True, slots=True)
class _Stage:
    """A stage: the down-sets before it and with it, its replicas, and what it takes."""

    begin: int
    end: int
    replicas: GivenReplicas
    batch_s: float


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
        InfeasibleError: where no stages fit the units.
    """
    if problem.all_reduces:
        raise InputError(
            f"problem {shown(problem.name)} has measured all-reduces, and replicas are planned with those of a ring "
            "over the pool's rates; leave all_reduces out"
        )
    for layer in problem.layers:
        if not _of(layer, device):
            raise InputError(
                f"problem {shown(problem.name)} has no times of layer {shown(layer.name)} on {shown(device)}"
            )
    least_s = [
        min(each.tensor_parallel * _work_s(problem, each) for each in _of(layer, device)) for layer in problem.layers
    ]
    if not any(_work_s(problem, each) for layer in problem.layers for each in _of(layer, device)):
        raise nothing_to_plan(problem, device)
    joined = join_layers(problem, device, joins=_may_join(problem, device))
    degrees = {each.tensor_parallel for layer in problem.layers for each in _of(layer, device)}
    masks, is_every_order = _down_sets(joined, int(MOST_DOWN_SETS / len(degrees) ** 0.5), deadline)
    table = _Table(problem, device, units, _holds(joined, masks), np.array(least_s))
    best: list[_Stage] | None = None
    high_s, alone_s, low_s = np.inf, np.inf, 0.0
    for options in sorted({1, len(table.options)}):  # the least degree alone, which serves where others gain nothing
        low_s, alone_s = sum(least_s) / units * (1 - _MEET), high_s
        best = best or table.chain(np.inf, options, NO_DEADLINE)
        high_s = _longest_s(best)
        try:
            while low_s * (1 + _CLOSE) < high_s < np.inf and not deadline.is_over:
                # first whether anything is faster than the best plan, as times are few: that ends most searches
                for tau_s in (high_s * (1 - _CLOSE), (low_s + high_s) / 2):
                    found = table.chain(tau_s, options, deadline)
                    if found is None:
                        low_s = max(low_s, tau_s)
                    else:
                        best, high_s = found, _longest_s(found)
        except TimeUpError:
            pass  # the best plan so far, and the bound
    if best is None:
        raise InfeasibleError(
            f"no stages of problem {shown(problem.name)} fit {units} x {shown(device)} with "
            f"{format_bytes(problem.known_pool.device_type(device).memory_bytes)} each"
        )
    stages = tuple(
        GivenStage(
            tuple(int(i) for i in np.flatnonzero(table.holds[stage.end] & ~table.holds[stage.begin])),
            (stage.replicas,),
        )
        for stage in best
    )
    plan = GivenPlan(stages, problem.batch, problem.batch)
    low_s = high_s if low_s > high_s * (1 - 3 * _CLOSE) else low_s
    return ReplicatedStages(plan, high_s, low_s, len(masks), is_every_order, alone_s)


def _longest_s(stages: Sequence[_Stage] | None) -> float:
    return max(stage.batch_s for stage in stages) if stages else np.inf


def _of(layer: GivenLayer, device: str) -> list[GivenTimes]:
    return [each for each in layer.times if each.device == device]


def _work_s(problem: GivenProblem, times: GivenTimes) -> float:
    return times.forward_time_s(problem.batch) + times.backward_time_s(problem.batch)


def _least_bytes(problem: GivenProblem, times: GivenTimes) -> float:
    return times.held_bytes(problem.held_per_parameter) + times.activation_bytes_per_sample * problem.batch


def _may_join(problem: GivenProblem, device: str) -> bool:
    """Check if transfers overlap, degrees agree and one unit fits all."""
    degrees, held_bytes = set(), 0.0
    for layer in problem.layers:
        times = _of(layer, device)
        degrees.add(frozenset(each.tensor_parallel for each in times))
        held_bytes += max(_least_bytes(problem, each) for each in times)
    has_room = held_bytes <= problem.known_pool.device_type(device).memory_bytes
    return problem.summed_every is None and len(degrees) == 1 and has_room


def _down_sets(joined: JoinedLayers, most: int, deadline: Deadline) -> tuple[list[int], bool]:
    """Return the down-sets of groups, all of them where they are few, else those of some orders."""
    count, found = len(joined.groups), None
    with suppress(TimeUpError):
        found = enumerate_down_sets(joined, most, deadline) if count < most else None
    if found is not None:
        return sorted(found, key=int.bit_count), True
    sampled = _prefixes(count, max(2, most // 2))
    if count < most:
        more = sample_down_sets(joined, _SAMPLED_ORDERS, np.random.default_rng(0)) - set(sampled)
        sampled += sorted(more)[: most - len(sampled)]
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


class _Table:
    """Down-sets, smaller ones first, and what the stages between two of them take.

    Attributes:
        holds: [N, L], whether a down-set has a layer.
        options: By degree of tensor parallelism, ascending.
    """

    def __init__(
        self, problem: GivenProblem, device: str, units: int, bits: NDArray[np.uint8], least_s: Floats
    ) -> None:
        self._units, self.holds = units, bits.astype(np.bool_)
        self._room_bytes = problem.known_pool.device_type(device).memory_bytes
        self._adds = problem.summed_every is not None
        self._before_s = self.holds @ least_s * (1 - _CLOSE)  # of one unit, which the stages before take at least
        sizes, outside = self.holds.sum(axis=1), (1 - bits).astype(np.float32)
        self._is_nested = (bits.astype(np.float32) @ outside.T == 0) & (sizes[:, None] < sizes[None, :])
        self._link_s = np.zeros(len(bits)) if self._adds else _links(problem, device, bits)
        degrees = sorted({each.tensor_parallel for layer in problem.layers for each in _of(layer, device)})
        none = np.zeros((1, 1))
        self.options = [
            _Option(
                group,
                group_network(problem, group),
                summed_share_s(problem, group, 1.0, np.inf) if self._adds else 0.0,
                _sums(problem, group, self.holds, self._room_bytes),
                _moved_s(problem, group, bits) if self._adds else none,
            )
            for group in (GivenReplicas(device, 1, degree) for degree in degrees)
        ]

    def chain(self, tau_s: float, options: int, deadline: Deadline) -> list[_Stage] | None:
        """Find stages of the first options that fit and take at most tau; None if all units are too few.

        Raises:
            TimeUpError: if the deadline comes first.
        """
        most_s = tau_s * (1 + _MEET)
        # a down-set, replicas and units behind it, the row of the pair around it, the option
        pairs = np.array([[len(self.holds) - 1, 0, 0, 0, 0]])
        for begin in range(len(self.holds) - 2, -1, -1):
            deadline.check()
            if self._link_s[begin] <= most_s:
                rows = np.flatnonzero(self._is_nested[begin, pairs[:, 0]])
                found = [self._fewest(begin, o, pairs, rows, most_s) for o in range(options)]
                pairs = np.concatenate([pairs, _undominated(np.concatenate(found))])
        whole = np.flatnonzero(pairs[:, 0] == 0)
        return self._walk(pairs, int(whole[0])) if len(whole) else None

    def _fewest(self, begin: int, option: int, pairs: Ints, rows: Ints, most_s: float) -> Ints:
        """Make pairs [P, 5] of a new first stage with the fewest replicas."""
        of, ends, behind = self.options[option], pairs[rows, 0], pairs[rows, 1]
        missing, work_s, summed, batch, held = np.maximum(of.sums[:, ends] - of.sums[:, [begin]], 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            under_way = np.floor(np.fmax((self._room_bytes - held) / batch * (1 + _MEET), -1.0))
            under_way[(batch == 0) & (held <= self._room_bytes)] = np.inf
            roomy = np.where(behind > 0, np.ceil(behind / np.maximum(under_way - 1, 0)), 1)
            if self._adds:
                endless_s = summed * of.endless_s
                work_s = work_s + of.moved_s[begin, ends] - endless_s
                quick = np.where(work_s > 0, np.ceil(work_s / np.maximum(most_s - endless_s, 0.0) * (1 - _MEET)), 1)
            else:
                quick = np.ceil(work_s / most_s)
        replicas = np.fmax(np.fmax(quick, roomy), 1)
        units = pairs[rows, 2] + replicas * of.group.tensor_parallel
        left = self._units - self._before_s[begin] / most_s
        at = np.flatnonzero((missing == 0) & (under_way >= 1) & (units <= left))
        at = at[self._stage_s(begin, ends[at], of, replicas[at]) <= most_s]
        own = np.stack([np.full(len(rows), begin), behind + replicas, units, rows, np.full(len(rows), option)], axis=1)
        return own[at].astype(np.int64)

    def _stage_s(self, begin: int, ends: Ints, of: _Option, replicas: Floats) -> Floats:
        """Return what stages take that begin at a down-set, without links."""
        _, work_s, summed, _, _ = np.maximum(of.sums[:, ends] - of.sums[:, [begin]], 0.0)
        if self._adds:
            moved_s = of.moved_s[begin, ends]
            return cast("Floats", (work_s + moved_s) / replicas + summed * of.endless_s * ring_share(replicas))
        reduced_s = np.zeros(len(ends))
        for count in np.unique(replicas):
            here = (replicas == count) & (summed > 0)
            byte_s = of.network.sums_s(1.0, int(count))
            reduced_s[here] = summed[here] * byte_s + of.network.hops_s(int(count))
        return cast("Floats", np.maximum(work_s / replicas, reduced_s))

    def _walk(self, pairs: Ints, row: int) -> list[_Stage]:
        stages = []
        while pairs[row, 0] < len(self.holds) - 1:
            begin, behind, _, around, option = map(int, pairs[row])
            end, count, of = int(pairs[around, 0]), behind - int(pairs[around, 1]), self.options[option]
            [stage_s] = self._stage_s(begin, np.array([end]), of, np.array([float(count)]))
            batch_s = max(float(stage_s), float(self._link_s[begin]))
            stages.append(_Stage(begin, end, replace(of.group, count=count), batch_s))
            row = around
        return stages


def _undominated(pairs: Ints) -> Ints:
    """Return the pairs that no other beats in replicas and units, those of few units first."""
    ordered = pairs[np.lexsort((pairs[:, 1], pairs[:, 2]))]
    fewest = np.minimum.accumulate(ordered[:, 1])
    is_least = np.concatenate([[True], ordered[1:, 1] < fewest[:-1]])[: len(ordered)]
    return cast("Ints", ordered[is_least])


def _sums(problem: GivenProblem, group: GivenReplicas, holds: NDArray[np.bool_], room_bytes: float) -> Floats:
    times = [layer.by_group.get((group.device, group.tensor_parallel)) for layer in problem.layers]
    of_layers = [
        (1.0, 0.0, 0.0, 0.0, 0.0)
        if each is None or _least_bytes(problem, each) > room_bytes  # of which rounding would hide the others
        else (
            0.0,
            _work_s(problem, each),
            each.parameter_bytes * problem.training,
            each.activation_bytes_per_sample * problem.batch * problem.training,
            each.held_bytes(problem.held_per_parameter),
        )
        for each in times
    ]
    return cast("Floats", (holds @ np.array(of_layers)).T)


def _moved_s(problem: GivenProblem, group: GivenReplicas, bits: NDArray[np.uint8]) -> Floats:
    """Return [N, N], what crosses the borders of the stage between two down-sets."""
    of_values = np.array([*crossings(problem, group)], np.float64).reshape(-1, 4)
    found = np.zeros((len(bits), len(bits)))
    for start in range(0, len(of_values), _AT_ONCE):
        part = of_values[start : start + _AT_ONCE]
        made, read = (bits[:, part[:, side].astype(np.int64)].astype(np.float64) for side in (0, 1))
        entering_s, leaving_s = part[:, 2], part[:, 3]
        found += (made * entering_s) @ read.T - (read @ entering_s)[:, None]
        found += ((made * (1 - read)) @ leaving_s)[None, :] - (made * leaving_s) @ (1 - read).T
    return found


def _links(problem: GivenProblem, device: str, bits: NDArray[np.uint8]) -> Floats:
    """Return [N], what the values take that leave a down-set."""
    leaving = np.zeros(len(bits))
    for edge in problem.edges:
        readers = [problem.position[reader] for reader in edge.readers]
        out = (bits[:, problem.position[edge.producer]] == 1) & (bits[:, readers].min(axis=1) == 0)
        leaving += out * edge.bytes_per_sample * problem.batch
    one = (GivenReplicas(device),)
    return np.array([problem.directions * transfer_s(problem, one, one, float(size)) for size in leaving])
