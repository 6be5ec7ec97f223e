"""The rule by which a stage's replicas agree, where it is another than ``all-reduce``, and what both come to.

Left out: rules themselves (``sync_rules/``); what a rule takes after the last backward, which is the stage's
``all_reduce_s``, and what it holds, which is in its memory.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from heterps_compile.sync_rules.rules import USUAL
from heterps_compile.units import counted, format_bytes, format_seconds

from .planned_stage import PlannedStage


def rule_name(stage: PlannedStage) -> str:
    """Return the rule of a stage as text."""
    return USUAL.name if stage.sync is None else stage.sync.rule


def sync_words(stage: PlannedStage) -> str:
    """Compare the rule of a stage with an all-reduce; "" for an all-reduce."""
    if stage.sync is None:
        return ""
    sync = stage.sync
    memory = 0 if stage.memory is None else stage.memory.sync_bytes
    return (
        f"{sync.rule} ({sync.exactness}): {format_bytes(sync.step_bytes)} a replica and step, "
        f"{format_seconds(stage.all_reduce_s)} after the last backward"
        + (f", {format_bytes(memory)} held besides" if memory else "")
        + f"; all-reduce {format_bytes(sync.all_reduce_bytes)}, {format_seconds(sync.all_reduce_s)}"
    )


def sync_document(stage: PlannedStage) -> dict[str, Any] | None:
    """Return what JSON documents have of a stage's rule; None where it is an all-reduce."""
    if stage.sync is None:
        return None
    held = 0 if stage.memory is None else stage.memory.sync_bytes
    return {**asdict(stage.sync), "exposed_s": stage.all_reduce_s, "held_bytes": held}


def own_words(stage: PlannedStage) -> str:
    """Say what every replica of a stage does by itself behind the last backward; "" where nothing."""
    parts = (("own work of the rule", stage.handling_s), ("step of the optimizer", stage.update_s))
    return ", ".join(f"{words} {format_seconds(time_s)}" for words, time_s in parts if time_s > 0)


def rules_in_brief(stages: Sequence[PlannedStage]) -> str:
    """Name every rule but all-reduce, its class and the number of its stages; "" where all stages have all-reduce."""
    rules = Counter((stage.sync.rule, stage.sync.exactness) for stage in stages if stage.sync is not None)
    return ", ".join(f"{rule} ({exactness}) in {counted(n, 'stage')}" for (rule, exactness), n in rules.items())


def rules_words(stages: Sequence[PlannedStage]) -> str:
    """Say which stages have which rule, and what it comes to; "" where all have all-reduce."""
    return "; ".join(f"stage {stage.index}: {sync_words(stage)}" for stage in stages if stage.sync is not None)
