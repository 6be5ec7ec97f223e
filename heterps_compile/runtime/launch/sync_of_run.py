"""By which rule the replicas of every stage of a run agree: those of the plan, or ``--sync``.

What a rule cannot be combined with is refused here, before anything starts. A stage with one replica has nobody to
agree with, which is told.

Left out: rules as data (``sync_rules/``), what runs them (``runtime/sync/``).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.stage_sync import rule_name
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.sync.find import capabilities_of, rule_of_tied
from heterps_compile.sync_rules.assignment import LayerWords, parse_assignment, parse_rule
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.sync_rules.through_servers import Servers

from .run_options import RunOptions
from .stage_files import sparse_weights_in, tensors_in, tied_pairs_in


def rules_of_run(options: RunOptions, plan: Plan, layout: Layout, folder: Path) -> tuple[SyncRule, ...]:
    """Return the rule of every stage; all-reduce everywhere in an inference.

    Args:
        options: Of the run.
        plan: The plan.
        layout: Of the ranks.
        folder: The compiled one.

    Raises:
        RunError: where a rule cannot be combined with something of the run.
        UnknownNameError: where one is for a stage that is not there.
    """
    if not options.training:
        return (USUAL,) * len(plan.stages)
    if options.sync is None:
        rules = tuple(_as_it_runs(rule, options) for rule in planned_rules(plan))
    else:
        rules = parse_assignment(options.sync).of_stages(_layer_words(plan))
    for index, rule in enumerate(rules):
        if len(layout.ranks_of(index)) > 1:
            asked = f"stage {index} is to agree by {rule_text(rule)}"
            _refuse(asked, rule, options)
            if not options.servers.count:  # which hold tables; what is left to stages is looked at in the first step
                _refuse_sparse(asked, rule, folder, plan, index)
    for name in plan.replicated:
        holders = _holders(plan, folder, name)
        rule_of_tied(name, {index: (rules[index], len(layout.ranks_of(index))) for index in holders})
    return rules


def _layer_words(plan: Plan) -> list[list[LayerWords]]:
    """Return what patterns may call the layers of every stage: their names, as a plan knows no more of them."""
    return [[LayerWords(name, "") for name in stage.layers] for stage in plan.stages]


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


def _refuse(asked: str, rule: SyncRule, options: RunOptions) -> None:
    """Refuse what a rule cannot be combined with.

    Raises:
        RunError: naming both.
    """
    can = capabilities_of(rule)
    if isinstance(rule, Servers):
        _refuse_servers(asked, rule, options)
    for word, is_given, why in (
        ("--clip-norm", options.clip_norm is not None and can.steps_alone, "clips the norm of gradients"),
        ("--ema", options.ema is not None and can.apart, "keeps an average of weights"),
    ):
        if is_given:
            raise RunError(
                f"{asked}, so that replicas step on gradients of their own, and {word} {why} that all replicas have in "
                f"common; leave {word} out, or take another rule (--sync)"
            )


def _refuse_sparse(asked: str, rule: SyncRule, folder: Path, plan: Plan, index: int) -> None:
    """Refuse a rule that combines dense gradients where the stage's source makes sparse ones.

    Raises:
        RunError: naming the first weight.
    """
    if capabilities_of(rule).takes_sparse:
        return
    for artifact in plan.artifacts[index] if index < len(plan.artifacts) else ():
        if artifact.file.endswith(".py"):
            for name in sparse_weights_in((folder / artifact.file).read_bytes()):
                raise RunError(
                    f"{asked}, which combines dense gradients, and that of {printable(name)} is sparse; make its "
                    f"embedding dense (sparse=False) and compile again, or take another rule for its stage (--sync)"
                )


def _refuse_servers(asked: str, rule: Servers, options: RunOptions) -> None:
    if not options.servers.count:
        raise RunError(
            f"{asked}, and the run has no servers; say how many hold the tables (--parameter-servers N), or take "
            f"--sync all-reduce"
        )
    if options.servers.staleness != rule.staleness:
        raise RunError(
            f"{asked}, and the servers of the run have a staleness of {options.servers.staleness}; give both the same "
            f"(--staleness {rule.staleness})"
        )


def _holders(plan: Plan, folder: Path, name: str) -> list[int]:
    """Return the stages whose files have a tensor, under whatever name; nothing of them is run."""
    found = []
    for stage, files in zip(plan.stages, plan.artifacts, strict=False):
        names: set[str] = set()
        for artifact in files:
            if artifact.file.endswith(".safetensors"):
                names |= tensors_in(folder / artifact.file).keys()
            elif artifact.file.endswith(".py"):
                names |= {one for pair in tied_pairs_in((folder / artifact.file).read_bytes()) for one in pair}
        found += [stage.index] if name in names else []
    return found


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
