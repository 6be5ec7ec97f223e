"""Validations of a trial while it runs, out of the log that its run writes: one line of JSON a step and a validation.

Trials run the user's own code, which may write what it likes into their folder: a line that is no validation is passed
over, and what is read at once is bounded.

Left out: writing the log (``runtime/telemetry/step_log.py``).
"""

import json
import math
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
        found = [self._validation(line) for line in data[:whole].splitlines() if line.startswith(_VALIDATION)]
        return [one for one in found if one is not None]

    def _validation(self, line: bytes) -> tuple[int, float] | None:
        try:
            said = json.loads(line[:_MOST_LINE_BYTES])
            steps, value = said["after_steps"], said["validation"][self._metric]
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        is_one = type(steps) is int and steps >= 0 and type(value) in (int, float) and math.isfinite(value)
        return (steps, float(value)) if is_one else None
