"""The log of a run: one line of JSON a step and a validation, for programs (``docs/telemetry.md`` has the schema).

Left out: what single actions took; a trace has them.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from heterps_compile.errors import InputError, RunError

from .events import RankTables, RankValidation, plain_value
from .step_report import StepReport


class StepLog:
    """Writes a line for every step."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        """Open the file.

        Args:
            path: Where to.
            append: Whether the lines go on after those that are there, as a resumed run's do.

        Raises:
            InputError: where it cannot be written.
        """
        self._path = path
        try:
            self._file = path.open("a" if append else "w", encoding="ascii")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write the log {os.fspath(path)!r}: {reason}") from error

    def add(self, report: StepReport) -> None:
        """Write a step.

        Raises:
            RunError: where it cannot be written.
        """
        self._write(step_record(report))

    def add_validation(self, validation: RankValidation) -> None:
        """Write a validation.

        Raises:
            RunError: where it cannot be written.
        """
        self._write(validation_record(validation))

    def add_tables(self, tables: RankTables) -> None:
        """Write what tables on servers hold.

        Raises:
            RunError: where it cannot be written.
        """
        self._write(tables_record(tables))

    def close(self) -> None:
        """Close the file.

        Raises:
            RunError: where what is left cannot be written.
        """
        try:
            self._file.close()
        except OSError as error:
            raise self._unwritable(error) from error

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"cannot write the log {os.fspath(self._path)!r}: {error.strerror}")


def append_decisions(path: Path, decisions: Sequence[tuple[float, str]]) -> None:
    """Add what a launcher decided to the log of ranks that have left, where this machine has it.

    Args:
        path: Of the log.
        decisions: Seconds since 1970, and a sentence.
    """
    if path.is_file():
        with suppress(OSError), path.open("a", encoding="ascii") as file:
            file.writelines(json.dumps(decision_record(*one)) + "\n" for one in decisions)


def decision_record(at_s: float, words: str) -> dict[str, Any]:
    """Return what a launcher decided as what its line in the log holds."""
    return {"decision": words, "at_s": at_s}


def validation_record(validation: RankValidation) -> dict[str, Any]:
    """Return a validation as what its line in the log holds."""
    return {
        "validation": dict(validation.metrics),
        "after_steps": validation.step,
        "samples": validation.samples,
        "is_best": validation.is_best,
        "best_after_steps": validation.best_step,
        "best": validation.best_value,
        "time_s": validation.time_s,
    }


def tables_record(tables: RankTables) -> dict[str, Any]:
    """Return what tables on servers hold as what its line in the log holds."""
    return {
        "tables": {name: dict(numbers) for name, numbers in tables.tables.items()},
        "after_steps": tables.step,
        "servers": tables.servers,
        "size_bytes": tables.size_bytes,
    }


_OF_STEP = (
    *("step", "samples", "loss", "losses", "learning_rate", "gradient_norm", "loss_scale", "skipped", "step_s"),
    *("pace_s", "samples_per_s", "bubble", "stage_s", "wait_s", "link_bytes", "sync_bytes", "sync_between_bytes"),
    *("cpu_s", "data_bytes", "replica_gap", "ranks"),
)
_OF_RANK = ("rank", "busy_s", "rss_bytes", "peak_rss_bytes", "gpu_bytes", "peak_gpu_bytes")


def step_record(report: StepReport) -> dict[str, Any]:
    """Return a step as what its line in the log holds."""
    rates = plain_value(report.learning_rates)
    made = {
        "learning_rate": rates if len(rates) > 1 else rates[0] if rates else None,
        "skipped": report.is_skipped,
        "ranks": [{name: getattr(rank, name) for name in _OF_RANK} for rank in report.ranks],
    }
    return {name: made[name] if name in made else plain_value(getattr(report, name)) for name in _OF_STEP}
