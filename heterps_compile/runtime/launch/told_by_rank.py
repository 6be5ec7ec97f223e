"""What a rank tells those who follow the run, beside its steps: validations, and what tables on servers hold."""

from collections.abc import Sequence
from dataclasses import asdict

from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.saved_counts import SavedCounts
from heterps_compile.runtime.servers.saved_tables import grown_rows
from heterps_compile.runtime.servers.spec import record_bytes
from heterps_compile.runtime.telemetry.events import RankTables, RankValidation
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder
from heterps_compile.runtime.validation.best import Standing
from heterps_compile.runtime.validation.result import Validation


def tell_validation(telemetry: TelemetryRecorder, validation: Validation, standing: Standing) -> None:
    """Tell those who follow the run of a validation."""
    best = standing.best
    telemetry.tell(
        RankValidation(
            rank=0,
            step=validation.step,
            samples=validation.samples,
            metrics=dict(validation.metrics),
            time_s=validation.time_s,
            best_step=None if best is None else best.step,
            best_value=None if best is None else best.value,
        )
    )


def tell_tables(
    telemetry: TelemetryRecorder, client: Client, rank: int, step: int, counts: Sequence[SavedCounts]
) -> None:
    """Tell those who follow the run what tables on servers hold."""
    spec, rows = client.spec, list(zip(client.spec.tables, counts, strict=True))
    telemetry.tell(
        RankTables(
            rank=rank,
            step=step,
            servers=spec.count,
            size_bytes=sum(count.rows * record_bytes(table, spec.optimizer.states) for table, count in rows),
            tables={table.name: asdict(grown_rows(count)) for table, count in rows if table.growth is not None},
        )
    )
