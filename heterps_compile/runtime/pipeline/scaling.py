"""The scale of losses in float16 as a value, and how it moves from step to step; a checkpoint keeps it.

Left out: gradients (``loss_scale.py``).
"""

import math
from dataclasses import dataclass, replace

from heterps_compile.errors import RunError

_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a scale moves; the defaults are those of ``torch.amp.GradScaler``.

    Attributes:
        scale: At the beginning.
        growth_factor: By which it grows.
        backoff_factor: By which it falls.
        growth_interval: Steps in a row with finite gradients after which it grows.
        growth_tracker: How many such steps there have been since it last moved.
        skipped: Steps that were skipped in all.
    """

    scale: float = 2.0**16
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    growth_tracker: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        numbers = (self.scale, self.growth_factor, self.backoff_factor)
        counts = (self.growth_interval - 1, self.growth_tracker, self.skipped)
        if not all(math.isfinite(x) and x > 0 for x in numbers) or min(counts) < 0:
            raise RunError(f"{self} is no state of a loss scale; its factors are above zero, its counts not below")

    def after(self, *, is_finite: bool) -> "Scaling":
        """Return the state after a step, as ``GradScaler.update()`` has it."""
        if not is_finite:
            return replace(self, scale=self.scale * self.backoff_factor, growth_tracker=0, skipped=self.skipped + 1)
        if self.growth_tracker + 1 < self.growth_interval:
            return replace(self, growth_tracker=self.growth_tracker + 1)
        grown = self.scale * self.growth_factor
        return replace(self, growth_tracker=0, scale=grown if grown <= _LARGEST_FLOAT32 else self.scale)
