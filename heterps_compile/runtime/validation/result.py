"""What a validation came to, as it travels between ranks and to whoever asked for the run.

Left out: what hooks of the training file see (``launch/run_view.py``).
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@+/ -]{0,63}")
"""What a metric may be called: it stands on terminals, in logs and in names of scalars."""


@dataclass(frozen=True, slots=True)
class Validation:
    """One validation of a run.

    Attributes:
        step: Steps done when it was made, as in a checkpoint's name.
        samples: That it went over, each once.
        metrics: By name; ``loss`` is always there.
        time_s: That it took.
        is_best: Whether it is the best so far, by the metric of ``--keep-best``.
    """

    step: int
    samples: int
    metrics: Mapping[str, float]
    time_s: float
    is_best: bool = False

    def to_json(self) -> str:
        """Return text that :func:`validation_from_json` reads back."""
        return json.dumps(asdict(self), allow_nan=False)


def validation_from_json(text: str | bytes) -> Validation:
    """Read what :meth:`Validation.to_json` wrote.

    Raises:
        RunError: where it is something else.
    """
    try:
        return validation_of(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"a message about a validation cannot be read: {printable(repr(text[:80]))}; do all ranks run the same "
            f"version?"
        ) from error


def validation_of(content: Mapping[str, Any]) -> Validation:
    """Read what JSON made of a validation.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: where it is something else.
    """
    metrics = metrics_of(content["metrics"])
    numbers = {name: int(content[name]) for name in ("step", "samples")}
    return Validation(**numbers, metrics=metrics, time_s=float(content["time_s"]), is_best=bool(content["is_best"]))


def metrics_of(content: Mapping[str, Any]) -> dict[str, float]:
    """Read metrics by name.

    Raises:
        TypeError, ValueError, AttributeError: where they are something else.
    """
    metrics = {name: float(value) for name, value in content.items()}
    if not all(METRIC_NAME.fullmatch(name) and math.isfinite(value) for name, value in metrics.items()):
        raise ValueError("a metric has no name, or is no number")
    return metrics


def metric_words(metrics: Mapping[str, float]) -> str:
    """Return metrics in a line, in their order."""
    return ", ".join(f"{printable(name)} {value:.6g}" for name, value in metrics.items())
