"""Stages with rules by which their replicas agree: what each rule takes, and which of them make the shortest step.

A rule takes its exposed time after the last backward of its stage (``sync_rules/``), and what it takes the processor of
a replica (``cost/step_rates.py``), in place of what the placement was searched with, which is the same where the search
knew the rule (``searched_rules.py``); what it holds besides counts as memory of a replica.

Of the rules that ``--allow`` allows, every stage takes one with which the whole step is as short as it can be, and of
those the one that keeps most of training in one process: exact before bounded before any, then in the order in which
they are named. So a stage whose all-reduce ends before the backwards of other stages do keeps it. The step is
simulated, over all schedules and counts of micro-batches; in the steady state it is the time of the slowest stage.
Where stages are of one device type each, a stage's exposed time lengthens the step by itself alone, so that the least
exposed time and work of every stage make the shortest step.

Left out: rules that need servers, whose price is another plan's; other placements and replicas than those found.
"""

from collections.abc import Sequence
from dataclasses import replace

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.pose import network_of_types
from heterps_compile.cost.step_rates import StepRates
from heterps_compile.cost.sync_groups import layer_words, sync_group
from heterps_compile.errors import UnprovenError
from heterps_compile.plan.planned_stage import PlannedStage, StageSync
from heterps_compile.schedule.shortest_step import SAME_TIME
from heterps_compile.sync_rules.assignment import RuleEntry
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import SyncGroup, SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL, faults_of
from heterps_compile.sync_rules.sparse_rows import exposed, handling, refusal, sent_bytes_a_step
from heterps_compile.units import format_bytes, format_rate

from .choose_schedule import step_of
from .drafts import Annotated, Provisioned
from .searched_rules import is_worth_it, rules_to_choose_from


def group_of(draft: Annotated, stage: PlannedStage) -> SyncGroup:
    """Return what the replicas of a stage agree on."""
    return sync_group(draft.layers, draft.costs, stage.layers, stage.replicas, _network(draft, stage))


def timed_group_of(draft: Annotated, stage: PlannedStage) -> SyncGroup:
    """Return what its replicas agree on as times count it, as those of the problem: layer by layer."""
    network = _network(draft, stage)
    return sync_group(draft.layers, draft.costs, stage.layers, stage.replicas, network, by_layer=True)


def _network(draft: Annotated, stage: PlannedStage) -> Network:
    """Return what connects the replicas of a stage."""
    return network_of_types(draft.cluster, stage.units)


def rules_asked(draft: Annotated, stages: Sequence[PlannedStage]) -> tuple[SyncRule, ...]:
    """Return the rule of every stage that a request names.

    Raises:
        UnknownNameError: for a pattern that matches no stage.
    """
    words = {each.name: each for each in layer_words(draft.layers, draft.costs)}
    return draft.request.sync_rules.of_stages([[words[name] for name in stage.layers] for stage in stages])


def with_rule(
    stage: PlannedStage, rule: SyncRule, group: SyncGroup, timed: SyncGroup, rates: Sequence[StepRates]
) -> PlannedStage:
    """Return a stage as it was priced as it is with a rule.

    Args:
        stage: The stage.
        rule: The rule.
        group: What its replicas agree on.
        timed: The same as times count it.
        rates: Of its device types, for what the rule takes the processor; the slowest counts.

    Raises:
        InfeasibleError: where the rule cannot be that of the stage.
        PlugInError: where a third party's rule fails.
    """
    if not group.agrees:
        return stage
    with faults_of(type(rule)):
        why_not = rule.never_planned or refusal(rule, group)
        if why_not:
            raise UnprovenError(
                f"stage {stage.index} cannot agree by {rule_text(rule)}: {why_not}; give it another rule (--sync "
                f"{str(RuleEntry(stage.layers[0], USUAL)) + ', *=...'!r})"
            )
        agreeing = _agreeing(stage, rule, timed, rates)
        return agreeing if rule == USUAL else _with_other_rule(agreeing, rule, group, timed)


def _agreeing(stage: PlannedStage, rule: SyncRule, timed: SyncGroup, rates: Sequence[StepRates]) -> PlannedStage:
    """Return a stage with what its replicas take to agree."""
    waited = exposed(rule, timed)
    bytes_s = waited.bytes_s
    return replace(
        stage,
        data_s=stage.data_s - stage.sync_s + bytes_s,
        sync_s=bytes_s,
        sync_hops_s=waited.hops_s,
        handling_s=_handling_s(rule, timed, rates),
        mixed=tuple(replace(each, data_s=each.data_s - stage.sync_s + bytes_s) for each in stage.mixed),
    )


def _handling_s(rule: SyncRule, group: SyncGroup, rates: Sequence[StepRates]) -> float:
    """Return what a rule takes the processor of a replica; of several device types the slowest counts."""
    work = handling(rule, group)
    return max(each.handling_s(work, group.replicas) for each in rates)


