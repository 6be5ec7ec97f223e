"""Fit the cost model's few numbers to measurements, with their standard errors.

Left out: robust fitting of fractions; what is fitted are medians already.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from heterps_compile.cost.profile import Fitted, LinkProfile

from .nearest_ratios import nearest_ratios

_LEAST_BYTES_PER_S = 1.0
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, of many normal samples


def fit_parallel_fraction(times_s: Mapping[int, Sequence[float]]) -> Fitted | None:
    """Fit the part of a time that k units divide: ``T(k) = T(1) (1 - f + f / k)``, Amdahl's law.

    With ``x = 1 - 1/k`` and ``y = 1 - T(k) / T(1)`` this is ``y = f x``, a line through the origin. T(1) is in every y:
    how uncertain its median is counts beside how far the y scatter.

    Args:
        times_s: For every number of units, 1 among them, the times of some rounds.

    Returns:
        The fraction, held in [0, 1]; None where there is no number of units above 1.
    """
    once_s = float(np.median(times_s[1]))
    pairs = [(1 - 1 / k, 1 - time_s / once_s) for k, rounds_s in times_s.items() if k > 1 for time_s in rounds_s]
    if not pairs or once_s <= 0:
        return None
    x, y = np.array(pairs).T
    fraction = float(x @ y / (x @ x))
    left = y - fraction * x
    of_scatter = float(left @ left) / max(1, len(pairs) - 1) / float(x @ x)
    once_error = (
        _MEDIAN_ERROR * float(np.std(times_s[1], ddof=1)) / math.sqrt(len(times_s[1])) if times_s[1][1:] else 0.0
    )
    of_once = once_error / once_s * float(x @ (1 - y)) / float(x @ x)
    held = min(1.0, max(0.0, fraction))
    error = math.hypot(math.sqrt(of_scatter), of_once)
    return Fitted(held, error, tuple(sorted(times_s)), None if held == fraction else fraction)


def fit_link(sizes_bytes: Sequence[int], times_s: Sequence[float], between: str) -> LinkProfile:
    """Fit ``time = latency + bytes / bandwidth`` by the ratios of line and times.

    By differences the largest messages alone would decide, and the latency would be noise.

    Args:
        sizes_bytes: Of messages; at least three different ones.
        times_s: Of each, one way.
        between: What they went between, in words.
    """
    measured = np.asarray(times_s, np.float64)
    columns = np.stack([np.ones(len(measured)), np.asarray(sizes_bytes, np.float64)], axis=1) / measured[:, None]
    latency_s, s_per_byte = nearest_ratios(columns)
    left = 1 - columns @ np.array([latency_s, s_per_byte])
    covariance = np.linalg.inv(columns.T @ columns) * float(left @ left) / max(1, len(measured) - 2)
    latency_error_s, error = np.sqrt(np.diagonal(covariance))
    s_per_byte = max(float(s_per_byte), 1e-18)
    return LinkProfile(
        bytes_per_s=max(_LEAST_BYTES_PER_S, 1 / s_per_byte),
        bytes_per_s_error=float(error) / s_per_byte**2,
        latency_s=float(latency_s),
        latency_s_error=float(latency_error_s),
        between=between,
    )
