"""A plan's decisions with today's estimates: what a committed plan is worth on the model and pool at hand.

Layers, device types, replicas and schedule stay as they are; times, memory, prices and throughput are computed as a
compilation would. For a plan of this very model and pool they come out as its file has them.

Left out: other decisions, which ``check.py`` searches for; artefacts, which belong to the plan as it was.
"""

from dataclasses import dataclass, replace

from heterps_compile.api import choose_backend
from heterps_compile.cost.evaluate import Fault
from heterps_compile.cost.problem import SearchResult
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.choose_rules import ChooseRules
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.drafts import Emitted, Provisioned, advance
from heterps_compile.passes.emit_stages import EmitStages
from heterps_compile.passes.pipeline import run_passes
from heterps_compile.passes.provision import priced_stages, tables_on_servers
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.plan_notes import NO_LONGER

from .judge import backend_name, judge, own_detail, servers_today
from .pose import PosedAgain
from .scheduled_today import decided_rules


@dataclass(frozen=True, slots=True)
class PlanToday:
    """A plan with today's estimates.

    Attributes:
        plan: Its decisions, and what they are estimated to do today.
        broken: Why it does not hold any more, as a note; none where it does.
    """

    plan: Plan
    broken: tuple[str, ...] = ()


def can_be_priced(posed: PosedAgain) -> bool:
    """Whether a plan has estimates today: it fits, and no layer stands where it cannot run or a stage be cut."""
    if posed.placement is None:
        return False
    return not own_detail(posed, posed.placement).faults & (Fault.FORBIDDEN | Fault.UNCUTTABLE)


def plan_today(posed: PosedAgain, *, allow_stale: bool = False) -> PlanToday:
    """Compute a plan's estimates again.

    Args:
        posed: The plan and the problem of today.
        allow_stale: Take a plan that was made from another model, pool or profile.

    Raises:
        StalePlanError: where the plan does not fit the model, or was made from something else.
    """
    plan = posed.plan
    placement = posed.fitting(allow_stale=allow_stale)
    priced = own_detail(posed, placement)
    broken, value = judge(posed)
    if value is None:  # broken: the search gives such a plan no value
        value = max(stage.time_s for stage in priced.stages)
    # What was proven or found for one problem is not known of another one, where it is another today.
    is_another = any(name != "weights" for name in posed.stale)
    bound, of_all = (0.0 if is_another else min(bound, value) for bound in (plan.bound, plan.bound_of_all_orders))
    search = SearchResult(placement, value, bound, plan.method, plan.request.seed, plan.evaluations, 0.0)
    steady_bound = 0.0 if is_another else plan.steady_bound
    search = replace(search, found_by=plan.found_by, bound_of_all_orders=of_all, steady_bound=steady_bound)
    stages = priced_stages(posed.draft, posed.stages(), priced.stages)
    servers = servers_today(posed)
    provisioned = advance(
        posed.draft,
        Provisioned,
        search=search,
        other=None if is_another else plan.other,
        stages=stages,
        parameter_servers=servers,
        tables=tables_on_servers(posed.draft, priced),
    )
    backend = choose_backend(posed.draft.graph, backend_name(plan)).on(stages)
    schedule = ChooseSchedule(plan.schedule.name, plan.schedule.micro_batches)
    draft = run_passes(provisioned, [ChooseRules(decided_rules(plan)), schedule, EmitStages()], Emitted)
    made = make_plan(draft, backend)
    notes = (f"{NO_LONGER}: {broken}",) if broken else ()
    return PlanToday(replace(made, notes=(*made.notes, *notes)), notes)
