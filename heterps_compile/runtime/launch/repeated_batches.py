"""The batches of data that come again, of which ``adsaga`` remembers gradients: that they do, and which one comes when.

A batch is known by its place in the data. Without a shuffle they come one after the other; with windows that are one
batch each, they come in another order every epoch, and samples in another order inside a batch, whose gradient is the
same sum. Any other shuffle makes other batches in every epoch.

Left out: the order of samples (``data/epochs.py``).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path

from heterps_compile.cost.precision import SCALED
from heterps_compile.errors import RunError
from heterps_compile.host_memory import available_bytes
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.units import format_bytes

from .run_options import RunOptions
from .stage_files import tensors_in

_WIDTH = 4
"""Bytes of an entry as it is counted before a run; a rank counts with those that its gradients have."""


def refuse_beside_tables(rules: Sequence[SyncRule], layout: Layout, options: RunOptions, precision: str) -> None:
    """Refuse what a table of gradients cannot be combined with.

    Args:
        rules: Of the stages.
        layout: Of the run.
        options: Of the run.
        precision: Of the run.

    Raises:
        RunError: naming both.
    """
    found = _tables(rules, layout)
    if not found:
        return
    stage, rule = next(iter(found.items()))
    asked = f"stage {stage} is to agree by {rule_text(rule)}"
    batch = layout.batch
    if options.shuffle is not None and options.shuffle != batch:
        raise RunError(
            f"{asked}, which remembers a gradient of every batch, and --shuffle {options.shuffle} makes other batches "
            f"in every epoch; give --shuffle {batch}, which mixes the order of batches and samples inside them, or "
            f"leave it out"
        )
    if precision in SCALED:
        raise RunError(
            f"{asked}, and in {precision} a step may be skipped, of which the table would have the gradients; take "
            f"--precision bf16 or fp32"
        )
    if options.servers.count:
        raise RunError(
            f"{asked}, and rows on parameter servers are stepped on by each push alone; leave --parameter-servers out, "
            f"or take another rule (--sync)"
        )
    if len({one.batches for one in found.values()}) > 1:
        raise RunError(f"{asked}, and another stage by adsaga of other batches; give both the same (--sync)")


def _tables(rules: Sequence[SyncRule], layout: Layout) -> dict[int, Adsaga]:
    """Return the rules of the stages that keep a table: of one replica there is none."""
    several = (stage for stage in range(len(rules)) if len(layout.ranks_of(stage)) > 1)
    return {stage: rule for stage in several if isinstance(rule := rules[stage], Adsaga)}


def refuse_other_sum(rules: Sequence[SyncRule], samples: int | None, layout: Layout) -> None:
    """Refuse data that are no such sum: without an end, or of another number of batches.

    Args:
        rules: Of the stages.
        samples: In an epoch; None where the data have no end.
        layout: Of the run.

    Raises:
        RunError: with the numbers.
    """
    rule, batch = next(iter(_tables(rules, layout).values()), None), layout.batch
    if rule is None:
        return
    asked = f"{rule_text(rule)} remembers a gradient of every batch, for batches that come again"
    if samples is None:
        raise RunError(f"{asked}, and these data have no end; give files, or take another rule (--sync)")
    if samples != rule.batches * batch:
        even, rest = divmod(samples, batch)
        way = f"give batches={even}" if not rest else f"give a multiple of {batch:,} samples, or another --batch"
        raise RunError(
            f"{asked}, and the data have {samples:,} samples, where {rule.batches:,} batches of {batch:,} are "
            f"{rule.batches * batch:,}; {way}"
        )


def refuse_large_tables(rules: Sequence[SyncRule], layout: Layout, plan: Plan, folder: Path) -> None:
    """Refuse tables for which this machine, where all ranks of a run start, has no memory; of GPUs the ranks look.

    Raises:
        RunError: with the numbers.
    """
    free_bytes = available_bytes()
    for stage, rule in _tables(rules, layout).items():
        if plan.stages[stage].kind != "cpu":
            continue
        files = plan.artifacts[stage] if stage < len(plan.artifacts) else ()
        names = [one.file for one in files if one.file.endswith(".safetensors")]
        shapes = [shape for name in names for _, shape in tensors_in(folder / name).values()]
        entries, here = sum(map(prod, shapes)), len(layout.ranks_of(stage))
        size_bytes = rule.table_bytes(entries * _WIDTH)
        if size_bytes * here > free_bytes:
            raise RunError(
                f"stage {stage} is to agree by {rule_text(rule)}, with a table of {rule.batches:,} x {entries:,} x "
                f"{_WIDTH} bytes ({format_bytes(size_bytes)}) on each of {here} replicas, and "
                f"{format_bytes(free_bytes)} are free here; give larger and fewer batches (--batch, batches= of "
                f"--sync), or take another rule (--sync)"
            )


def order_of_batches(rules: Sequence[SyncRule], options: RunOptions) -> Callable[[int], int] | None:
    """Return which batch of the data a step has, where they do not come one after the other."""
    rule = next((rule for rule in rules if isinstance(rule, Adsaga)), None)
    if rule is None or options.shuffle is None:
        return None
    from heterps_compile.runtime.data.epochs import windows_of_epoch  # noqa: PLC0415 - torch only in a run's processes

    @lru_cache(maxsize=2)
    def of_epoch(epoch: int) -> list[int]:
        found: list[int] = windows_of_epoch(options.seed, epoch, rule.batches).tolist()
        return found

    return lambda step: of_epoch(step // rule.batches)[step % rule.batches]
