"""Check a committed plan: does it fit the model of today, does it keep what was asked, is there a better one.

A check passes while the plan fits, is valid, and is no further than the tolerance from what the search finds now. The
search is that of the plan's own request, so that a plan of today's model and pool is found again; where it ends above
the committed plan, it is begun from there.

Other hashes alone are no failure: weights change with every training, and a plan that is still valid and near the best
at today's prices is worth keeping. They are told.

Left out: building stages; writing the new plan (``cli/check.py``).
"""

from dataclasses import dataclass, fields, replace

from heterps_compile.api import choose_backend
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.errors import InputError
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Emitted, Layered, advance
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.request import Request
from heterps_compile.plan_diff.compare_plans import PlanDiff, diff
from heterps_compile.plan_diff.numbers import compare_numbers
from heterps_compile.plan_diff.sentences import told_setting

from .judge import backend_name, judge
from .pose import PosedAgain
from .today import can_be_priced, plan_today

DEFAULT_TOLERANCE = 0.01
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found.

    Attributes:
        committed: The plan that was checked.
        found: The plan that the search finds now.
        changes: From the committed plan to that one; its numbers begin with those of today, as ``value`` does.
        is_priced: Whether they do; where the plan cannot be priced any more, they begin with those of its file.
        fault: Why the committed plan can stay no longer; "" where it can.
        value: The objective of its decisions at today's costs and prices; None where it does not fit or is not valid.
        tolerance: How much better another plan may be before the check fails.
        stale: Names of the hashes that are others today.
    """

    committed: Plan
    found: Plan
    changes: PlanDiff
    is_priced: bool
    fault: str
    value: float | None
    tolerance: float
    stale: tuple[str, ...]

    @property
    def gain(self) -> float:
        """Return how much better the plan found is, as a part of today's number; 0 where there is no number."""
        objective = OBJECTIVES[self.found.request.objective]
        return 0.0 if not self.value else max(0.0, objective.better_by(self.value, self.found.value))

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
        tolerance: How much better another plan may be, 0.01 for 1 %.

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
    changes, is_priced = diff(plan, found), can_be_priced(posed)
    fault = fault or _of_another_request(changes)
    if is_priced:
        changes = replace(changes, numbers=compare_numbers(plan_today(posed, allow_stale=True).plan, found))
    return CheckResult(plan, found, changes, is_priced, fault, value, tolerance, posed.stale)


def _of_another_request(changes: PlanDiff) -> str:
    """Say what is asked for otherwise than when the plan was made; "" where nothing is."""
    names = {field.name for field in fields(Request)}
    told = [told_setting(change, str) for change in changes.settings if change.name in names]
    return f"it was made for another request: {'; '.join(told)}" if told else ""


def _search(posed: PosedAgain, warm_start: tuple[PlannedStage, ...] = ()) -> Plan:
    """Return the plan that the search finds now, with the backend and the options of the committed one."""
    chosen = choose_backend(posed.draft.graph, backend_name(posed.plan))
    # where tables lie is decided anew
    opened = advance(replace(posed.draft, served_layers=None, warm_start=warm_start), Layered)
    draft = run_to(opened, Emitted)
    return make_plan(draft, chosen.on(draft.stages))