def _with_other_rule(stage: PlannedStage, rule: SyncRule, group: SyncGroup, timed: SyncGroup) -> PlannedStage:
    """Return a stage that takes what another rule than an all-reduce does with what it moves and holds."""
    plain = exposed(USUAL, timed)
    return replace(
        stage,
        memory=None if stage.memory is None else replace(stage.memory, sync_bytes=rule.extra_bytes(group)),
        sync=StageSync(
            rule_text(rule),
            rule.exactness,
            sent_bytes_a_step(rule, group),
            sent_bytes_a_step(USUAL, group),
            plain.time_s,
        ),
    )


def with_rules(draft: Provisioned, rules: Sequence[SyncRule]) -> Provisioned:
    """Return a draft whose stages have rules.

    Raises:
        InfeasibleError: where one cannot be that of its stage.
    """
    groups = [group_of(draft, stage) for stage in draft.stages]
    timed = [timed_group_of(draft, stage) for stage in draft.stages]
    rates = [_rates(draft, stage) for stage in draft.stages]
    return replace(draft, stages=tuple(map(with_rule, draft.stages, rules, groups, timed, rates)))


def _rates(draft: Provisioned, stage: PlannedStage) -> tuple[StepRates, ...]:
    return tuple(draft.times.rates_of(device) for device, _ in stage.units)


def with_request(draft: Provisioned) -> Provisioned:
    """Return a draft whose stages have the rules that are asked for, or that are chosen.

    Raises:
        UnknownNameError: for a pattern that matches no stage.
        InfeasibleError: where a rule cannot be that of its stage.
    """
    request = draft.request
    return with_rules(draft, chosen_rules(draft) if request.chooses_rules else rules_asked(draft, draft.stages))


def chosen_rules(draft: Provisioned) -> tuple[SyncRule, ...]:
    """Return the rule of every stage that makes the shortest step, by the module's rule."""
    groups = [group_of(draft, stage) for stage in draft.stages]
    candidates = rules_to_choose_from(draft.request, draft.costs)

    def exposed_s(rule: SyncRule, group: SyncGroup, stage: PlannedStage) -> float:
        found = exposed(rule, group)
        if not draft.request.minimises_step:
            return found.bytes_s
        return found.time_s + _handling_s(rule, group, _rates(draft, stage))

    def usable(index: int, group: SyncGroup) -> list[SyncRule]:
        if not group.agrees:
            return [USUAL]
        found = [rule for rule in candidates if not refusal(rule, group) and is_worth_it(rule, group)]
        return [rule for rule in found if not rule.extra_bytes(group) or _fits(draft, index, rule)]

    of_stages = [usable(index, group) for index, group in enumerate(groups)]
    rules = [
        min(found, key=lambda rule, group=group, stage=stage: exposed_s(rule, group, stage))  # type: ignore[misc]
        for found, group, stage in zip(of_stages, groups, draft.stages, strict=True)
    ]
    shortest_s = _takes_s(with_rules(draft, rules))
    for index, found in enumerate(of_stages):
        for rule in found:
            tried = [*rules[:index], rule, *rules[index + 1 :]]
            if rule == rules[index] or _takes_s(with_rules(draft, tried)) <= shortest_s * SAME_TIME:
                rules = tried
                break
    return tuple(rules)


def _fits(draft: Provisioned, index: int, rule: SyncRule) -> bool:
    rules = [rule if at == index else USUAL for at in range(len(draft.stages))]
    return step_of(with_rules(draft, rules)).best.fits


def _takes_s(draft: Provisioned) -> float:
    """Return what counts of a draft's stages: the step, or the slowest stage."""
    if draft.request.minimises_step:
        return step_of(draft).best.step_s
    return max(stage.time_s for stage in draft.stages)


def refuse_rules_out_of_limits(draft: Provisioned) -> None:
    """Refuse rules that hold more than units have, or with which the floor is not reached.

    Raises:
        InfeasibleError: naming the stage or the floor.
    """
    asked = f"--sync {draft.request.synchronisation}"
    if any(stage.memory is not None and stage.memory.sync_bytes for stage in draft.stages):
        step = step_of(draft).best
        rooms = [draft.cluster.device_type(stage.device).memory_bytes for stage in draft.stages]
        for stage, held_bytes, room in zip(draft.stages, step.replica_bytes, rooms, strict=True):
            if not step.fits and held_bytes > room and stage.memory is not None and stage.sync is not None:
                raise UnprovenError(
                    f"stage {stage.index} needs {format_bytes(held_bytes)} with {stage.sync.rule}, of which "
                    f"{format_bytes(stage.memory.sync_bytes)} are the rule's, and {stage.device!r} has "
                    f"{format_bytes(room)}; give it another rule, or leave {asked} out"
                )
    floor, takes_s = draft.problem.min_throughput, _takes_s(draft)
    if floor and draft.problem.batch / takes_s < floor * (1 - FLOOR_TOLERANCE):
        raise UnprovenError(
            f"with {asked} the plan reaches {format_rate(draft.problem.batch / takes_s)}, and the floor is "
            f"{format_rate(floor)}{_searched_otherwise(draft)}; leave {asked} out, or give --sync auto, which takes no "
            f"rule that is slower"
        )


def _searched_otherwise(draft: Provisioned) -> str:
    """Say what placement and replicas were found for, where that is not what the stages have."""
    return ", with the replicas that an all-reduce needs" if draft.problem.rules is None else ""
