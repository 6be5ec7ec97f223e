"""Check a committed plan: does it fit the model of today, does it keep what was asked, is there a better one.

A check passes while the plan fits, is valid, and is no further than the tolerance from what the search finds now. The
search is that of the plan's own request, so that a plan of today's model and pool is found again; where it ends above
the committed plan, it is begun from there.

Other hashes alone are no failure: weights change with every training, and a plan that is still valid and near the best
at today's prices is worth keeping. They are told.

Left out: building stages; writing the new plan (``cli/check.py``).
"""

from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.api import choose_backend
from heterps_compile.backends.mixed import MIXED
from heterps_compile.cost.evaluate import FLOOR_TOLERANCE, Fault, PlacementDetail, detail
from heterps_compile.errors import InputError
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.plan import Plan, PlannedStage
from heterps_compile.plan_diff.compare_plans import PlanDiff, diff
from heterps_compile.units import counted, format_bytes, format_money, format_rate

from .pose import PosedAgain

DEFAULT_TOLERANCE = 0.01
_ROUNDING = 1e-9

_BROKEN = {
    Fault.FORBIDDEN: "a layer stands on a device type that a pin, or what the type supports, forbids today",
    Fault.UNCUTTABLE: "a stage begins where the model cannot be cut any more",
    Fault.STAGE_COUNT: "the plan has fewer or more stages than were asked for",
}


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found.

    Attributes:
        committed: The plan that was checked.
        found: The plan that the search finds now.
        changes: From the committed plan to that one.
        fault: Why the committed plan can stay no longer; "" where it can.
        value: The objective of its decisions at today's costs and prices; None where it does not fit or is not valid.
        tolerance: The part of that value which a better plan may save before the check fails.
        stale: Names of the hashes that are others today.
    """

    committed: Plan
    found: Plan
    changes: PlanDiff
    fault: str
    value: float | None
    tolerance: float
    stale: tuple[str, ...]

    @property
    def gain(self) -> float:
        """Return the part of today's value that the plan found saves; 0 where there is no value to save."""
        return 0.0 if not self.value else max(0.0, 1 - self.found.value / self.value)

    @property
    def is_worth_writing(self) -> bool:
        """Whether the plan found should take the committed one's place, were it only for its newer provenance."""
        if self.value is None or not self.passes:
            return True
        return bool(self.stale) and self.found.value <= self.value * (1 + _ROUNDING)

    @property
    def passes(self) -> bool:
        """Whether the committed plan may stay."""
        return not self.fault and self.gain <= self.tolerance


def check_plan(posed: PosedAgain, tolerance: float = DEFAULT_TOLERANCE) -> CheckResult:
    """Check a committed plan against its model; no stage is built.

    Args:
        posed: The plan and the problem of today; what the plan asked for is asked for again.
        tolerance: The part of the plan's value which a better plan may save, 0.01 for 1 %.

    Raises:
        InfeasibleError: where no plan meets today what was asked.
        InputError: for a tolerance that makes no sense.
    """
    if not 0 <= tolerance < float("inf"):
        raise InputError(f"the tolerance is {tolerance}; it must be 0 or more, such as 0.01 for 1 %")
    plan = posed.plan
    fault, value = judge(posed)
    found = _search(posed)
    if value is not None and found.value > value:
        found = _search(posed, warm_start=posed.stages())
    return CheckResult(plan, found, diff(plan, found), fault, value, tolerance, posed.stale)


def judge(posed: PosedAgain) -> tuple[str, float | None]:
    """Return why the plan cannot stay, or the value of its decisions today."""
    if posed.placement is None:
        return posed.misfit, None
    plan, pool = posed.plan, posed.draft.cluster
    priced = detail(posed.problem, posed.placement, np.array([stage.replicas for stage in plan.stages], np.float64))
    paid = sum(pool.device_type(stage.device).price_per_hour * stage.replicas for stage in plan.stages)
    paid += plan.parameter_servers.price_per_hour
    fault = _broken_limit(posed, priced, paid)
    if fault:
        return fault, None
    if posed.problem.objective != "cost":
        return "", priced.value
    return "", paid / 3600 / priced.throughput * 1e6


def _broken_limit(posed: PosedAgain, priced: PlacementDetail, paid: float) -> str:
    """Return the first limit that the plan breaks today; "" where it keeps all of them."""
    plan, problem, currency = posed.plan, posed.problem, posed.draft.cluster.currency
    if priced.throughput < problem.min_throughput * (1 - FLOOR_TOLERANCE):
        floor = format_rate(problem.min_throughput)
        return f"the plan reaches {format_rate(priced.throughput)} today, and the floor is {floor}"
    if paid > problem.budget_per_hour * (1 + FLOOR_TOLERANCE):
        budget = format_money(problem.budget_per_hour)
        return f"the plan costs {format_money(paid)} {currency}/h today, and the budget is {budget}"
    for index, name in enumerate(problem.type_names):
        used = sum(stage.replicas for stage in plan.stages if stage.device == name)
        if used > problem.max_units[index]:
            return f"the plan uses {counted(used, 'unit')} of {name!r}, and the pool has {problem.max_units[index]}"
    for index, stage in enumerate(priced.stages):
        if priced.faults & Fault.MEMORY and stage.memory_bytes > problem.memory_bytes[stage.type]:
            has = format_bytes(problem.memory_bytes[stage.type])
            name = problem.type_names[stage.type]
            return f"stage {index} needs {format_bytes(stage.memory_bytes)} today, and {name!r} has {has}"
    return next((text for bit, text in _BROKEN.items() if priced.faults & bit), "")


def _search(posed: PosedAgain, warm_start: tuple[PlannedStage, ...] = ()) -> Plan:
    """Return the plan that the search finds now, with the backend and the options of the committed one."""
    chosen = choose_backend(posed.draft.graph, backend_name(posed.plan))
    draft = run_to(replace(posed.draft, warm_start=warm_start), Emitted)
    return make_plan(draft, chosen.on(draft.stages))


def backend_name(plan: Plan) -> str:
    """Return what the option ``--backend`` was for a plan, or what stands for it."""
    if plan.backend != MIXED:
        return plan.backend
    by_device = {stage.device: stage.backend for stage in plan.stages}
    for stage in plan.stages:  # so that a device type the plan did not use yet has a backend too
        by_device.setdefault(stage.kind, stage.backend)
    return ",".join(f"{device}={backend}" for device, backend in by_device.items())
