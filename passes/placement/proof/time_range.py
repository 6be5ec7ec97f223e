"""A range of times of a batch: a node of the search (``time_search.py``)."""

from dataclasses import dataclass, replace

from heterps_compile.cost.problem import Floats, Placement
from heterps_compile.passes.placement.geometry import Segments


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Times (fast_s, slow_s] of a batch.

    Attributes:
        bound: Lower bound on the value of every plan in the range.
        fast_s, slow_s: Its ends; equal for one time.
        segments: That better plans may have; None for all.
        multipliers: [T + 1], to begin with.
        is_tried: Whether closing it from the slow end failed.
        loose: The plan that seems cheapest in it; only where segments bound the cost of stages.
    """

    bound: float
    fast_s: float
    slow_s: float
    segments: Segments | None
    multipliers: Floats
    is_tried: bool = False
    loose: Placement | None = None

    def is_within(self, width: float) -> bool:
        """Check that the range is no wider than a share of its slow end."""
        return self.fast_s >= self.slow_s * (1 - width)

    def split(self, middle_s: float) -> "tuple[TimeRange, TimeRange]":
        """Split the range at a time, the faster part first."""
        return replace(self, slow_s=middle_s, is_tried=False), replace(self, fast_s=middle_s)
