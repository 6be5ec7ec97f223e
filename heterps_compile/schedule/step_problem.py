"""What is known of steps beside the arrays of a problem, and bounds on the steps of many plans at once.

A :class:`~heterps_compile.cost.problem.Problem` knows batches that are taken whole. A step divides one: what a layer
takes of a part of it, forward and backward apart, the ways between stages and the messages of an all-reduce are here.

For a number M of micro-batches a stage's replicas are only worth being as many as make its busiest one take fewer of
them: k is one of ceil(M / n), as a micro-batch lasts no shorter with more replicas (``load.py``). For a placement those
units are tried that let no stage's busiest replica work longer than some time, over all such times; each choice is
bounded as in ``shortest_step.py``. The choice of the lowest bound is no bound of the placement: other units, between
these, may be better by a little.

Left out: the simulation (``simulate.py``), the search (``passes/placement/steps``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.evaluate import to_placement
from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.memory import MemoryParts
from heterps_compile.cost.own_work import OwnWork
from heterps_compile.cost.pose import network_of
from heterps_compile.cost.problem import Bools, Floats, Ints, Placement, Problem
from heterps_compile.cost.replicas import StageWork
from heterps_compile.cost.roofline import TRAINING_FACTOR
from heterps_compile.cost.row_sums import RowSums
from heterps_compile.cost.segments import FlatStages, crossing_bytes, flatten_stages
from heterps_compile.cost.served_rows import pull_s
from heterps_compile.cost.stage_law import Alone, micro_batch, moving_time
from heterps_compile.sync_rules.network import Network

from .load import ROUNDS_OF_REPLICAS, USUAL_MICRO_BATCHES, StageLoad, micro_batch_counts
from .shortest_step import PassTimes, Turns

_MOST_TIMES = 32
"""Of the times that units are chosen by, for one placement and one number of micro-batches."""


@dataclass(frozen=True, eq=False)
class PartTimes:
    """What one of equal parts of a batch takes, [L, T] each; 0 where a type cannot run a layer."""

    forward_s: Floats
    backward_s: Floats
    accumulate_s: Floats

    @property
    def whole_s(self) -> Floats:
        """Return forward and backward, gradients made anew."""
        return np.asarray(self.forward_s + self.backward_s, np.float64)


@dataclass(frozen=True, eq=False)
class StepProblem:
    """A problem, and what steps of its plans are made of.

    Attributes:
        problem: The problem.
        training: Whether there are backwards.
        is_divisible: Whether the batch can be divided into micro-batches.
        times: Of layers; None where launches of operations are all that dividing a batch does not shrink.
        again_s: [L, T], what every further micro-batch pays again, where there are no ``times``.
        networks: [T], what connects replicas.
        own_latency_s: [T], of a message of a unit.
        memory: Returns what a replica holds of a stage of layers from one to before another, a batch undivided; None
            where that is not known, or every unit has room for the whole model.
        ways: Seconds per byte and latency [T, T] between stages, where these delay and do not occupy them; None where
            they are those of the problem, and part of its data movement.
        own: What replicas do by themselves behind the last backward; None where that is not counted, as in inference.
        known_parts: What :meth:`parts` has computed, which holds for the same layers with other prices and limits too.
    """

    problem: Problem
    training: bool
    is_divisible: bool
    times: LayerTimes | None
    again_s: Floats | None
    networks: tuple[Network, ...]
    own_latency_s: Floats
    memory: Callable[[int, int], MemoryParts] | None = None
    ways: tuple[Floats, Floats] | None = None
    own: OwnWork | None = None
    known_parts: dict[int, PartTimes] = field(default_factory=dict, repr=False)

    def counts(self, most_replicas: int) -> list[int]:
        """Return the numbers of micro-batches worth trying where a stage has at most so many replicas."""
        return micro_batch_counts(self.problem.batch, most_replicas) if self.is_divisible else [1]

    @cached_property
    def way_seconds_per_byte(self) -> Floats:
        """Return [T, T], between two stages, of the slower side."""
        if self.ways is not None:
            return np.maximum(self.ways[0], self.ways[0].T)
        return self._slower(self.problem.seconds_per_byte, self.problem.link_seconds_per_byte)

    @cached_property
    def way_latency_s(self) -> Floats:
        """Return [T, T], of a message between two stages, of the slower side."""
        if self.ways is not None:
            return np.maximum(self.ways[1], self.ways[1].T)
        return self._slower(self.problem.latency_s, self.problem.link_latency_s)

    @staticmethod
    def _slower(of_types: Floats, of_pairs: Floats | None) -> Floats:
        sides = np.repeat(of_types[:, None], len(of_types), axis=1) if of_pairs is None else of_pairs
        return np.asarray(np.maximum(sides, sides.T), np.float64)

    @cached_property
    def all_counts(self) -> list[int]:
        """Return those worth trying with any replicas that the pool has."""
        return self.counts(int(min(self.problem.max_units.max(initial=1), self.problem.batch)))

    def counts_near(self, count: int) -> list[int]:
        """Return a number of micro-batches with the next lower and higher one worth trying."""
        counts = sorted({*self.all_counts, count})
        place = counts.index(count)
        return counts[max(0, place - 1) : place + 2]

    def takes(self, count: int, most_replicas: Floats) -> Bools:
        """Return whether so many micro-batches are among the counts of plans with at most so many replicas a stage."""
        is_usual = count <= np.maximum(USUAL_MICRO_BATCHES, ROUNDS_OF_REPLICAS * most_replicas)
        return np.asarray(is_usual & ((count >= most_replicas) | (self.all_counts[-1] < most_replicas)))

    def with_memory(self, placement: Placement, loads: Sequence[StageLoad]) -> tuple[StageLoad, ...]:
        """Return the loads of a placement's stages with what they hold, where memory may bind."""
        if self.memory is None:
            return tuple(loads)
        starts = placement.starts()
        ends = (*starts[1:], self.problem.layer_count)
        return tuple(
            load.holding(self.memory(first, end), float(self.problem.memory_bytes[placement.types[first]]))
            for load, first, end in zip(loads, starts, ends, strict=True)
        )

    def parts(self, count: int) -> PartTimes:
        """Return what one of so many parts of a batch takes."""
        if count not in self.known_parts:
            self.known_parts[count] = self._part_times(count)
        return self.known_parts[count]

    def _part_times(self, count: int) -> PartTimes:
        problem, usable = self.problem, np.isfinite(self.problem.compute_s)
        if self.times is None:
            again_s = 0.0 if self.again_s is None else self.again_s
            once_s = np.where(usable, problem.compute_s, 0.0)
            whole_s = np.where(usable, (once_s - again_s) / count + again_s, 0.0)
            share = 1 / TRAINING_FACTOR if self.training else 1.0
            return PartTimes(whole_s * share, whole_s * (1 - share), whole_s * (1 - share))
        found = np.zeros((3, *usable.shape))
        for layer, type_ in zip(*np.nonzero(usable), strict=True):
            phases = self.times.phases(int(layer), int(type_), count)
            found[:, layer, type_] = phases.forward_s, phases.backward_s, phases.accumulate_s
        return PartTimes(found[0], found[1], found[2])

    def shrinks_by(self, count: int) -> float:
        """Return the least that so many parts take together of what the whole does, over all layers; 1 at most.

        Below 1, which measured times may be, a step can be shorter than a batch in the steady state.
        """
        whole, part = self.parts(1), self.parts(count)
        parts_s = count * (part.forward_s + np.minimum(part.backward_s, part.accumulate_s))
        known = whole.whole_s > 0
        return float(np.min(np.where(known, parts_s / np.where(known, whole.whole_s, 1.0), 1.0), initial=1.0))

    def steps(self, types: Ints, cuts: Bools) -> "StepsOfPlacements":
        """Return the stages of placements [B, L] for the bounds of their steps."""
        return StepsOfPlacements(self, types, cuts)


