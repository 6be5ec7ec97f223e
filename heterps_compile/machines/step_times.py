"""What a step of a model takes on a set of machines: a bound that costs nothing, a likely time, and a searched plan.

All three are of the cost model that every plan uses: a set is a pool of its machines, posed as any other problem.

- The **bound** shares all computing and the optimizer's step freely among all units, with nothing to wait for and
  nothing to send: some unit updates a layer behind its last backward, whatever the replicas do, and no step is shorter
  than that of one layer. For units of
  two types it is the linear programme ``min t, sum over l of x_l a_l <= t k_a, sum over l of (1 - x_l) b_l <= t k_b``,
  solved by dealing layers in the order of ``a_l / b_l``.
- The **likely** time is that of replicas of the whole model: their computing and their all-reduce.
- The **searched** plan is the best step found over placements, replicas, micro-batches and schedules by the search
  over steps, begun from the simple plans, and of two kinds the one stage that all units are replicas of, each fed by
  its speed. A step depends neither on prices nor on who rents the machines out, so that
  sets of the same hardware are searched once.

Left out: the search that proves (``compile`` runs it on the set that is chosen), one stage of more than 512 units of
two kinds, several stages of which some have replicas that differ (``compile`` looks for these too where the one stage
is chosen).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cost.allowed import allowed_types
from heterps_compile.cost.gradients import ring_bytes
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.memory import layer_parameters_bytes
from heterps_compile.cost.mixed_units import MixedPlacement, detail_of, worth_of
from heterps_compile.cost.own_work import update_times
from heterps_compile.cost.pose import network_of
from heterps_compile.cost.problem import Floats
from heterps_compile.errors import InfeasibleError
from heterps_compile.ir.graph import Graph
from heterps_compile.offers.as_device import data_sheet
from heterps_compile.offers.offer import CURRENCY
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.drafts import Annotated, Draft, Layered, Posed
from heterps_compile.passes.mixed_stages import mixed_steps
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.steps.anneal_steps import StepAnnealing
from heterps_compile.passes.placement.steps.step_closing import ClosingEffort, bound_below, none_below
from heterps_compile.passes.placement.steps.step_plans import SteppedPlan, with_units
from heterps_compile.passes.placement.steps.step_search import StepEffort
from heterps_compile.passes.placement.steps.step_segments import StepSegments
from heterps_compile.passes.step_orders import best_steps, in_branch_order, steps_of
from heterps_compile.plan.request import Request
from heterps_compile.schedule.shortest_step import SAME_TIME, TRAINING_SCHEDULES, Step, step_under
from heterps_compile.schedule.step_problem import StepProblem
from heterps_compile.units import format_percent

from .learned import NOTHING, Learned
from .machine_set import MachineSet

QUICK = StepEffort(actions=200_000, annealing=StepAnnealing(changes=20_000, walks=3))
"""How hard a set is searched while sets are compared."""

QUICK_CLOSING = ClosingEffort(cells=300_000, branches=40_000, extended=2_000, choices=500, actions=100_000)
"""How hard it is tried to prove that a plan that was searched for is the best on its set."""

RULING_OUT = ClosingEffort(cells=300_000, branches=60_000, extended=1_500, choices=500, actions=100_000)
"""How hard it is tried to prove that no plan on a set is good enough, before any is searched for."""

_Parts = tuple[DeviceType, ...]

PART = "part-"
"""What the kinds of a set are called while it is searched, before their number: no step depends on their names."""

NO_ROOM = "no plan was found that its units have memory for"
"""Why a set has no plan that the search found."""

_FEW_UNITS = 24  # of a set on which branch and bound has been seen to end
_MOST_SHARED = 512  # units of two kinds that one stage is simulated on
_LESS = 40  # times less is tried on more


def _shares_too_many(posed: Posed) -> bool:
    """Tell if two kinds have too many units to simulate one stage on."""
    units = posed.problem.max_units
    return len(units) > 1 and bool(units.sum() > _MOST_SHARED)


def _tried(effort: ClosingEffort, posed: Posed) -> ClosingEffort:
    """Return how hard it is tried to prove something of a set: less on so many units that it is in vain."""
    if posed.problem.max_units.sum() <= _FEW_UNITS:
        return effort
    return replace(effort, branches=effort.branches // _LESS, extended=effort.extended // _LESS)


@dataclass(frozen=True, slots=True)
class StepFound:
    """The best step that was found on a set of machines.

    Attributes:
        step_s: Of a whole batch.
        stages: Units of every stage, and which part of the set they belong to.
        micro_batches: In the step.
        schedule: That they follow.
        shares: Where both kinds are replicas of one stage, the part of a batch that each works on in the steady state;
            empty where every stage has units of one kind.
        least_s: No plan on the set in the orders of the layers that are searched, whose stages have one kind each or
            which is one stage of both, has a shorter step; 0 where nothing is proven beyond the bound that costs
            nothing.
        slower: Factor on the step for nine of ten runs because a network is a guess; 1 for known networks.
    """

    step_s: float
    stages: tuple[tuple[int, int], ...]
    micro_batches: int
    schedule: str
    shares: tuple[float, ...] = ()
    least_s: float = 0.0
    slower: float = 1.0

    def on_what_it_uses(self, machines: MachineSet) -> tuple[MachineSet, "StepFound"]:
        """Return the machines of a set that the plan uses, and the step on these."""
        used = Counter[int]()
        for units, part in self.stages:
            used[part] += units
        kept = [part for part in range(len(machines.parts)) if used[part]]
        parts = tuple(
            (rental, -(-used[part] // rental.offer.units)) for part in kept for rental, _ in [machines.parts[part]]
        )
        return replace(machines, parts=parts), replace(
            self, stages=tuple((units, kept.index(part)) for units, part in self.stages)
        )

    @property
    def words(self) -> str:
        """Return the plan in words: "8 replicas", "3 stages of 4, 8 and 4 units"."""
        units = [str(count) for count, _ in self.stages]
        if self.shares:
            parts = " and ".join(format_percent(100 * share) for share in self.shares)
            return f"{' + '.join(units)} replicas of one stage, which work on {parts} of a batch"
        if len(units) == 1:
            return "1 unit" if units == ["1"] else f"{units[0]} replicas"
        return f"{len(units)} stages of {', '.join(units[:-1])} and {units[-1]} units"


class _OneBatch:
    """The model with one batch, and its facts that no machine changes."""

    def __init__(self, layered: Layered) -> None:
        self.layered = layered

    def on(self, devices: Sequence[DeviceType]) -> Annotated:
        """Return the annotated model on a pool of some types."""
        return run_to(replace(self.layered, cluster=_pool(devices)), Annotated)

    @cached_property
    def _draft(self) -> Annotated:
        return self.on((data_sheet(""),))

    @cached_property
    def is_fixed_order(self) -> bool:
        draft = self._draft
        return draft.orders.is_fixed

    @cached_property
    def state_bytes(self) -> float:
        draft, optimizer = self._draft, self._draft.request.optimizer
        found = (layer_parameters_bytes(draft.layers, i, c, optimizer=optimizer) for i, c in enumerate(draft.costs))
        return float(sum(found))

    @cached_property
    def ring_bytes(self) -> float:
        return float(sum(ring_bytes(self._draft.layers, i, cost) for i, cost in enumerate(self._draft.costs)))


class StepTimes:
    """Steps of training one model on sets of machines.

    Attributes:
        searches: How many plans were searched for.
        learned: What measurements say of kinds of units, for which all steps are corrected.
    """

    def __init__(
        self, read: Callable[[int], Graph], request: Request, seed: int = 0, learned: Learned = NOTHING
    ) -> None:
        """Begin; ``read`` returns the model for a batch, ``request`` says how it is trained."""
        self._read, self._seed, self.learned = read, seed, learned
        self._request = replace(request, mode="training", objective="throughput")
        self._layered: dict[int, _OneBatch] = {}
        self._work: dict[object, Floats] = {}
        self._found: dict[object, StepFound | str] = {}
        self._posed: dict[object, Posed | str] = {}
        self._segments: dict[object, tuple[StepSegments, ...]] = {}
        self._shared: dict[object, StepFound | None] = {}
        self.searches = 0

    def with_learned(self, learned: Learned) -> "StepTimes":
        """Return steps of the same model as they are corrected by what was learned."""
        corrected = StepTimes(self._read, self._request, self._seed, learned)
        corrected._layered = self._layered
        return corrected

    def graph(self, batch: int) -> Graph:
        """Return the model with a batch."""
        return self._of(batch).layered.graph

    def is_divisible(self, batch: int) -> bool:
        """Return whether replicas can share the batch."""
        return self.graph(batch).is_divisible

    def is_fixed_order(self, batch: int) -> bool:
        """Return whether the layers have one order alone, so that what holds of plans in it holds of all."""
        return self._of(batch).is_fixed_order

    def computed_s(self, device: DeviceType, units: Floats, batch: int) -> Floats:
        """Divide the computing of a batch by units of a type, shape [N]; inf if it cannot run."""
        work_s = float(self.work_s(device, batch)[0].sum())
        return np.asarray(work_s / units if self.is_divisible(batch) else np.full(len(units), work_s), np.float64)

    def least_s(self, device: DeviceType, units: Floats, batch: int) -> Floats:
        """Return [N], lower bounds on the steps of every plan on so many units of a type; inf where it cannot run."""
        if not self.is_divisible(batch):  # there is one micro-batch, which layer after layer takes on one unit
            return self.computed_s(device, units, batch)
        work_s = self.work_s(device, batch)
        return np.asarray(np.maximum(float(work_s.sum()) / units, float(work_s[1].max())), np.float64)

    def least_of_two_s(
        self, device: DeviceType, units: Floats, other: DeviceType, others: Floats, batch: int
    ) -> Floats:
        """Return [N], the same for units of two types together."""
        work_s, other_s = self.work_s(device, batch), self.work_s(other, batch)
        if not self.is_divisible(batch):
            return np.full(len(units), np.minimum(work_s[0], other_s[0]).sum())
        shared_s = least_shared_s(work_s.sum(axis=0), other_s.sum(axis=0), units, others)
        return np.asarray(np.maximum(shared_s, float(np.minimum(work_s[1], other_s[1]).max())), np.float64)

    def likely_s(self, device: DeviceType, units: Floats, batch: int) -> Floats:
        """Return [N], what replicas of the whole model would take: their computing and their all-reduce."""
        computed_s = self.computed_s(device, units, batch)
        if not self.is_divisible(batch):
            return computed_s
        network, size_bytes = network_of(_pool((device,)), device.name), self._of(batch).ring_bytes
        reduced_s = [network.all_reduce_s(size_bytes, int(count)) for count in units]
        return np.asarray(computed_s + np.array(reduced_s), np.float64)

    def searched(self, machines: MachineSet, batch: int, effort: StepEffort = QUICK) -> StepFound | str:
        """Return the best step found on a set, or in a sentence why there is none.

        Args:
            machines: The set.
            batch: Samples in a step.
            effort: How hard to search.
        """
        parts, order = self._hardware(machines)
        key = (batch, repr(parts), effort)
        if key not in self._found:
            self._found[key] = self._search(parts, batch, effort)
        found = self._found[key]
        if isinstance(found, str):
            return found
        placed = [(units, order[part]) for units, part in found.stages]
        if not found.shares:
            return replace(found, stages=tuple(placed))
        both = sorted(zip(placed, found.shares, strict=True), key=lambda each: each[0][1])
        return replace(found, stages=tuple(one for one, _ in both), shares=tuple(share for _, share in both))

    def is_slower(self, machines: MachineSet, batch: int, than_s: float) -> bool:
        """Return whether it is proven that no plan on a set, in the orders that are searched, has a step below a time.

        Plans whose stages have units of one kind each, and the one that both kinds are replicas of.
        """
        parts, _ = self._hardware(machines)
        key = (batch, repr(parts))
        posed = self._pose(parts, batch)
        if isinstance(posed, str):
            return True
        if _shares_too_many(posed):
            return False
        shared = self._share(parts, batch)
        if shared is not None and shared.step_s < than_s:
            return False
        if key not in self._segments:
            self._segments[key] = _segments(posed)
        return all(none_below(each, than_s, _tried(RULING_OUT, posed)) for each in self._segments[key])

    def work_s(self, device: DeviceType, batch: int) -> Floats:
        """Compute seconds of computing and of updates on one unit, shape [2, L]; inf if not allowed."""
        alone = replace(device, max_units=1, units_per_machine=1, whole_machines=False, network_bytes_per_s=1e9)
        unit = replace(alone, name="unit", price_per_hour=1.0, price_source="", price_date="")
        key = (batch, repr(unit))
        if key not in self._work:
            draft = self._of(batch).on((unit,))
            times = layer_times(
                draft.layers, draft.costs, draft.cluster,
                training=True, precision=self._request.precision,
            )  # fmt: skip
            usable = allowed_types(draft.layers, draft.cluster, (), (), draft.costs)
            optimizer = self._request.trains_with
            update_s = 0.0 if optimizer is None else update_times(draft.layers, draft.costs, times, optimizer)[:, 0]
            works_s = np.stack(np.broadcast_arrays(times.compute_s[:, 0], update_s))
            self._work[key] = np.where(usable[:, 0], works_s, np.inf)
        return self._work[key]

    def segments_of(self, device: DeviceType, units: int, batch: int) -> tuple[StepSegments, ...]:
        """Return the stages there may be on at least so many units of a type, by order of the layers; () for none."""
        machines = -(-units // device.units_per_machine)
        many = replace(_nameless(device), max_units=machines * device.units_per_machine)
        posed = self._pose((many,), batch)
        return () if isinstance(posed, str) else _segments(posed)

    def runs(self, device: DeviceType, batch: int) -> int:
        """Return how many runs of layers may be stages, by where a chain on a type may be cut; 0 if it cannot run."""
        return max(
            (each.chain.length * (each.chain.length + 1) // 2 for each in self.segments_of(device, 1, batch)), default=0
        )

    def state_bytes(self, batch: int) -> float:
        """Return what a training holds of its parameters, their gradients and states: no checkpoint has more."""
        return self._of(batch).state_bytes

    def checkpoint_s(self, machines: MachineSet, batch: int) -> float:
        """Return how long all wait for a checkpoint: its bytes at the rate at which one unit talks to storage."""
        return self.state_bytes(batch) / min(device.input_bytes_per_s for device in machines.pool().device_types)

    def _search(self, parts: _Parts, batch: int, effort: StepEffort) -> StepFound | str:
        self.searches += 1
        posed = self._pose(parts, batch)
        if isinstance(posed, str):
            return posed
        shared = self._share(parts, batch)
        closing = _tried(QUICK_CLOSING, posed)
        steps = best_steps([(posed, [])], Deadline.after(None), effort=effort, seed=self._seed, closing=closing)
        plan, names, bound = steps.found.plan, [device.name for device in parts], max(steps.found.bound, 0.0)
        if plan is not None and bound > 0:
            others = (bound_below(StepSegments(of), plan.value, closing) for of in steps.others)
            bound = max(0.0, min((bound, *others)))
        if plan is None or (shared is not None and shared.step_s < plan.step.step_s):
            return NO_ROOM if shared is None else replace(shared, least_s=min(bound, shared.step_s))
        posed = steps.draft
        types = [posed.problem.type_names[plan.placement.types[first]] for first in plan.placement.starts()]
        stages = tuple((units, names.index(name)) for units, name in zip(plan.step.units, types, strict=True))
        least_s = 0.0 if _shares_too_many(posed) else bound
        schedule = _schedule_of(steps.of, plan)
        return StepFound(plan.step.step_s, stages, plan.step.micro_batches, schedule, least_s=least_s)

    def _pose(self, parts: _Parts, batch: int) -> Posed | str:
        """Return the model on some units as a problem, or in a sentence why it has no plan there."""
        key = (batch, repr(parts))
        if key not in self._posed:
            try:
                self._posed[key] = run_to(self._of(batch).on(parts), Posed)
            except InfeasibleError as error:
                self._posed[key] = str(error)
        return self._posed[key]

    def _share(self, parts: _Parts, batch: int) -> StepFound | None:
        """Return the step of replicas of one stage on units of two kinds, each fed by its speed; None for none."""
        key = (batch, repr(parts))
        if key not in self._shared:
            posed = self._pose(parts, batch)
            self._shared[key] = None
            if isinstance(posed, str) or len(parts) == 1 or _shares_too_many(posed):
                return None
            if self.is_divisible(batch):
                whole = MixedPlacement((0,), (tuple(int(units) for units in posed.problem.max_units),))
                plans = [whole] if np.isfinite(worth_of(posed.problem, whole).value) else []  # a kind may lack memory
                self._shared[key] = next((_one_stage(posed, *each) for each in mixed_steps(posed, plans)), None)
        return self._shared[key]

    def _of(self, batch: int) -> "_OneBatch":
        if batch not in self._layered:
            opened = Draft(graph=self._read(batch), cluster=_pool((data_sheet(""),)), request=self._request)
            self._layered[batch] = _OneBatch(run_to(opened, Layered))
        return self._layered[batch]

    def _hardware(self, machines: MachineSet) -> tuple[_Parts, tuple[int, ...]]:
        """Return the types of a set without what no step depends on, in an order of their own, and their places.

        That is names, prices, where they were read, and which is named first.
        """
        devices = [_nameless(device) for device in machines.pool().device_types]
        order = sorted(range(len(devices)), key=lambda part: repr(devices[part]))
        return tuple(replace(devices[part], name=f"{PART}{number}") for number, part in enumerate(order)), tuple(order)


def _segments(posed: Posed) -> tuple[StepSegments, ...]:
    """Return the stages there may be in each order of the layers that is searched."""
    branched = in_branch_order(posed)
    return tuple(StepSegments(steps_of(each)) for each in ((posed,) if branched is posed else (posed, branched)))


def _nameless(device: DeviceType) -> DeviceType:
    return replace(device, name=f"{PART}0", price_per_hour=1.0, price_source="", price_date="")


def _schedule_of(of: StepProblem, plan: SteppedPlan) -> str:
    """Return the schedule that a plan has when it is written: of those with its step, the one that holds the least.

    Where memory does not bind and so is not known, it is the one with the fewest micro-batches under way.
    """
    step = plan.step
    [found] = with_units(of, plan.placement, step.units, [step.micro_batches])
    loads = of.with_memory(plan.placement, found.loads)
    tried = [step_under(name, loads, step.micro_batches, training=True) for name in TRAINING_SCHEDULES]
    tried = [each for each in tried if each.fits] or tried
    shortest_s = min(each.step_s for each in tried)
    alike = (each for each in tried if each.step_s <= shortest_s * SAME_TIME)
    return min(alike, key=lambda each: (each.held_bytes, sum(each.peak_in_flight))).schedule


def _pool(devices: Sequence[DeviceType]) -> Cluster:
    return Cluster("machines", "", CURRENCY, tuple(devices))


def _one_stage(posed: Posed, placement: MixedPlacement, _: object, step: Step) -> StepFound | None:
    """Return a step of one stage that two kinds share; None where one of them has nothing to do."""
    (stage,) = detail_of(posed.problem, placement)
    if len(stage.types) == 1:
        return None
    types = sorted(stage.types, key=lambda each: each.type)
    stages = tuple((each.units, each.type) for each in types)
    return StepFound(step.step_s, stages, step.micro_batches, step.schedule, tuple(each.share for each in types))


def least_shared_s(work_s: Floats, other_s: Floats, units: Floats, others: Floats) -> Floats:
    """Return [N], the least time in which units of two types compute all layers, dealt freely; O(N L).

    Args:
        work_s: [L], of every layer on one unit of the first type; inf where it may not run.
        other_s: [L], the same of the second type.
        units: [N], how many there are of the first.
        others: [N], and of the second.
    """
    only, only_other = np.isinf(other_s), np.isinf(work_s)
    if np.any(only & only_other):
        return np.full(len(units), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(only, -np.inf, np.where(only_other, np.inf, work_s / np.maximum(other_s, 1e-300)))
    order = np.argsort(ratio, kind="stable")
    first = np.where(only_other, 0.0, work_s)[order]  # what is dealt last to the first type never is
    second = np.where(only, 0.0, other_s)[order]
    low, high = int(only.sum()), len(order) - int(only_other.sum())
    done = np.concatenate([[0.0], np.cumsum(first)])[low : high + 1]
    left = second.sum() - np.concatenate([[0.0], np.cumsum(second)])[low : high + 1]
    excess = done[None, :] / units[:, None] - left[None, :] / others[:, None]
    at = np.clip((excess <= 0).sum(axis=1) - 1, 0, max(len(done) - 2, 0))
    rows = np.arange(len(units))
    if len(done) == 1:
        return np.asarray(np.maximum(done[0] / units, left[0] / others), np.float64)
    here, there = excess[rows, at], excess[rows, at + 1]
    part = np.clip(np.where(there > here, -here / np.where(there > here, there - here, 1.0), 0.0), 0.0, 1.0)
    done_s = (done[at] + part * (done[at + 1] - done[at])) / units
    left_s = (left[at] + part * (left[at + 1] - left[at])) / others
    return np.asarray(np.maximum(done_s, left_s), np.float64)
