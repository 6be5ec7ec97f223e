"""Times between the batches at which they are known, as ``profile.py`` draws them."""

from collections.abc import Sequence


def interpolate(points: Sequence[tuple[float, float]], batch: float) -> float:
    """Read the time at a batch off points that ascend by batch, as ``profile.py`` draws it; 0 without points."""
    if not points:
        return 0.0
    if len(points) == 1:
        only, only_s = points[0]
        return only_s * batch / only
    first = next((i for i, (measured, _) in enumerate(points[1:-1]) if batch <= measured), len(points) - 2)
    (low, low_s), (high, high_s) = points[first], points[first + 1]
    slope_s = (high_s - low_s) / (high - low)
    if low <= batch <= high:
        return low_s + slope_s * (batch - low)
    nearest, nearest_s = (low, low_s) if batch < low else (high, high_s)
    # noise makes no larger batch quicker, nor a fixed part below 0
    slope_s = min(max(0.0, slope_s), nearest_s / nearest)
    return nearest_s + slope_s * (batch - nearest)
