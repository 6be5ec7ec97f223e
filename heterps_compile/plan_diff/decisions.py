"""What a plan decides, without what it estimates: which layers stand together, on what, on how many units.

Left out: the order of layers inside a stage and the values that cross (both follow from the model), parameters that
several stages hold (they follow from the stages).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import Request
from heterps_compile.plan.stage_sync import rule_name

Setting = str | int | float | None
"""The value of an option; pairs of patterns and device types are one text."""


@dataclass(frozen=True, slots=True)
class StageDecisions:
    """One stage: its hardware, by device type too, the names of its layers, and the rule by which replicas agree."""

    device: str
    kind: str
    backend: str
    replicas: int
    layers: frozenset[str]
    recompute: bool
    rule: str
    units: tuple[tuple[str, int], ...]

    @property
    def devices(self) -> str:
        """Name its device types: ``"v100"``, ``"v100 + cpu-core"``."""
        return " + ".join(device for device, _ in self.units)

    @property
    def counts(self) -> tuple[int, ...]:
        """Return its replicas of every type."""
        return tuple(count for _, count in self.units)


@dataclass(frozen=True, slots=True)
class Decisions:
    """All stages in order, and the options of the whole plan by name."""

    stages: tuple[StageDecisions, ...]
    settings: Mapping[str, Setting]


def decisions(plan: Plan) -> Decisions:
    """Return what a plan decides."""
    return Decisions(
        tuple(
            StageDecisions(
                stage.device,
                stage.kind,
                stage.backend,
                stage.replicas,
                frozenset(stage.layers),
                stage.recompute,
                rule_name(stage),
                stage.units,
            )
            for stage in plan.stages
        ),
        settings(plan),
    )


def settings(plan: Plan) -> dict[str, Setting]:
    """Return the options of a plan that are no stage's own, by name."""
    asked = {field.name: _plain(getattr(plan.request, field.name)) for field in fields(Request)}
    return {
        "cluster": plan.cluster,
        "backend": plan.backend,
        "batch": plan.batch,
        "schedule": plan.schedule.name,
        "micro_batches": plan.schedule.micro_batches,
        "parameter_servers": plan.parameter_servers.count,
        "tables_on_servers": "" if plan.tables is None else ", ".join(plan.tables.names),
        **asked,
    }


def _plain(value: Setting | tuple[tuple[str, str], ...]) -> Setting:
    """Return an option as one value: pairs of a pattern and a device type become one text."""
    return ", ".join("=".join(pair) for pair in value) if isinstance(value, tuple) else value
