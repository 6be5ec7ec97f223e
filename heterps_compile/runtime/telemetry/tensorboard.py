"""Scalars of a run for TensorBoard; the package ``tensorboard`` writes its event files.

Left out: graphs, histograms, images.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heterps_compile.errors import InputError, RunError
from heterps_compile.packages import need

from .step_log import Entry

_EVERY_S = 10  # between two writes to the disk


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

        try:
            writer: Any = SummaryWriter(os.fspath(directory), flush_secs=_EVERY_S)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"cannot write TensorBoard's files to {os.fspath(directory)!r}: {reason}") from error
        self._directory = directory
        self._writer = writer

    def add(self, entry: Entry) -> None:
        """Write a step, or a validation or counts of tables at the step after which they were made.

        Raises:
            RunError: where it cannot be written.
        """
        with self._writing():
            for tag, number in entry.scalars.items():
                self._writer.add_scalar(tag, number, entry.after_steps - 1)

    def close(self) -> None:
        """Write what is left.

        Raises:
            RunError: where it cannot be written.
        """
        with self._writing():
            self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:  # of a thread that writes, told at the next call
            directory = os.fspath(self._directory)
            raise RunError(f"cannot write TensorBoard's files to {directory!r}: {error.strerror}") from error
