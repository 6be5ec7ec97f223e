"""What a committed plan reaches today with what its problem does not count, by the same passes as a compilation.

The problem of a plan counts an all-reduce in every stage, and activations that are kept. Where stages have other rules,
or compute their activations again as they fit no other way, throughput and value are those of its stages with that.
What a stage holds under its schedule may be more than its units have today.

Left out: all other plans, which the problem prices (``judge.py``).
"""

from collections.abc import Sequence
from dataclasses import replace

from heterps_compile.cost.evaluate import PlacementDetail
from heterps_compile.cost.memory import AUTO, has_room
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import SearchResult
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.drafts import Provisioned, Scheduled, advance
from heterps_compile.passes.provision import priced_stages
from heterps_compile.passes.rules_of_stages import with_rules
from heterps_compile.passes.within_memory import may_lack_memory
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_schedule import readings_of
from heterps_compile.plan.served_tables import ParameterServers
from heterps_compile.plan.stage_sync import rule_name
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.units import counted, format_bytes

from .pose import PosedAgain


def decided_rules(plan: Plan) -> tuple[str, ...]:
    """Return the rule of every stage of a plan as text; nothing where all all-reduce."""
    return tuple(map(rule_name, plan.stages)) if any(stage.sync is not None for stage in plan.stages) else ()


def scheduled_with(posed: PosedAgain, priced: PlacementDetail, rules: Sequence[SyncRule]) -> Scheduled:
    """Return the draft of a plan as it is priced with an all-reduce in every stage, with other rules.

    Raises:
        InfeasibleError: where a rule cannot be that of its stage.
    """
    plan = posed.plan
    stages = priced_stages(posed.draft, posed.stages(), priced.stages)
    search = SearchResult(posed.fitting(allow_stale=True), priced.value, 0.0, plan.method, plan.request.seed, 0, 0.0)
    provisioned = advance(posed.draft, Provisioned, search=search, stages=stages, parameter_servers=ParameterServers())
    ruled = with_rules(provisioned, rules)
    return ChooseSchedule(plan.schedule.name, plan.schedule.micro_batches)(ruled)


def scheduled_today(posed: PosedAgain, priced: PlacementDetail) -> Scheduled | None:
    """Return the draft of a plan with its own rules and schedule; None where neither changes what it is priced at.

    Raises:
        InfeasibleError: where a rule cannot be that of its stage.
    """
    rules = decided_rules(posed.plan)
    if not rules and not may_lack_memory(posed.draft):
        return None
    texts = rules or (USUAL.name,) * len(posed.plan.stages)
    return scheduled_with(posed, priced, [parse_rule(text) for text in texts])


def lacking_memory(scheduled: Scheduled) -> str:
    """Return which stage does not fit its units as it is scheduled; "" where all do."""
    for stage in scheduled.stages:
        there = scheduled.cluster.device_type(stage.device).memory_bytes
        needed = 0 if stage.memory is None else stage.memory.total_bytes
        if not has_room(there, needed):
            return (
                f"stage {stage.index} needs {format_bytes(needed)} today with "
                f"{counted(scheduled.schedule.micro_batches, 'micro-batch')} under {scheduled.schedule.name}, and "
                f"{stage.device!r} has {format_bytes(there)}"
            )
    return ""


def as_scheduled(posed: PosedAgain, priced: PlacementDetail, scheduled: Scheduled) -> PlacementDetail:
    """Return the plan as it is priced with all-reduces and kept activations, as it is under its rules and schedule."""
    plan, rules, is_step = posed.plan, decided_rules(posed.plan), posed.draft.request.minimises_step
    # a step that is simulated has in it what is computed again
    repeats = not is_step and posed.draft.recompute == AUTO and any(stage.recompute for stage in scheduled.stages)
    if not rules and not repeats:
        return priced
    readings = readings_of(plan.batch, scheduled.stages, scheduled.schedule)
    reached = readings.one_batch_alone if is_step else readings.steady_state
    throughput = reached.throughput_samples_per_s
    if not rules:  # tables on servers may be what is waited for
        throughput = min(throughput, priced.throughput)
    by_price = OBJECTIVES[posed.problem.objective].paid(priced.price_per_hour, throughput)
    value = plan.batch / throughput if by_price is None else by_price
    return replace(priced, throughput=throughput, value=value)
