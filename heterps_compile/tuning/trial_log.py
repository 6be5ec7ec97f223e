"""Validations of a trial while it runs, out of the log that its run writes: one line of JSON a step and a validation.

Trials run the user's own code, which may write what it likes into their folder: a line that is no validation is passed
over, and what is read at once is bounded.

Left out: writing the log (``runtime/telemetry/step_log.py``).
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

LOG_FILE = "log.jsonl"

_MOST_AT_ONCE_BYTES = 4 * 2**20
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
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_MOST_AT_ONCE_BYTES)
        except OSError:
            return []  # it is not there yet, or not any more
        whole = data.rfind(b"\n") + 1
        self._offset += whole or (len(data) if len(data) > _MOST_LINE_BYTES else 0)
        found = map(_validation, data[:whole].splitlines())
        return [one for one in found if one is not None]


def values_of(validations: Iterable[Validation], metric: str) -> list[tuple[int, float]]:
    """Select the finite values of a metric, with their steps."""
    values = [(steps, metrics.get(metric, math.nan)) for steps, metrics in validations]
    return [one for one in values if math.isfinite(one[1])]


def validations_in(folder: Path) -> list[Validation]:
    """Read all validations in the log of an attempt."""
    try:
        with (folder / LOG_FILE).open("rb") as file:
            return [one for line in file if (one := _validation(line)) is not None]
    except OSError:
        return []


def _validation(line: bytes) -> Validation | None:
    if not line.startswith(_VALIDATION) or len(line) > _MOST_LINE_BYTES:
        return None
    try:
        said = json.loads(line)
        steps, metrics = said["after_steps"], {str(name): float(value) for name, value in said["validation"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None
    return (steps, metrics) if type(steps) is int and steps >= 0 else None
