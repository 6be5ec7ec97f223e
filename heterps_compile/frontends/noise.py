"""Noise as large as rounding to float32, on copies of models in float64: it shows what rounding decides."""

from dataclasses import dataclass

ROUNDING = 2.0**-22
"""Two units in the last place of float32, relative to the number."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise on the weights of a copy.

    Attributes:
        seed: It is drawn from.
        size: Its standard deviation, relative to each weight.
    """

    seed: int
    size: float = ROUNDING
