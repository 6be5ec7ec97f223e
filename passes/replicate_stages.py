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
that have room. So ``chain_search.py`` keeps (replicas, units) of the stages behind a down-set, which a stage of k
replicas turns into (r + k, u + k t). O(N^2 log) for N down-sets and one degree.

Left out: types that differ within a plan, machines with a rate of their own inside.
"""

from collections.abc import Collection, Iterator, Sequence
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
from heterps_compile.units import format_bytes, format_seconds

from .chain_search import CLOSE, Ends, Link, find_chain, raise_threshold
from .free_layers import JoinedLayers, join_layers
from .partial_orders import DownSets, enumerate_down_sets, sample_down_sets
from .rivals_of_given import PlacedGiven, Rival

MOST_DOWN_SETS = 3000
_SAMPLED_ORDERS = 8
_AT_ONCE = 4096  # values between layers
_MEET = 1e-12  # relative: what rounding makes of one time


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


def replicate_stages(problem: GivenProblem, deadline: Deadline = NO_DEADLINE) -> PlacedGiven:
    """Return the plan with the least time from a batch to the next.

    Args:
        problem: Its batches are of one replica each.
        deadline: When to stop with the best plan so far.

    Raises:
        InputError: where the problem has times on several types, none above 0, or measured all-reduces.
        InfeasibleError: where no stages fit the units.
    """
    if problem.all_reduces:
        raise InputError(
            f"problem {shown(problem.name)} has measured all-reduces, and replicas are planned with those of a ring "
            "over the pool's rates; leave all_reduces out"
        )
    devices = sorted({device for layer in problem.layers for device, _ in layer.by_group})
    if len(devices) != 1:
        raise InputError(
            f"problem {shown(problem.name)} has times on {', '.join(map(shown, devices[:8]))}; batches of one "
            "replica each are planned on one device type: give a pool with one of them"
        )
    [device] = devices
    units = problem.known_pool.device_type(device).max_units
    if not any(_work_s(problem, each) for layer in problem.layers for each in _of(layer, device)):
        raise nothing_to_plan(problem, device)
    joined = join_layers(problem, device, joins=_may_join(problem, device))
    degrees = {each.tensor_parallel for layer in problem.layers for each in _of(layer, device)}
    family, is_every_order = _down_sets(joined, int(MOST_DOWN_SETS / len(degrees) ** 0.5), deadline)
    table = _Table(problem, device, units, joined, family)
    best: list[_Stage] = []
    alone_s, low_s = np.inf, np.inf
    for options in sorted({1, len(table.options)}):  # the least degree alone, which serves where others gain nothing
        alone_s = _longest_s(best)

        def find(tau_s: float, options: int = options, until: Deadline = deadline) -> float | None:
            nonlocal best
            found = table.chain(tau_s, options, until)
            best = found or best
            return _longest_s(found) if found else None

        if best or find(np.inf, until=NO_DEADLINE):
            most_s = _longest_s(best) * (1 - CLOSE)
            low_s = raise_threshold(find, table.least_s / units * (1 - _MEET), most_s, finds_least=False)
    if not best:
        raise InfeasibleError(
            f"no stages of problem {shown(problem.name)} fit {units} x {shown(device)} with "
            f"{format_bytes(problem.known_pool.device_type(device).memory_bytes)} each"
        )
    high_s = _longest_s(best)
    stages = tuple(
        GivenStage(
            tuple(np.flatnonzero(table.bits[stage.end] > table.bits[stage.begin]).tolist()),
            (stage.replicas,),
        )
        for stage in best
    )
    plan = GivenPlan(stages, problem.batch, problem.batch)
    low_s = high_s if low_s > high_s * (1 - 3 * CLOSE) else low_s
    every = "all divisions of the layers into stages" if is_every_order else "the orders that were looked at"
    notes: list[str] = []
    if high_s < alone_s < np.inf:
        notes = [f"with the least degree of tensor parallelism alone a batch takes {format_seconds(alone_s)}"]
    return PlacedGiven(
        (Rival(plan, high_s),), low_s, f"{every} ({len(family):,} down-sets)", "replicate-stages", notes=tuple(notes)
    )


def _longest_s(stages: Sequence[_Stage]) -> float:
    return max((stage.batch_s for stage in stages), default=np.inf)


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


def _down_sets(joined: JoinedLayers, most: int, deadline: Deadline) -> tuple[set[int], bool]:
    """Return the down-sets of groups, all of them where they are few, else those of some orders."""
    count, found = len(joined.groups), None
    with suppress(TimeUpError):
        found = enumerate_down_sets(joined, most, deadline) if count < most else None
    if found is not None:
        return found, True
    sampled = _prefixes(count, max(2, most // 2))
    if count < most:
        more = sample_down_sets(joined, _SAMPLED_ORDERS, np.random.default_rng(0)) - sampled
        sampled |= set(sorted(more)[: most - len(sampled)])
    return sampled, False


def _prefixes(count: int, most: int) -> set[int]:
    """Return prefixes of the file's order, evenly spread where there are more than so many."""
    return {(1 << round(end)) - 1 for end in np.linspace(0, count, min(count + 1, most))}


