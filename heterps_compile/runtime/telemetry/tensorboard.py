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

from .events import RankTables, RankValidation
from .step_report import StepReport

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

    def add(self, report: StepReport) -> None:
        """Write a step.

        Raises:
            RunError: where it cannot be written.
        """
        with self._writing():
            for tag, number in scalars(report).items():
                self._writer.add_scalar(tag, number, report.step)

    def add_validation(self, validation: RankValidation) -> None:
        """Write a validation, at the step after which it was made.

        Raises:
            RunError: where it cannot be written.
        """
        with self._writing():
            for name, value in validation.metrics.items():
                self._writer.add_scalar(f"validation/{name}", value, validation.step - 1)

    def add_tables(self, tables: RankTables) -> None:
        """Write what tables on servers hold, at the step after which it was counted.

        Raises:
            RunError: where it cannot be written.
        """
        with self._writing():
            for table, numbers in tables.tables.items():
                for name, count in numbers.items():
                    self._writer.add_scalar(f"tables/{table}/{name}", count, tables.step - 1)

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


def scalars(report: StepReport) -> dict[str, float]:
    """Return the numbers of a step under their tags, with units in them."""
    numbers = {
        "run/step_s": report.step_s,
        "run/pace_s": report.pace_s,
        "run/samples_per_s": report.samples_per_s,
        "run/bubble": report.bubble,
        "run/sent_bytes": float(sum(report.link_bytes.values())),
    }
    if report.loss is not None:
        numbers["run/loss"] = report.loss
    numbers |= {f"loss/{name}": loss for name, loss in report.losses.items()}
    if report.gradient_norm is not None:
        numbers["run/gradient_norm"] = report.gradient_norm
    if report.loss_scale is not None:
        numbers["run/loss_scale"] = report.loss_scale
        numbers["run/skipped"] = float(report.is_skipped)
    several = len(report.learning_rates) > 1
    for group, rate in enumerate(report.learning_rates):
        numbers[f"learning_rate/{group}" if several else "run/learning_rate"] = rate
    numbers |= {f"wait/{what}_s": time_s for what, time_s in report.wait_s.items()}
    numbers |= {f"stage_s/{stage}": time_s for stage, time_s in report.stage_s.items()}
    numbers |= {f"rss_bytes/rank_{rank.rank}": float(rank.rss_bytes) for rank in report.ranks}
    gpus = [rank for rank in report.ranks if rank.peak_gpu_bytes]
    return numbers | {f"gpu_bytes/rank_{rank.rank}": float(rank.gpu_bytes) for rank in gpus}
