"""The batches of data that come again, of which ``adsaga`` remembers gradients: their order, and the memory they need.

A batch is known by its place in the data. Without a shuffle they come one after the other; with windows that are one
batch each, they come in another order every epoch, and samples in another order inside a batch, whose gradient is the
same sum. Any other shuffle makes other batches in every epoch.

Left out: the order of samples (``data/epochs.py``).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from pathlib import Path

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
from .sync_of_run import tables_of

_WIDTH = 4
"""Bytes of an entry as it is counted before a run; a rank counts with those that its gradients have."""


def refuse_large_tables(rules: Sequence[SyncRule], layout: Layout, plan: Plan, folder: Path) -> None:
    """Refuse tables for which this machine, where all ranks of a run start, has no memory; of GPUs the ranks look.

    Raises:
        RunError: with the numbers.
    """
    free_bytes = available_bytes()
    for stage, rule in tables_of(rules, layout).items():
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
