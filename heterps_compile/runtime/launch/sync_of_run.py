"""By which rule the replicas of every stage of a run agree: those of the plan, or ``--sync``.

A stage with one replica has no other replica to agree with, which is printed.

Left out: what a rule cannot be combined with (``combinations.py``), rules as data (``sync_rules/``), what runs them
(``runtime/sync/``).
"""

from collections.abc import Iterator, Sequence

from heterps_compile.plan.plan import Plan
from heterps_compile.plan.stage_sync import rule_name
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.assignment import LayerWords, parse_assignment, parse_rule
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.sync_rules.through_servers import Servers

from .run_options import RunOptions


def rules_of_run(options: RunOptions, plan: Plan) -> tuple[SyncRule, ...]:
    """Return the rule of every stage; all-reduce everywhere in an inference.

    Raises:
        UnknownNameError: if ``--sync`` names a stage that the plan does not have.
    """
    if not options.training:
        return (USUAL,) * len(plan.stages)
    if options.sync is None:
        return tuple(_as_it_runs(rule, options) for rule in planned_rules(plan))
    layers = [[LayerWords(name, "") for name in stage.layers] for stage in plan.stages]  # a plan knows no more of them
    return parse_assignment(options.sync).of_stages(layers)


def planned_rules(plan: Plan) -> tuple[SyncRule, ...]:
    """Return the rule of every stage as planned.

    A stage that is planned with one replica has none in the plan; with more it has the one that was asked for, where
    that was one for all stages.
    """
    asked = plan.request.sync_rules.rules
    for_all = asked[0] if len(asked) == 1 else USUAL
    return tuple(
        for_all if stage.replicas == 1 and stage.sync is None else parse_rule(rule_name(stage)) for stage in plan.stages
    )


def _as_it_runs(rule: SyncRule, options: RunOptions) -> SyncRule:
    """Return a planned rule as a run has it: by the servers that it starts; without any, gradients are summed."""
    if not isinstance(rule, Servers):
        return rule
    return Servers(options.servers.staleness) if options.servers.count else USUAL


def rule_notes(rules: Sequence[SyncRule], plan: Plan, layout: Layout, *, is_asked: bool = False) -> Iterator[str]:
    """Say how replicas agree where it is not by all-reduce, or not as planned, and of which rules nothing comes.

    Args:
        rules: Of every stage; empty in an inference.
        plan: The plan.
        layout: Of the ranks.
        is_asked: Whether the rules were asked for, not the plan's.
    """
    for index, (rule, planned) in enumerate(zip(rules, planned_rules(plan), strict=False)):
        replicas = len(layout.ranks_of(index))
        stage, asked = plan.stages[index], plan.request.sync_rules.rules
        if stage.replicas == 1 < replicas and stage.sync is None and len(asked) > 1 and not is_asked:
            yield (
                f"stage {index} is planned with one replica, which has no rule: its {replicas} agree by all-reduce, or "
                f"by what --sync says"
            )
        if rule == USUAL:
            if planned != USUAL and replicas > 1 and layout.training:
                instead = ": no servers are started" if isinstance(planned, Servers) else ""
                yield (
                    f"the {replicas} replicas of stage {index} agree by all-reduce (planned: "
                    f"{rule_text(planned)}{instead})"
                )
            continue
        was = "" if rule == planned else f" (planned: {rule_text(planned)})"
        if replicas == 1:
            left = "keeps its predictors" if rule.is_of_whole_models else "changes nothing there"
            yield f"stage {index} has one replica, which agrees with nobody: {rule_text(rule)} {left}"
        else:
            yield f"the {replicas} replicas of stage {index} agree by {rule_text(rule)}{was}"


def agreeing(rules: Sequence[SyncRule], layout: Layout) -> dict[int, SyncRule]:
    """Return the rules of the stages with several replicas."""
    return {stage: rule for stage, rule in enumerate(rules) if len(layout.ranks_of(stage)) > 1}


def tables_of(rules: Sequence[SyncRule], layout: Layout) -> dict[int, Adsaga]:
    """Return the rules of the stages that remember a gradient of every batch; one replica alone remembers none."""
    return {stage: rule for stage, rule in agreeing(rules, layout).items() if isinstance(rule, Adsaga)}


def block_rule(rules: Sequence[SyncRule]) -> LocalSteps | None:
    """Return the rule that keeps a predictor for every block of the data; None if no stage has one."""
    return next((rule for rule in rules if isinstance(rule, LocalSteps) and rule.has_blocks), None)
