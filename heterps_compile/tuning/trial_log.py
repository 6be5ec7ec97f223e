"""Validations of a trial while it runs, out of the log that its run writes: one line of JSON a step and a validation.

Trials run the user's own code, which may write what it likes into their folder: a line that is no validation is passed
over, and a line is read in bounded pieces.

Left out: writing the log (``runtime/telemetry/step_log.py``).
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

LOG_FILE = "log.jsonl"

_MOST_LINE_BYTES = 256 * 1024
_VALIDATION = b'{"validation"'

Validation = tuple[int, Mapping[str, float]]
"""Steps done, and the metrics by name."""


class TrialLog:
    """Reads the lines of a trial's log that are new since the last time."""

    def __init__(self, folder: Path) -> None:
        """Begin at the beginning of the log of an attempt's folder."""
        self._path = folder / LOG_FILE
        self._offset = 0

    def read(self) -> list[Validation]:
        """Read the new validations. Half a line is left for the next time."""
        found: list[Validation] = []
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while (line := file.readline(_MOST_LINE_BYTES)).endswith(b"\n") or len(line) == _MOST_LINE_BYTES:
                    self._offset += len(line)
                    found += _validations(line)
        except OSError:
            pass  # it is not there yet, or not any more
        return found


def values_of(validations: Sequence[Validation], metric: str) -> list[tuple[int, float]]:
    """Select the finite values of a metric, with their steps."""
    values = [(steps, metrics.get(metric, math.nan)) for steps, metrics in validations]
    return [one for one in values if math.isfinite(one[1])]


def _validations(line: bytes) -> list[Validation]:
    """Return the validation of a line, or nothing."""
    if not line.startswith(_VALIDATION):
        return []
    try:
        said = json.loads(line)
        steps, metrics = said["after_steps"], {str(name): float(value) for name, value in said["validation"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return []
    return [(steps, metrics)] if type(steps) is int and steps >= 0 else []
