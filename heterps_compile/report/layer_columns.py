"""Columns of the tables of layers: with their work, of a compilation; as the plan has them, without the model.

Left out: single layers (``review/explain_words.py``), JSON (``report/document.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from heterps_compile.columns.column import (
    BYTES,
    COUNT,
    DEVICE,
    FLOPS,
    LABEL,
    NAME,
    NARROW,
    NUMBER,
    TEXT,
    TEXTS,
    Column,
)
from heterps_compile.columns.terminal import terminal_table
from heterps_compile.plan.plan import Plan

from .rows import LayerRow

LAYERS: tuple[Column[LayerRow], ...] = (
    Column("layer", lambda row: row.name, NAME, on=TEXTS),
    Column("kind", lambda row: row.told or row.kind, TEXT, on=TEXTS),
    Column("stage", lambda row: row.stage, COUNT, on=TEXTS, least_width=NARROW),
    Column("params", lambda row: row.parameters, FLOPS, on=TEXTS),
    Column("FLOPs", lambda row: row.cost.flops, FLOPS, on=TEXTS),
    Column("bytes", lambda row: row.cost.moved_bytes, BYTES, on=TEXTS),
    Column("bound by", lambda row: row.cost.label, LABEL, on=TEXTS),
    Column("FLOP/B", lambda row: row.cost.flop_per_byte, NUMBER, on=TEXTS),
    Column("because", lambda row: row.cost.reason, TEXT, on=TEXTS, least_width=NARROW),
)


@dataclass(frozen=True, slots=True)
class PlannedLayer:
    """A layer as a plan's file has it.

    Attributes:
        name: Of the layer.
        title: Describes a layer whose name is made up; None for others.
        stage: Index of its stage.
        device: Device types of its stage.
        fingerprint: Of the layer; None where it is not known.
    """

    name: str
    title: str | None
    stage: int
    device: str
    fingerprint: str | None


PLANNED_LAYERS: tuple[Column[PlannedLayer], ...] = (
    Column("layer", lambda row: row.name, NAME, on=TEXTS),
    Column("described as", lambda row: row.title, NAME, on=TEXTS),
    Column("stage", lambda row: row.stage, COUNT, on=TEXTS),
    Column("device", lambda row: row.device, DEVICE, on=TEXTS),
    Column("fingerprint", lambda row: row.fingerprint, LABEL, on=TEXTS, least_width=NARROW),
)


def layer_table(rows: Sequence[LayerRow], width: int) -> Table:
    """Draw the layers with their work, and whether data or computation bounds each."""
    return terminal_table(LAYERS, rows, width, currency="")


def planned_layer_table(plan: Plan, width: int) -> Table:
    """Draw the layers of a plan that was read from its file."""
    rows = [
        PlannedLayer(name, plan.titles.get(name), stage.index, stage.device_words, plan.fingerprints.get(name))
        for stage in plan.stages
        for name in stage.layers
    ]
    columns = [each for each in PLANNED_LAYERS if plan.titles or each.name != "described as"]
    return terminal_table(columns, rows, width, currency="")
