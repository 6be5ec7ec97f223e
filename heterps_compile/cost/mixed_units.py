"""What a plan costs whose stages may have units of several device types at once.

The units of a stage are fed in proportion to their speed. Legend as in :mod:`.problem`; k_t units of type t work on the
part x_t of a batch, K is the sum of k_t::

    CT_t = C_t (1 - alpha) + C_t alpha x_t / k_t
    DT_t = D_t (1 - beta) + D_t beta x_t / k_t + sum(k)     sum: the all-reduce of ``sync_rules/network.py``
    ET   = the least max over t of CT_t and DT_t, over parts x_t that add up to 1

In a time tau a unit of type t works on at most ``v_t(tau) = min((tau - C_t (1 - alpha)) / (C_t alpha), (tau - D_t (1 -
beta) - sum(k)) / (D_t beta))`` of a batch, so that ET is the least tau with ``sum of k_t v_t(tau) >= 1``. A
stage of one type takes what :mod:`.replicas` says. Storage behind the units of a type must keep up with whole batches.

Values go over the slowest of the links between the types of both stages, and so does the ring over the machines of
replicas of several types. Where a stage has another rule than an all-reduce, ``sum(k)`` is T(K) of :mod:`.rule_times`
over that link and in as many machines; every type must have room for what the rule holds.

Left out: the choice of units (``passes/placement/mix_types.py``), micro-batches, which cannot be parted as finely.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from heterps_compile.sync_rules.network import Network, joined, ring_share

from .all_reduce import Machines
from .memory import MEMORY_TOLERANCE
from .objective import OBJECTIVES
from .problem import Floats, Ints, Placement, Problem
from .rule_times import RuleWork, rule_works
from .segments import problem_tables
from .whole_machines import rented_units

_HALVINGS = 60
_ROUNDING = 1 + 1e-12
_FLOOR_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class MixedPlacement:
    """Where every layer goes.

    Attributes:
        starts: First layer of every stage, ascending, 0 first.
        units: [S][T], of every stage.
    """

    starts: tuple[int, ...]
    units: tuple[tuple[int, ...], ...]

    @classmethod
    def of_plain(cls, problem: Problem, placement: Placement, replicas: list[int]) -> "MixedPlacement":
        """Return a placement whose stages have one type each."""
        starts = placement.starts()
        chosen = [placement.types[first] for first in starts]
        units = [
            tuple(k if t == own else 0 for t in range(problem.type_count))
            for own, k in zip(chosen, replicas, strict=True)
        ]
        return cls(starts, tuple(units))

    @property
    def mixed_stages(self) -> int:
        """Return how many stages have units of several types."""
        return sum(sum(count > 0 for count in stage) > 1 for stage in self.units)


@dataclass(frozen=True, slots=True)
class MixedWorth:
    """What a placement takes and costs.

    Attributes:
        times_s: ET of every stage.
        throughput: Samples/s; 0 where infeasible.
        price_per_hour: Of all units, whole machines where they are rented so.
        value: The objective; inf where infeasible.
    """

    times_s: tuple[float, ...]
    throughput: float
    price_per_hour: float
    value: float


@dataclass(frozen=True, slots=True)
class TypeDetail:
    """Units of one device type in a stage.

    Attributes:
        type: Index of the device type.
        units: k_t.
        share: x_t, their part of a batch.
        compute_s, data_s: CT_t and DT_t.
    """

    type: int
    units: int
    share: float
    compute_s: float
    data_s: float


@dataclass(frozen=True, slots=True)
class MixedDetail:
    """One stage: its types, the one that works on the most first, and what the bytes take that they agree by."""

    types: tuple[TypeDetail, ...]
    sync_s: float


def detail_of(problem: Problem, placement: MixedPlacement) -> list[MixedDetail]:
    """Return the stages of a placement that fits; every ET is the longest of the types' CT and DT."""
    details = []
    for stage, speeds in enumerate(_stages(problem, placement)):
        if speeds is None:
            raise ValueError("a stage does not fit its units")
        units = np.asarray(placement.units[stage], np.float64)[speeds.types]
        shares = speeds.shares(units)
        compute_s = speeds.serial_compute_s + speeds.shared_compute_s * shares / units
        agree_s = speeds.agree_s(units)
        data_s = speeds.serial_data_s + speeds.shared_data_s * shares / units + agree_s
        columns = (speeds.types, units.astype(int), shares, compute_s, np.maximum(data_s, speeds.least_s))
        types = [TypeDetail(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        types.sort(key=lambda each: (-each.share, each.type))
        details.append(MixedDetail(tuple(types), agree_s))
    return details


def worth_of(problem: Problem, placement: MixedPlacement) -> MixedWorth:
    """Return what a placement takes and costs; O(types * (layers + readers)) for each stage.

    The objective is cost, price or throughput: others have no use for stages of several types.
    """
    used = np.asarray(placement.units, np.float64).sum(axis=0)
    paid = float(rented_units(problem, used) @ problem.price_per_hour)
    times_s = tuple(_times_s(problem, placement))
    batch_s = max(times_s)
    is_feasible = (
        np.isfinite(batch_s)
        and problem.batch / batch_s >= problem.min_throughput * (1 - _FLOOR_TOLERANCE)
        and bool(np.all(used <= problem.max_units))
        and paid <= problem.budget_per_hour * (1 + _FLOOR_TOLERANCE)
        and problem.min_stages <= len(placement.starts) <= problem.max_stages
        and not any(problem.uncuttable[first] for first in placement.starts[1:])
    )
    if not is_feasible:
        return MixedWorth(times_s, 0.0, paid, float("inf"))
    value = OBJECTIVES[problem.objective].paid(paid, problem.batch / batch_s)
    return MixedWorth(times_s, problem.batch / batch_s, paid, batch_s if value is None else value)


def _times_s(problem: Problem, placement: MixedPlacement) -> Iterator[float]:
    """Yield ET of every stage, inf where it cannot run."""
    for units, speeds in zip(placement.units, _stages(problem, placement), strict=True):
        yield float("inf") if speeds is None else speeds.time_s(np.asarray(units, np.float64)[speeds.types])


def _stages(problem: Problem, placement: MixedPlacement) -> "Iterator[_Speeds | None]":
    """Yield every stage on its types; None where it cannot run."""
    used: list[Ints] = [np.flatnonzero(stage) for stage in placement.units]
    traffic = [_traffic_s(problem, placement, stage, used) for stage in range(len(used))]
    for stage, (first, end) in enumerate(pairwise((*placement.starts, problem.layer_count))):
        types = used[stage]
        if not len(types) or not _fits(problem, first, end, types):
            yield None
            continue
        yield _Speeds.of(problem, first, end, types, traffic[stage])


@dataclass(frozen=True, slots=True, eq=False)
class _Speeds:
    """A stage on each of its types; [types] each."""

    serial_compute_s: Floats
    shared_compute_s: Floats
    serial_data_s: Floats
    shared_data_s: Floats
    sync_s: Floats
    least_s: float
    problem: Problem
    types: Ints
    rules: tuple[tuple[RuleWork, Floats], ...] | None = None

    @classmethod
    def of(cls, problem: Problem, first: int, end: int, types: Ints, traffic_s: Floats) -> "_Speeds":
        shape = (problem.layer_count, problem.type_count)
        alpha, beta = (np.broadcast_to(part, shape)[first:end, types] for part in (problem.alpha, problem.beta))
        compute_s, data_s = problem.compute_s[first:end, types], problem.data_s[first:end, types]
        of_cuts = problem.data_parallel[types]
        shared = 0.0 if problem.shared_s is None else float(problem.shared_s[first:end, types].sum(axis=0).max())
        return cls(
            (compute_s * (1 - alpha)).sum(axis=0),
            (compute_s * alpha).sum(axis=0),
            (data_s * (1 - beta)).sum(axis=0) + traffic_s * (1 - of_cuts),
            (data_s * beta).sum(axis=0) + traffic_s * of_cuts,
            problem.sync_s[first:end, types].sum(axis=0),
            shared,
            problem,
            types,
            _rules_of(problem, first, end, types),
        )

    def time_s(self, units: Floats) -> float:
        """Return the least time in which the units work off a batch."""
        data_s = self.serial_data_s + self.agree_s(units)
        if not np.all(np.isfinite(data_s)):  # so many units may not have any rule
            return float("inf")
        low_s = max(float(self.serial_compute_s.max()), float(data_s.max()), self.least_s)
        high_s = low_s + float(np.max(self.shared_compute_s + self.shared_data_s))
        if self._worked_off(low_s, data_s, units) >= 1:
            return low_s
        for _ in range(_HALVINGS):
            middle_s = (low_s + high_s) / 2
            if self._worked_off(middle_s, data_s, units) >= 1:
                high_s = middle_s
            else:
                low_s = middle_s
        return high_s

    def agree_s(self, units: Floats) -> float:
        """Return what the bytes of the units' all-reduce take, or of the rule that takes the least."""
        if self.rules is None:
            return self._network(self.sync_s, units).sums_s(1.0, int(units.sum()))
        total = np.array([units.sum()])
        return min(rule.time_s(total, self._machines(rule, own_s, units)).item() for rule, own_s in self.rules)

    def _network(self, byte_s: Floats, units: Floats) -> Network:
        """Return what connects the units, of which an endless ring takes so many seconds [types] over their cards."""
        machines = self.problem.machines
        size, inner = (1.0, 0.0) if machines is None else (machines.units[self.types], machines.inner[self.types])
        columns = np.broadcast_arrays(byte_s / 2, size, byte_s / 2 * inner, units)
        parts = [
            (Network(own_s, 0.0, int(each), inner_s), int(count))
            for own_s, each, inner_s, count in zip(*(column.tolist() for column in columns), strict=True)
        ]
        return joined(parts, float(byte_s.max() / 2) * _slower(self.problem, self.types), 0.0)

    def _machines(self, rule: RuleWork, byte_s: Floats, units: Floats) -> Machines | None:
        """Return the machines of the units for a rule; None where each unit is one."""
        if self.problem.machines is None:
            return None
        of = self._network(byte_s, units)
        size, inner = float(of.units_per_machine), of.inner_seconds_per_byte / (of.seconds_per_byte or 1.0)
        if not rule.form.halves:  # as many machines as there are, some partly filled
            size = _ROUNDING * float(units.sum()) / of.joined_machines
            inner *= float(ring_share(of.units_per_machine) / ring_share(size))
        return Machines(np.array([size]), np.array([inner]))

    def shares(self, units: Floats) -> Floats:
        """Return x_t, the part of a batch that the units of each type work on; they add up to 1."""
        found = units * self._speeds(self.time_s(units), self.serial_data_s + self.agree_s(units))
        return np.asarray(found / found.sum(), np.float64)

    def _worked_off(self, time_s: float, data_s: Floats, units: Floats) -> float:
        return float(self._speeds(time_s, data_s) @ units)

    def _speeds(self, time_s: float, data_s: Floats) -> Floats:
        """Return v_t, the part of a batch that one unit of each type works on at most in a time."""
        with np.errstate(divide="ignore", invalid="ignore"):
            compute = np.where(self.shared_compute_s > 0, (time_s - self.serial_compute_s) / self.shared_compute_s, 1.0)
            data = np.where(self.shared_data_s > 0, (time_s - data_s) / self.shared_data_s, 1.0)
        return np.asarray(np.clip(np.minimum(compute, data), 0.0, None), np.float64)


def _slower(problem: Problem, types: Ints) -> float:
    """Return how many times as long a byte takes over the slowest link between types as over that of one of them."""
    if problem.ring_seconds_per_byte is None or len(types) == 1:
        return 1.0
    between = problem.ring_seconds_per_byte[np.ix_(types, types)]
    return float(between.max() / between.diagonal().max())


def _rules_of(problem: Problem, first: int, end: int, types: Ints) -> tuple[tuple[RuleWork, Floats], ...] | None:
    """Return the rules that a stage may have, of several types as the slowest of them has it; None for all-reduce.

    Each comes with the seconds [types] of its bytes over the card of a type.
    """
    if problem.rules is None:
        return None
    works = rule_works([each.map(lambda table: table[first:end, types].sum(axis=0)) for each in problem.rules], types)
    slower = _slower(problem, types)

    def of_slowest(work: RuleWork) -> tuple[RuleWork, Floats]:
        ring_s, gather_s = (np.array([each.max() * slower]) for each in (work.ring_s, work.gather_s))
        most, most_uneven = (np.array([each.min()]) for each in (work.most, work.most_uneven))
        found = RuleWork(work.form, ring_s, gather_s, most, most_uneven, work.sums[:1])
        return found, work.ring_s + work.gather_s

    return tuple(map(of_slowest, works))


def _fits(problem: Problem, first: int, end: int, types: Ints) -> bool:
    if not problem_tables(problem).usable[first:end, types].all():
        return False
    together = (problem.tied_first >= first) & (problem.tied_second < end)
    activations = problem.activation_bytes[first:end]
    held = problem.weight_bytes[first:end].sum() - problem.tied_bytes[together].sum()
    held += activations.sum() if problem.keeps_activations else activations.max()
    return bool(np.all(held <= problem.memory_bytes[types] * (1 + MEMORY_TOLERANCE)))


def _traffic_s(problem: Problem, placement: MixedPlacement, stage: int, used: list[Ints]) -> Floats:
    """Return what a unit of each type of a stage takes to receive and to send the values of a batch."""
    types, stage_of = used[stage], np.searchsorted(placement.starts, np.arange(problem.layer_count), side="right") - 1
    moved_s, latest_in_s, latest_out_s = (np.zeros(len(types)) for _ in range(3))
    for value, producer in enumerate(problem.edge_producer.tolist()):
        readers = problem.edge_readers[problem.edge_starts[value] : problem.edge_starts[value + 1]]
        home, size = stage_of[producer], problem.edge_bytes[value]
        away = sorted({int(stage_of[reader]) for reader in readers} - {int(home)})
        if size <= 0 or not away:
            continue
        if stage in away:
            per_byte, latency_s = _slowest(problem, types, used[home])
            moved_s, latest_in_s = moved_s + size * per_byte, np.maximum(latest_in_s, latency_s)
        if stage == home:
            ends = np.unique(np.concatenate([used[other] for other in away]))
            per_byte, latency_s = _slowest(problem, types, ends)
            moved_s, latest_out_s = moved_s + size * per_byte, np.maximum(latest_out_s, latency_s)
    return np.asarray(moved_s + latest_in_s + latest_out_s, np.float64)


def _slowest(problem: Problem, types: Ints, others: Ints) -> tuple[Floats, Floats]:
    """Return seconds per byte and latency of units of types that talk with those of others, the slowest of these."""
    if problem.link_seconds_per_byte is None or problem.link_latency_s is None or not len(others):
        return problem.seconds_per_byte[types], problem.latency_s[types]
    pairs = np.ix_(types, others)
    return problem.link_seconds_per_byte[pairs].max(axis=1), problem.link_latency_s[pairs].max(axis=1)
