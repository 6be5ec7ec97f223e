"""What a committed plan whose stages have rules reaches today, by the same passes as a compilation.

The problem of a plan counts an all-reduce in every stage; where stages have other rules, throughput and value are those
of its stages with them.

Left out: plans without rules, which the problem prices (``judge.py``).
"""

from collections.abc import Sequence
from dataclasses import replace

from heterps_compile.cost.evaluate import PlacementDetail
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import SearchResult
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.drafts import Provisioned, Scheduled, advance
from heterps_compile.passes.provision import priced_stages
from heterps_compile.passes.rules_of_stages import with_rules
from heterps_compile.plan.plan import ParameterServers, Plan, readings_of
from heterps_compile.plan.stage_sync import rule_name
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import SyncRule

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


def with_own_rules(posed: PosedAgain, priced: PlacementDetail) -> PlacementDetail:
    """Return the plan as it is priced with an all-reduce in every stage, as it is with its own rules."""
    plan, rules = posed.plan, decided_rules(posed.plan)
    if not rules:
        return priced
    scheduled = scheduled_with(posed, priced, [parse_rule(text) for text in rules])
    readings = readings_of(plan.batch, scheduled.stages, scheduled.schedule)
    is_step = plan.request.minimises_step
    reached = readings.one_batch_alone if is_step else readings.steady_state
    by_price = OBJECTIVES[posed.problem.objective].paid(priced.price_per_hour, reached.throughput_samples_per_s)
    value = reached.batch_s if by_price is None else by_price
    return replace(priced, throughput=reached.throughput_samples_per_s, value=value)
