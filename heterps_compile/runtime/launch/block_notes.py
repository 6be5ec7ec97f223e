"""Notes on predictors of blocks, before a run and of its checkpoints, and checkpoints that do not fit.

Left out: predictors themselves (``block_models.py``), what they cannot be combined with (``combinations.py``).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.units import counted

from .sync_of_run import block_rule

if TYPE_CHECKING:
    from heterps_compile.runtime.checkpoint.state import RunState


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
