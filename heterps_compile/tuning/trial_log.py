"""Validations of a trial while it runs, out of the log that its run writes: one line of JSON a step and a validation.

Trials run the user's own code, which may write what it likes into their folder: a line that is no validation is passed
over, and what is read at once is bounded.

Left out: writing the log (``runtime/telemetry/step_log.py``).
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path

LOG_FILE = "log.jsonl"

_MOST_AT_ONCE_BYTES = 4 * 2**20
_MOST_LINE_BYTES = 256 * 1024
_VALIDATION = b'{"validation"'


class TrialLog:
    """Reads what the log of a trial has more than the last time."""

    def __init__(self, folder: Path, metric: str) -> None:
        """Begin at the beginning.

        Args:
            folder: Of the attempt.
            metric: Whose values are wanted.
        """
        self._path, self._metric = folder / LOG_FILE, metric
        self._offset = 0

    def read(self) -> list[tuple[int, float]]:
        """Return the new validations: steps done, and the metric. Half a line is left for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE_BYTES)
        except OSError:
            return []  # it is not there yet, or not any more
        whole = data.rfind(b"\n") + 1
        self._offset += whole or (len(data) if len(data) > _MOST_LINE_BYTES else 0)
        found = [_validation(line) for line in data[:whole].splitlines()]
        return [
            (steps, metrics[self._metric])
            for steps, metrics in (one for one in found if one is not None)
            if math.isfinite(metrics.get(self._metric, math.nan))
        ]


def validations_in(folder: Path) -> list[tuple[int, Mapping[str, float]]]:
    """Return all validations that the log of an attempt has: steps done, and the metrics."""
    try:
        with (folder / LOG_FILE).open("rb") as file:
            return [one for line in file if (one := _validation(line)) is not None]
    except OSError:
        return []


def _validation(line: bytes) -> tuple[int, Mapping[str, float]] | None:
    if not line.startswith(_VALIDATION) or len(line) > _MOST_LINE_BYTES:
        return None
    try:
        said = json.loads(line)
        steps, metrics = said["after_steps"], {str(name): float(value) for name, value in said["validation"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return (steps, metrics) if type(steps) is int and steps >= 0 else None