def step_problem(
    problem: Problem,
    times: LayerTimes,
    cluster: Cluster,
    memory: Callable[[int, int], MemoryParts] | None = None,
    own: OwnWork | None = None,
    *,
    is_divisible: bool,
) -> StepProblem:
    """Return the steps of a problem that was posed of layers on a pool; the arguments are the fields by that name."""
    networks = tuple(network_of(cluster, name) for name in problem.type_names)
    latency_s = np.array([times.pool.device_type(name).network_latency_s for name in problem.type_names])
    return StepProblem(problem, times.training, is_divisible, times, None, networks, latency_s, memory, own=own)


def plain_step_problem(problem: Problem, again_s: Floats, *, training: bool) -> StepProblem:
    """Return the steps of a problem without a pool, such as a drawn one: a divisible batch, networks as it has them."""
    sides = zip(problem.seconds_per_byte.tolist(), problem.latency_s.tolist(), strict=True)
    networks = tuple(Network(per_byte, latency_s) for per_byte, latency_s in sides)
    return StepProblem(
        problem, training, is_divisible=True, times=None, again_s=again_s, networks=networks,
        own_latency_s=problem.latency_s,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class MicroBatches:
    """What one of so many micro-batches takes in stages with given units; arrays are of one shape [..., S].

    Attributes:
        count: In the step.
        units: Replicas.
        forward_s, backward_s: Of one of them on one replica.
        moving_s: Part of the forward in which data moves and nothing is computed.
        sync_s: The all-reduce, and what replicas do by themselves behind it.
        batch_s: ET, of a batch in the steady state.
        moved_s: The network card of a unit for a batch; 0 if that occupies the stage.
        rows_s, requests_s, one_server_s: Of tables on servers, one way, for a batch: rows over the replicas' networks,
            requests, rows through one server (:mod:`~heterps_compile.cost.served_rows`).
    """

    count: int
    units: Floats
    forward_s: Floats
    backward_s: Floats
    moving_s: Floats
    sync_s: Floats
    batch_s: Floats
    moved_s: Floats
    rows_s: Floats
    requests_s: Floats
    one_server_s: Floats

    def pulls_s(self, servers: Floats | None = None) -> Floats:
        """Return what is pulled before the first forward, through so many servers; None for any number of them."""
        return pull_s(self._one_way_s(servers), self.requests_s, self.units, self.count)

    def pushes_s(self, servers: Floats | None = None) -> Floats:
        """Return what is pushed behind the last backward of training, likewise."""
        return np.asarray(self._one_way_s(servers) + self.requests_s, np.float64)

    def _one_way_s(self, servers: Floats | None) -> Floats:
        return self.rows_s if servers is None else np.maximum(self.rows_s, self.one_server_s / servers)

    @property
    def own_s(self) -> Floats:
        """Return how long the busiest replica works."""
        return np.asarray(np.ceil(self.count / self.units) * (self.forward_s + self.backward_s), np.float64)

    def changed(self, change: Callable[[Floats], Floats]) -> "MicroBatches":
        """Return the same with all arrays changed alike: some of their cells, or other axes."""
        return MicroBatches(self.count, *(change(getattr(self, name)) for name in ("units", *_OF_STAGES)))


_OF_STAGES = (
    "forward_s", "backward_s", "moving_s", "sync_s", "batch_s", "moved_s", "rows_s", "requests_s", "one_server_s",
)  # fmt: skip
"""Arrays of micro-batches, 0 where there is no stage."""


@dataclass(frozen=True, eq=False)
class StageWorks:
    """What N stages do with a batch, of whichever plans they are.

    Attributes:
        type: [N], of their devices.
        work: [N], of a batch in the steady state.
        messages: [N], of a batch, received and sent: 0, 1 or 2.
        sums: Returns [N], the sums of a table [L, T] over the layers of every stage on its type.
        rows: [N], of tables on servers; None where no table is.
    """

    type: Ints
    work: StageWork
    messages: Floats
    sums: Callable[[Floats], Floats]
    rows: RowSums | None = None

    def micro_batches(self, of: StepProblem, count: int, units: Floats) -> MicroBatches:
        """Return what one of so many micro-batches takes with units [N, K]."""
        part, whole = of.parts(count), of.parts(1)
        index = np.repeat(np.arange(len(self.type)), units.shape[1])
        work, k = self.work.take(index), units.ravel()
        rows = None if self.rows is None else self.rows.take(index)
        behind_s, most_sync_s = self._behind_s(of, work, index, k)
        none = np.zeros(len(k))
        data_s, shared_s = work.moving_time_s(k), none if work.shared_s is None else work.shared_s
        ahead_s, of_rows = none, (none,) * 3
        if rows is not None:
            data_s = rows.without(data_s + most_sync_s, k) - most_sync_s
            shared_s = rows.shared_without(shared_s)
            ahead_s, of_rows = rows.ahead_s(k, count), (rows.network_s(k), rows.requests_s, rows.one_server_s)
        data_s = moving_time(data_s, most_sync_s, shared_s)
        on_card_s, data_s = (0 * data_s, data_s) if of.ways is None else (data_s, 0 * data_s)
        alone = Alone(
            forward_s=self.sums(part.forward_s)[index],
            backward_s=self.sums(part.backward_s)[index],
            accumulate_s=self.sums(part.accumulate_s)[index],
            whole_s=self.sums(whole.whole_s)[index],
            latency_s=(self.messages * of.own_latency_s[self.type])[index],
            rows_s=ahead_s,
            usual=1 / TRAINING_FACTOR if of.training else 1.0,
        )
        passes = micro_batch(alone, work.compute_time_s(k), data_s, k, count)
        found = (*passes, behind_s, work.time_s(k), on_card_s, *of_rows)
        return MicroBatches(count, units, *(np.asarray(each, np.float64).reshape(units.shape) for each in found))

    def _behind_s(self, of: StepProblem, work: StageWork, index: Ints, k: Floats) -> tuple[Floats, Floats]:
        """Return what a step has behind the last backward, and the most that bytes take by any rule; all [N K].

        That is bytes, messages and own work of the rule that takes the least, and the optimizer's step.
        """
        types, own = self.type[index], of.own

        def sums(table: Floats) -> Floats:
            return self.sums(table)[index]

        update_s = np.zeros(k.shape) if own is None else sums(own.update_s)
        if work.rules is None:
            sync_s = np.asarray(work.sync_time_s(k), np.float64)
            is_any = of.training and bool(np.any(of.problem.sync_s > 0))
            hops_s = _messages_s(of, types, k, Network.hops_s) if is_any else np.zeros(k.shape)
            handled_s = 0.0 if own is None else own.handling[0].time_s(sums, k)
            return sync_s + hops_s * (sync_s > 0) + handled_s + update_s, sync_s
        bytes_s = np.stack([rule.time_s(k, work.machines) for rule in work.rules])
        hops_s = np.stack([rule.sums * _messages_s(of, types, k, rule.form.hops_s) for rule in work.rules])
        taken_s = bytes_s + hops_s * (bytes_s > 0)
        if own is not None:
            taken_s += np.stack([each.time_s(sums, k) for each in own.handling])
        return taken_s.min(axis=0) + update_s, np.where(np.isfinite(bytes_s), bytes_s, 0.0).max(axis=0)


def _messages_s(of: StepProblem, types: Ints, k: Floats, hops_s: Callable[[Network, int], float]) -> Floats:
    """Return what the messages of k replicas on some types take, as networks have it."""
    found = np.zeros(k.shape)
    for type_ in np.unique(types):
        rows, network = types == type_, of.networks[type_]
        counts = k[rows].astype(np.int64)
        of_counts = np.zeros(int(counts.max(initial=0)) + 1)
        for units in np.flatnonzero(np.bincount(counts.ravel())):
            of_counts[units] = hops_s(network, int(units))
        found[rows] = of_counts[counts]
    return found


class StepsOfPlacements:
    """The stages of placements of one problem, in arrays padded to the most stages S of any.

    Attributes:
        flat: The stages, one after the other.
        has: [B, S], whether a placement has so many stages.
        type: [B, S], of their devices; 0 where there is no stage.
    """

    def __init__(self, of: StepProblem, types: Ints, cuts: Bools) -> None:
        self.of, self._types, self._cuts = of, types, cuts
        self.flat: FlatStages = flatten_stages(of.problem, types, cuts)
        flat = self.flat
        counts = np.diff(flat.offsets, append=len(flat.type))
        self.has = np.arange(counts.max(initial=1)) < counts[:, None]
        self.type: Ints = np.zeros(self.has.shape, np.int64)
        self.type[self.has] = flat.type

    @cached_property
    def way_bytes(self) -> Floats:
        """Return [B, S], bytes of a batch that cross the link behind a stage in one direction."""
        found = np.zeros(self.has.shape)
        found[self.has] = crossing_bytes(self.of.problem)[self.flat.end] / (2 if self.of.training else 1)
        return found

    def unit_choices(self, count: int) -> Floats:
        """Return [K], the replicas worth trying for so many micro-batches, ascending."""
        most = int(self.of.problem.max_units.max(initial=1))
        found = [-(-count // rounds) for rounds in range(1, count + 1)]
        if self.of.problem.halves:  # which 3 replicas take longer for than 4
            found += [1 << level for level in range(count.bit_length())]
        return np.unique(found).clip(1, most).astype(np.float64)

    def micro_batches(self, count: int, units: Floats) -> MicroBatches:
        """Return what micro-batches take with units [N, K] of the flat stages."""
        return self._works.micro_batches(self.of, count, units)

    @cached_property
    def _works(self) -> "StageWorks":
        flat = self.flat
        messages = (flat.received_bytes > 0).astype(np.float64) + (flat.sent_bytes > 0)
        return StageWorks(flat.type, flat.work, messages, self._sums, RowSums.of(self.of.problem, self._sums))

    def _sums(self, of_layers: Floats) -> Floats:
        """Return [N], sums over the layers of every stage on its type."""
        layers = np.arange(self._types.shape[1])
        return np.asarray(np.add.reduceat(of_layers[layers, self._types].ravel(), self._starts), np.float64)

    @cached_property
    def _starts(self) -> Ints:
        return np.asarray(self.flat.placement * self._types.shape[1] + self.flat.first, np.int64)

    def delays(self, each: MicroBatches) -> tuple[Floats, Floats]:
        """Compute the delays behind stages and the overlaps, [B, V, S]."""
        if not self.way_bytes.any():
            return np.zeros(each.forward_s.shape), np.zeros(each.forward_s.shape)
        last = self.has.sum(axis=1) - 1
        place = np.arange(self.has.shape[1])
        is_end = (place == 0) | (place == last[:, None])
        moving_s = each.moving_s / np.where(is_end, 1, 2)[:, None, :]
        following = np.minimum(self.type[:, np.minimum(place + 1, len(place) - 1)], self.of.problem.type_count - 1)
        pair = (self.type, following)
        way_s = np.where(
            (self.way_bytes > 0) & (place < last[:, None]),
            self.of.way_latency_s[pair] + self.way_bytes * self.of.way_seconds_per_byte[pair] / each.count,
            0.0,
        )
        after = np.zeros(moving_s.shape)
        after[:, :, :-1] = moving_s[:, :, 1:]
        overlaps_s = np.minimum(way_s[:, None, :], moving_s + after)
        return way_s[:, None, :] - overlaps_s, overlaps_s

    def least_steps_s(
        self, each: MicroBatches, delays_s: Floats, overlaps_s: Floats, servers: Floats | None = None
    ) -> Floats:
        """Return [C, B, V], lower bounds on the steps of stages [B, V, S] under the schedules of ``shortest_step.py``.

        Args:
            each: What micro-batches take.
            delays_s: Behind stages, of :meth:`delays`.
            overlaps_s: Behind stages, of the same.
            servers: [B, V], that tables lie on; None where none does.
        """
        training, has = self.of.training, self.has[:, None, :]
        forward_s, backward_s = np.where(has, each.forward_s, 0.0), np.where(has, each.backward_s, 0.0)
        of_servers = None if servers is None else servers[..., None]
        pulls_s = np.where(has, each.pulls_s(of_servers), 0.0)
        sync_s = np.where(has, each.sync_s + each.pushes_s(of_servers), 0.0)
        turns, rounds_s = np.ceil(each.count / each.units), np.zeros(forward_s.shape)
        after_s = (2 if training else 1) * delays_s[..., :-1] + (forward_s + backward_s)[..., 1:]
        rounds_s[..., :-1] = np.cumsum(after_s[..., ::-1], axis=-1)[..., ::-1]
        begin_s = _passed_on(pulls_s, forward_s, delays_s)
        queued_s = forward_s + rounds_s
        queued_s[..., :-1] += (np.maximum(turns[..., :-1], turns[..., 1:]) - 1) * (delays_s + overlaps_s)[..., :-1]
        if not training:
            fills_s = np.maximum(turns * forward_s + rounds_s, queued_s)
            least_s = np.maximum(begin_s + fills_s, each.moved_s)
            return np.asarray(np.where(has, least_s, 0.0).max(axis=-1)[None], np.float64)
        end_s, both_s = _passed_on(sync_s, backward_s, delays_s), forward_s + backward_s
        waits_s = rounds_s + np.maximum(forward_s + turns * backward_s, turns * forward_s + backward_s)
        waits_s = np.maximum(waits_s, queued_s + backward_s)
        least_s = np.maximum(begin_s + np.maximum(turns * both_s, waits_s) + end_s, each.moved_s + sync_s)
        least_s = np.where(has, least_s, 0.0).max(axis=-1)
        times = PassTimes(begin_s, forward_s, backward_s, both_s, delays_s, end_s)
        of_turns = Turns.of(each.count, *[np.where(has, each.units, 0.0)] * 2)
        return np.asarray(np.maximum(least_s, of_turns.least_steps_s(times)), np.float64)

    def in_rows(self, each: MicroBatches) -> MicroBatches:
        """Return what is of the flat stages, [N, K], placement by placement, [B, S, K]; stages that are none take 0."""

        def padded(values: Floats) -> Floats:
            found = np.zeros((*self.has.shape, values.shape[1]))
            found[self.has] = values
            return found

        found = [padded(getattr(each, name)) for name in _OF_STAGES]
        units = padded(each.units)
        units[~self.has] = 1.0
        return MicroBatches(each.count, units, *found)

    def choices(self, count: int) -> MicroBatches:
        """Return [B, V, S]: units for every time that a stage's busiest replica may work, and what they take."""
        flat, of = self.flat, self.of.problem
        ks = self.unit_choices(count)
        units = np.minimum(ks[None, :], np.maximum(of.max_units[flat.type], 1)[:, None])
        each = self.in_rows(self.micro_batches(count, units))
        own_s = each.own_s  # [B, S, K]
        own_s[~self.has] = 0.0
        times_s = np.sort(own_s.reshape(len(own_s), -1), axis=1)
        if times_s.shape[1] > _MOST_TIMES:
            places = np.unique(np.linspace(0, times_s.shape[1] - 1, _MOST_TIMES).astype(int))
            times_s = times_s[:, places]
        reaches = own_s[:, None, :, :] <= times_s[:, :, None, None] * (1 + 1e-12)
        quickest = np.argmin(own_s, axis=2)[:, None, :]
        chosen = np.where(reaches.any(axis=3), np.argmax(reaches, axis=3), quickest)
        rows, stages = np.arange(len(own_s))[:, None, None], np.arange(own_s.shape[1])[None, None, :]
        return each.changed(lambda values: values[rows, stages, chosen])

    def placement(self, row: int) -> Placement:
        """Return one of the placements."""
        return to_placement(self._types[row], self._cuts[row])

    def used_units(self, units: Floats) -> Floats:
        """Return [B, V, T], units of every type."""
        types = np.arange(self.of.problem.type_count)
        mine = (self.type[:, :, None] == types) & self.has[:, :, None]
        return np.asarray(np.einsum("bvs,bst->bvt", units, mine.astype(np.float64)), np.float64)


def _passed_on(own_s: Floats, takes_s: Floats, delays_s: Floats) -> Floats:
    """Return [..., S], what passes before stages: their own wait, and until those before pass a micro-batch on."""
    found = own_s.copy()
    for stage in range(1, own_s.shape[-1]):
        before_s = found[..., stage - 1] + takes_s[..., stage - 1] + delays_s[..., stage - 1]
        found[..., stage] = np.maximum(own_s[..., stage], before_s)
    return found
