"""Stages with rules by which their replicas agree: what each rule takes, and which of them make the shortest step.

A rule takes its exposed time after the last backward of its stage (``sync_rules/``), in place of the all-reduce that
the placement was searched with; what it holds besides counts as memory of a replica.

Of the rules that ``--allow`` allows, every stage takes one with which the whole step is as short as it can be, and of
those the one that keeps most of training in one process: exact before bounded before any, then in the order of
``COMPARED``. So a stage whose all-reduce ends before the backwards of other stages do keeps it. The step is simulated,
over all schedules and counts of micro-batches; in the steady state it is the time of the slowest stage. Where stages
are of one device type each, a stage's exposed time lengthens the step by itself alone, so that the least exposed time
of every stage makes the shortest step.

Left out: rules that need servers, whose price is another plan's; the placement and the replicas, which stay those that
all-reduce would have.
"""

from collections.abc import Sequence
from dataclasses import replace

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE
from heterps_compile.cost.pose import network_of
from heterps_compile.cost.sync_groups import layer_words, sync_group
from heterps_compile.errors import InfeasibleError
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.stage_sync import StageSync
from heterps_compile.schedule.shortest_step import SAME_TIME
from heterps_compile.sync_rules.rule import EXACTNESSES, SyncGroup, SyncRule, allowed_classes
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import COMPARED, USUAL, faults_of
from heterps_compile.units import format_bytes, format_rate

from .choose_schedule import step_of
from .drafts import Annotated, Provisioned


def group_of(draft: Annotated, stage: PlannedStage) -> SyncGroup:
    """Return what the replicas of a stage agree on."""
    network = network_of(draft.cluster, stage.device)
    return sync_group(draft.layers, draft.costs, stage.layers, stage.replicas, network)


def rules_asked(draft: Annotated, stages: Sequence[PlannedStage]) -> tuple[SyncRule, ...]:
    """Return the rule of every stage that a request names.

    Raises:
        UnknownNameError: for a pattern that matches no stage.
    """
    words = {each.name: each for each in layer_words(draft.layers, draft.costs)}
    return draft.request.sync_rules.of_stages([[words[name] for name in stage.layers] for stage in stages])


def with_rule(stage: PlannedStage, rule: SyncRule, group: SyncGroup) -> PlannedStage:
    """Return a stage as it was priced, with an all-reduce, as it is with a rule.

    Raises:
        InfeasibleError: where the rule cannot be that of the stage.
        PlugInError: where a third party's rule fails.
    """
    if rule == USUAL or not group.agrees:
        return stage
    with faults_of(type(rule)):
        return _with_other_rule(stage, rule, group)


def _with_other_rule(stage: PlannedStage, rule: SyncRule, group: SyncGroup) -> PlannedStage:
    refusal = rule.refusal(group)
    if refusal:
        raise InfeasibleError(
            f"stage {stage.index} cannot agree by {rule_text(rule)}: {refusal}; give it another rule (--sync 'stage "
            f"{stage.index}=all-reduce, *=...')"
        )
    exposed, extra_bytes = rule.exposed(group), rule.extra_bytes(group)
    bytes_s, hops_s = exposed.bytes_s, exposed.hops_s
    if rule.uses_servers:  # which is counted as it was priced
        bytes_s, hops_s = stage.sync_s, stage.sync_hops_s
    return replace(
        stage,
        data_s=stage.data_s - stage.sync_s + bytes_s,
        sync_s=bytes_s,
        sync_hops_s=hops_s,
        memory=None if stage.memory is None else replace(stage.memory, sync_bytes=extra_bytes),
        sync=StageSync(
            rule_text(rule),
            rule.exactness,
            rule.sent_bytes_a_step(group),
            USUAL.sent_bytes_a_step(group),
            stage.all_reduce_s,
        ),
    )


def with_rules(draft: Provisioned, rules: Sequence[SyncRule]) -> Provisioned:
    """Return a draft whose stages, priced with an all-reduce each, have rules.

    Raises:
        InfeasibleError: where one cannot be that of its stage.
    """
    groups = [group_of(draft, stage) for stage in draft.stages]
    found = map(with_rule, draft.stages, rules, groups)
    return replace(draft, stages=tuple(found))


def chosen_rules(draft: Provisioned, most: str) -> tuple[SyncRule, ...]:
    """Return the rule of every stage that makes the shortest step, by the module's rule.

    Args:
        draft: Its stages are priced with an all-reduce each.
        most: The class that is allowed, with those that keep more.
    """
    groups = [group_of(draft, stage) for stage in draft.stages]
    allowed = allowed_classes(most)
    candidates = sorted(
        (rule for rule in COMPARED if rule.exactness in allowed and not rule.uses_servers),
        key=lambda rule: EXACTNESSES.index(rule.exactness),
    )

    def exposed_s(rule: SyncRule, group: SyncGroup) -> float:
        found = rule.exposed(group)
        return found.time_s if draft.request.minimises_step else found.bytes_s

    def usable(index: int, group: SyncGroup) -> list[SyncRule]:
        if not group.agrees:
            return [USUAL]
        found = [rule for rule in candidates if not rule.refusal(group)]
        return [rule for rule in found if not rule.extra_bytes(group) or _fits(draft, index, rule)]

    of_stages = [usable(index, group) for index, group in enumerate(groups)]
    rules = [
        min(found, key=lambda rule, group=group: exposed_s(rule, group))  # type: ignore[misc]
        for found, group in zip(of_stages, groups, strict=True)
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
                raise InfeasibleError(
                    f"stage {stage.index} needs {format_bytes(held_bytes)} with {stage.sync.rule}, of which "
                    f"{format_bytes(stage.memory.sync_bytes)} are the rule's, and {stage.device!r} has "
                    f"{format_bytes(room)}; give it another rule, or leave {asked} out"
                )
    floor, takes_s = draft.problem.min_throughput, _takes_s(draft)
    if floor and draft.problem.batch / takes_s < floor * (1 - FLOOR_TOLERANCE):
        raise InfeasibleError(
            f"with {asked} the plan reaches {format_rate(draft.problem.batch / takes_s)}, and the floor is "
            f"{format_rate(floor)}; its replicas are those that an all-reduce needs: leave {asked} out, or give --sync "
            f"auto, which takes no rule that is slower"
        )
