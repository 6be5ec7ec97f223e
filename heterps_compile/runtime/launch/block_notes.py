"""What is told of predictors of blocks, and what they cannot be combined with: before a run and of its checkpoints.

Left out: predictors themselves (``block_models.py``).
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.cost.precision import SCALED
from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.units import counted

if TYPE_CHECKING:
    from heterps_compile.runtime.checkpoint.state import RunState

    from .run_options import RunOptions


def block_rule(rules: Sequence[SyncRule]) -> LocalSteps | None:
    """Return the rule of all stages that keeps predictors; None where none does."""
    return next((rule for rule in rules if isinstance(rule, LocalSteps) and rule.has_blocks), None)


def refuse_beside_blocks(rules: Sequence[SyncRule], options: "RunOptions", precision: str) -> None:
    """Refuse what predictors of blocks cannot be combined with.

    Raises:
        RunError: naming both.
    """
    rule = block_rule(rules)
    if rule is None:
        return
    asked = f"the run is to keep a predictor for every block by {rule_text(rule)}"
    other = next((stage for stage, one in enumerate(rules) if one != rule), None)
    if other is not None:
        raise RunError(
            f"{asked}, and a predictor is a model of all stages, of which stage {other} agrees by "
            f"{rule_text(rules[other])}; give all stages the one rule (--sync '{rule_text(rule)}')"
        )
    if options.shuffle is not None:
        raise RunError(f"{asked}, and --shuffle mixes the samples of blocks; leave --shuffle out")
    if options.ema is not None:
        raise RunError(
            f"{asked}, and --ema keeps one average of all blocks, where validations are of either; leave one of the "
            f"two out"
        )
    if options.servers.count:
        raise RunError(
            f"{asked}, and rows on parameter servers are one for all blocks; leave --parameter-servers out, or take "
            f"--sync all-reduce"
        )
    if rule.rule == "mc" and precision in SCALED:
        raise RunError(
            f"{asked}, where two chains step on every batch, and in {precision} a step may be skipped in one of them; "
            f"take --precision bf16, or rule=mm"
        )


def refuse_other_cycle(rules: Sequence[SyncRule], samples: int | None, batch: int) -> None:
    """Refuse data whose epochs are no whole cycles of blocks; data without an end are taken as they come.

    Args:
        rules: Of the stages.
        samples: In an epoch; None where the data have no end.
        batch: Samples in a step.

    Raises:
        RunError: with the numbers.
    """
    rule = block_rule(rules)
    if rule is None or samples is None or samples % (rule.cycle_steps * batch) == 0:
        return
    cycle, block = rule.cycle_steps * batch, (rule.block_steps or 0) * batch
    fitting = Fraction(samples, (rule.blocks or 1) * batch)
    fits = f", or block_steps={fitting}" if fitting.denominator == 1 and fitting % rule.steps == 0 else ""
    raise RunError(
        f"the data have {samples:,} samples, and {rule.blocks} blocks of {block:,} ({rule.block_steps} steps of "
        f"{batch:,}) are {cycle:,}: the second time through, blocks would lie elsewhere; give a multiple of {cycle:,} "
        f"samples{fits}, or another --batch"
    )


def refuse_odd_validation(rule: LocalSteps, samples: int) -> None:
    """Refuse validation data that blocks cannot have equal parts of.

    Raises:
        RunError: with the numbers.
    """
    blocks = rule.blocks or 1
    if samples % blocks or samples < blocks:
        raise RunError(
            f"the validation data have {samples:,} samples, of which the predictors of {blocks} blocks are to have "
            f"equal parts, the first for the first block; give a number that {blocks} divides"
        )


def refuse_unknown_block(checkpoint: Path, state: "RunState", block: int) -> None:
    """Refuse a block of which a checkpoint has no predictor.

    Raises:
        RunError: with those that it has.
    """
    name = printable(checkpoint.name)
    if state.blocks is None:
        raise RunError(f"{name} has no predictors of blocks (--sync 'local(..., rule=mm)'); leave --block out")
    made = state.blocks.made
    if block not in made:
        has = ", ".join(str(one + 1) for one in made) or "none"
        raise RunError(
            f"{name} has no predictor of block {block + 1}; of its {len(state.blocks.rounds)} blocks it has: {has}"
        )


def refuse_other_blocks(checkpoint: Path, state: "RunState", rules: Sequence[SyncRule], layout: Layout) -> None:
    """Refuse to go on with predictors of other blocks, or with the chains of other ranks.

    Raises:
        RunError: with what differs.
    """
    rule, name = block_rule(rules), printable(checkpoint.name)
    if rule is None or state.blocks is None:
        return
    if len(state.blocks.rounds) != rule.blocks:
        raise RunError(
            f"{name} has predictors of {len(state.blocks.rounds)} blocks, and the run has {rule.blocks}; go on with as "
            f"many, or begin with its weights (--weights) in another folder"
        )
    if rule.rule != "mc":
        return
    then = next((text for text, _ in state.sync), "")
    before = tuple(replicas for _, replicas in state.sync)
    now = tuple(len(layout.ranks_of(stage)) for stage in range(layout.stage_count))
    if "rule=mc" not in then:
        raise RunError(
            f"{name} was reached with {printable(then)}, without a chain for every block; go on with that rule, or "
            f"begin with its weights (--weights) in another folder"
        )
    if before != now:
        shown = [", ".join(map(str, widths)) for widths in (before, now)]
        raise RunError(
            f"{name} has the chains of {shown[0]} replicas, and the run has {shown[1]}: the optimiser of a chain is a "
            f"replica's own; go on with as many (--replicas), with rule=mm, or begin with its weights (--weights)"
        )


def block_notes(
    found: Path, state: "RunState", rules: Sequence[SyncRule], *, resumes: bool, taken: int | None = None
) -> Iterator[str]:
    """Say what becomes of the predictors of a checkpoint, and where they begin."""
    rule, name = block_rule(rules), printable(found.name)
    if state.blocks is None:
        if rule is not None and resumes:
            yield f"{name} has no predictors of blocks: they begin with the next average"
        return
    has = f"{name} has predictors of {counted(len(state.blocks.rounds), 'block')} of its data"
    if taken is not None:
        yield f"{has}, of which that of block {taken} is taken; the weights themselves are left"
    elif not resumes:
        yield f"{has}, which are left: --block N takes one in place of the weights"
    elif rule is None:
        yield f"{has}, which are left"


def rule_lines(rules: Sequence[SyncRule], batch: int) -> Iterator[str]:
    """Say in the first lines of a run what its predictors are of."""
    rule = block_rule(rules)
    if rule is None:
        return
    block = (rule.block_steps or 0) * batch
    also = ", and every batch is stepped on twice, by a chain that sees all blocks and by one of its own" * (
        rule.rule == "mc"
    )
    skipped = f" after the first {counted(rule.skip, 'cycle')}" if rule.skip else ""
    yield (
        f"a predictor is kept{skipped} for each of {rule.blocks} blocks of {counted(block, 'sample')}{also}: "
        f"validations are of them, each on its part of the samples; checkpoints have them beside the weights, which "
        f"are the last average (export --block N)"
    )
