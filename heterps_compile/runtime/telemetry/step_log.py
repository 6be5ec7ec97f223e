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

from .events import RankTables, RankValidation
from .step_report import StepReport

Entry = StepReport | RankValidation | RankTables


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

    def add(self, entry: Entry) -> None:
        """Write a step, a validation or the counts of tables.

        Raises:
            RunError: where it cannot be written.
        """
        try:
            self._file.write(json.dumps(entry.record, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Close the file.

        Raises:
            RunError: where what is left cannot be written.
        """
        try:
            self._file.close()
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
