"""What is kept of a run: a line of JSON a step and a validation, for programs, and scalars for TensorBoard.

``docs/telemetry.md`` has the schema of the lines. The package ``tensorboard`` writes its event files.

Left out: what single actions took, which a trace has; graphs, histograms, images.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.packages import need

from .events import RankTables, RankValidation, writing
from .step_report import StepReport

Entry = StepReport | RankValidation | RankTables

_EVERY_S = 10  # between two writes of TensorBoard's to the disk


class StepLog:
    """Writes a line for every step, validation and count of tables."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        """Open the file.

        Args:
            path: Where to.
            append: Whether the lines go on after those that are there, as a resumed run's do.

        Raises:
            InputError: where it cannot be written.
        """
        self._what = f"the log {os.fspath(path)!r}"
        with _opening(self._what):
            self._file = path.open("a" if append else "w", encoding="ascii")

    def add(self, entry: Entry) -> None:
        """Write an entry.

        Raises:
            RunError: where it cannot be written.
        """
        with writing(self._what):
            self._file.write(json.dumps(entry.record, allow_nan=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file.

        Raises:
            RunError: where what is left cannot be written.
        """
        with writing(self._what):
            self._file.close()


class TensorBoardLog:
    """Writes scalars of every step."""

    def __init__(self, directory: Path) -> None:
        """Begin a file of events in a directory, which is made where there is none.

        Raises:
            InputError: where the directory cannot be written.
            MissingPackageError: where the package is not installed.
        """
        need("writing TensorBoard's files", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra, and slow to import

        self._what = f"TensorBoard's files to {os.fspath(directory)!r}"
        make: Any = SummaryWriter  # which has no types
        with _opening(self._what):
            self._writer = make(os.fspath(directory), flush_secs=_EVERY_S)

    def add(self, entry: Entry) -> None:
        """Write a step, or a validation or counts of tables at the step after which they were made.

        Raises:
            RunError: where it cannot be written; of a thread that writes, at the next call.
        """
        with writing(self._what):
            for tag, number in entry.scalars.items():
                self._writer.add_scalar(tag, number, entry.after_steps - 1)

    def close(self) -> None:
        """Write what is left.

        Raises:
            RunError: where it cannot be written.
        """
        with writing(self._what):
            self._writer.close()


@contextmanager
def _opening(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {what}: {getattr(error, 'strerror', None) or error}") from error


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