def _holds(joined: JoinedLayers, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return [N, L], 1 where a down-set holds a layer; all but the empty one hold what the first stage has."""
    holds = np.zeros((len(rows), sum(map(len, joined.groups)) + len(joined.first)), np.uint8)
    for group, layers in enumerate(joined.groups):
        holds[:, list(layers)] = rows[:, [group]]
    holds[1:, list(joined.first)] = 1
    return holds


class _Table:
    """Down-sets of groups, and what the stages between two of them take.

    Attributes:
        bits: [N, L], 1 where a down-set has a layer.
        least_s: Of all layers on one unit.
        options: By degree of tensor parallelism, ascending.
    """

    def __init__(
        self, problem: GivenProblem, device: str, units: int, joined: JoinedLayers, family: Collection[int]
    ) -> None:
        self._units, self._sets = units, DownSets(joined, family, np.zeros(len(joined.groups)))
        self.bits = _holds(joined, self._sets.rows)
        least_s = [
            min(each.tensor_parallel * _work_s(problem, each) for each in _of(layer, device))
            for layer in problem.layers
        ]
        self.least_s = sum(least_s)
        self._room_bytes = problem.known_pool.device_type(device).memory_bytes
        self._adds = problem.summed_every is not None
        self._before_s = self.bits @ np.array(least_s) * (1 - CLOSE)
        self._link_s = np.zeros(len(self.bits)) if self._adds else _links(problem, device, self.bits)
        degrees = sorted({each.tensor_parallel for layer in problem.layers for each in _of(layer, device)})
        none = np.zeros((1, 1))
        self.options = [
            _Option(
                group,
                group_network(problem, group),
                summed_share_s(problem, group, 1.0, np.inf) if self._adds else 0.0,
                _sums(problem, group, self.bits, self._room_bytes),
                _moved_s(problem, group, self.bits) if self._adds else none,
            )
            for group in (GivenReplicas(device, 1, degree) for degree in degrees)
        ]

    def chain(self, tau_s: float, options: int, deadline: Deadline) -> list[_Stage] | None:
        """Find stages of the first options that fit and take at most tau; None if all units are too few.

        Raises:
            TimeUpError: if the deadline comes first.
        """
        most_s = tau_s * (1 + _MEET)

        def extend(begin: int, ends: Ends) -> Iterator[Ends]:
            for option in self.options[: options if self._link_s[begin] <= most_s else 0]:
                yield self._fewest(begin, option, ends, most_s)

        found = find_chain(self._sets, np.inf, extend, deadline)
        return None if found is None else [self._stage(link) for link in found[1]]

    def _fewest(self, begin: int, of: _Option, around: Ends, most_s: float) -> Ends:
        """Put a stage with the fewest replicas before the replicas and units of others."""
        ends, kind, behind, used = around
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
        units = used + replicas * of.group.tensor_parallel
        left = self._units - self._before_s[begin] / most_s
        at = np.flatnonzero((missing == 0) & (under_way >= 1) & (units <= left))
        at = at[self._stage_s(begin, ends[at], of, replicas[at]) <= most_s]
        return at, kind[at], (behind + replicas)[at], units[at]

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

    def _stage(self, link: Link) -> _Stage:
        of, count = self.options[link.option], link.first
        [stage_s] = self._stage_s(link.begin, np.array([link.end]), of, np.array([float(count)]))
        batch_s = max(float(stage_s), float(self._link_s[link.begin]))
        return _Stage(link.begin, link.end, replace(of.group, count=count), batch_s)


def _sums(problem: GivenProblem, group: GivenReplicas, bits: NDArray[np.uint8], room_bytes: float) -> Floats:
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
    return cast("Floats", (bits @ np.array(of_layers)).T)


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
