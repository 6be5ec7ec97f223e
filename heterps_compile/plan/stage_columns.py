"""Columns of the stage table, the one list that every output reads.

Left out: the summary of the plan (``total_columns.py``), the file ``plan.json``.
"""

from dataclasses import asdict, dataclass
from typing import Any

from heterps_compile.columns.column import (
    ABSENT,
    BYTES,
    COUNT,
    DEVICE,
    DOCUMENT,
    FIGURES,
    FILES,
    MONEY_PER_HOUR,
    NAMES,
    NARROW,
    SAMPLES_PER_S,
    SECONDS,
    TEXT,
    TEXTS,
    THOROUGH,
    Column,
)

from .plan import Plan
from .planned_stage import PlannedStage


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage, and the plan that it is of."""

    plan: Plan
    stage: PlannedStage

    @property
    def files(self) -> tuple[str, ...]:
        """Find the names of its files; none before it is written."""
        return tuple(each.file for each in self.plan.artifacts[self.stage.index]) if self.plan.artifacts else ()


def stage_rows(plan: Plan) -> list[StageRow]:
    """Make a row a stage, in order of execution."""
    return [StageRow(plan, stage) for stage in plan.stages]


def _pull_s(row: StageRow) -> float:
    return row.stage.pull_s(row.plan.schedule.micro_batches)


def _samples_per_s(row: StageRow) -> float | None:
    return row.plan.batch / row.stage.time_s if row.stage.time_s > 0 else None


def _memory_bytes(row: StageRow) -> float | None:
    return None if row.stage.memory is None else row.stage.memory.total_bytes


def _mixed(row: StageRow) -> Any:
    return [asdict(each) for each in row.stage.mixed] or ABSENT


STAGES: tuple[Column[StageRow], ...] = (
    Column("stage", lambda row: row.stage.index, COUNT, on=TEXTS),
    Column("device", lambda row: row.stage.device_words, DEVICE, on=TEXTS),
    Column("device", lambda row: row.stage.device, TEXT, on=DOCUMENT),
    Column("replicas", lambda row: row.stage.replicas_words, FIGURES, on=TEXTS),
    Column("replicas", lambda row: row.stage.replicas, COUNT, on=DOCUMENT),
    Column("mixed", _mixed, TEXT, on=DOCUMENT),
    Column("layers", lambda row: row.stage.layers, NAMES),
    Column("batch every", lambda row: row.stage.time_s, SECONDS, on=TEXTS),
    Column("time", lambda row: row.stage.time_s, SECONDS, on=DOCUMENT),
    Column("compute", lambda row: row.stage.compute_s, SECONDS, on=THOROUGH | DOCUMENT),
    Column("data", lambda row: row.stage.data_s, SECONDS, on=THOROUGH | DOCUMENT),
    Column("all-reduce", lambda row: row.stage.all_reduce_s, SECONDS, on=DOCUMENT),
    Column("handling", lambda row: row.stage.handling_s, SECONDS, on=DOCUMENT),
    Column("update", lambda row: row.stage.update_s, SECONDS, on=DOCUMENT),
    Column("pull", _pull_s, SECONDS, on=DOCUMENT),
    Column("push", lambda row: row.stage.push_s, SECONDS, on=DOCUMENT),
    Column("throughput", _samples_per_s, SAMPLES_PER_S, least_width=NARROW),
    Column("memory", _memory_bytes, BYTES),
    Column("recompute", lambda row: row.stage.recompute, TEXT, on=DOCUMENT),
    Column("price", lambda row: row.stage.price_per_hour, MONEY_PER_HOUR),
    Column("artifact", lambda row: row.files[0] if row.files else None, TEXT, on=DOCUMENT),
    Column("files", lambda row: row.files, FILES, on=THOROUGH | DOCUMENT, least_width=NARROW),
)
"""The stage table: a further column is one line here, and every output has it."""
