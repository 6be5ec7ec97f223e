"""What a validation came to, as it travels between ranks and to whoever asked for the run.

Left out: what hooks of the training file see (``launch/run_view.py``).
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field

from heterps_compile.escape import printable

METRIC_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@+/ -]{0,63}")
"""What a metric may be called: it stands on terminals, in logs and in names of scalars."""

Metrics = Mapping[
    Annotated[str, Field(pattern=f"^{METRIC_NAME.pattern}$")], Annotated[float, Field(allow_inf_nan=False)]
]
"""Metrics by name, as they are checked when they are read."""


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
    metrics: Metrics
    time_s: float
    is_best: bool = False

    def to_json(self) -> str:
        """Return text that other ranks read."""
        return json.dumps(asdict(self), allow_nan=False)


def metric_words(metrics: Mapping[str, float]) -> str:
    """Return metrics in a line, in their order."""
    return ", ".join(f"{printable(name)} {value:.6g}" for name, value in metrics.items())
