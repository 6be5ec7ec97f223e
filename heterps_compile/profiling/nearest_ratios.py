"""Fit non-negative numbers whose estimates have the least ratio to the measurements.

The sum of the sizes of the logarithms of estimate over measurement is least: half counts as much as twice, and a few
outliers do not bend the fit. It is found by least squares whose weights follow from the round before.

Not covered: error bars.
"""

from math import inf

import numpy as np

from heterps_compile.cost.problem import Floats

_ROUNDS = 12
_LEAST_ERROR = 0.02  # of weights: an error below counts as this
_LEAST_RATIO = 1e-3  # of weights: an estimate below counts as this part of what was measured


def nearest_ratios(rows: Floats) -> Floats:
    """Return x >= 0 for which ``rows @ x`` is nearest to 1 everywhere, by the sum of the sizes of logarithms.

    The weighted squares of a round are what that sum was at the end of the round before.
    """
    weights = np.ones(len(rows))
    found = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        found = _non_negative(rows * weights[:, None], weights)
        off = np.maximum(rows @ found, _LEAST_RATIO) - 1
        off = np.where(np.abs(off) < _LEAST_ERROR, _LEAST_ERROR, off)
        weights = np.sqrt(np.abs(np.log1p(off))) / np.abs(off)
    return found


def _non_negative(rows: Floats, wanted: Floats) -> Floats:
    """Return the non-negative least squares of ``rows @ x = wanted``: the active-set method of Lawson and Hanson."""
    scale = np.linalg.norm(rows, axis=0)
    used = np.flatnonzero(scale > 0)
    scaled = rows[:, used] / scale[used]
    chosen = np.zeros(len(used), np.bool_)
    found = np.zeros(len(used))
    for _ in range(3 * len(used) + 1):
        gain = scaled.T @ (wanted - scaled @ found)
        gain[chosen] = -inf
        best = int(np.argmax(gain)) if len(gain) else -1
        if best < 0 or gain[best] <= 1e-10 * np.linalg.norm(wanted):
            break
        chosen[best] = True
        while True:
            trial = np.zeros(len(used))
            trial[chosen] = np.linalg.lstsq(scaled[:, chosen], wanted, rcond=None)[0]
            if np.all(trial[chosen] > 0):
                break
            falling = chosen & (trial <= 0)
            step = np.min(found[falling] / (found[falling] - trial[falling] + 1e-300))
            found = found + step * (trial - found)
            chosen &= found > 1e-12 * max(1.0, float(np.max(found)))
            if not np.any(chosen):
                trial = np.zeros(len(used))
                break
        found = trial
    result = np.zeros(rows.shape[1])
    result[used] = found / scale[used]
    return result
