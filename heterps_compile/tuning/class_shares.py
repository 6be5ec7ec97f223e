"""Which parts of a space go to which compute class.

By cost, from what a trial of part s takes on class c, ``T[s, c]``, and how often each part is wanted, ``w``:

1. ``rate``: the most trials an hour where part s gets ``w[s]`` of them. It is the value of a linear programme:
   ``sum_s T[s, c] x[s, c] <= workers[c]`` and ``sum_c x[s, c] >= rate w[s]``.
2. The most trials an hour where part s gets ``least`` of that at least: ``sum_c x[s, c] >= least rate w[s]``. With
   ``least = 1`` the mix is the one wanted, and all that is gained is that parts go where they run well.

Left out: prices, which bound a search (``assignment.py``) but do not choose a class.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_TINY = 1e-9


def shares_by_cost(times_s: Matrix, workers: Sequence[int], wanted: Sequence[float], least: float) -> Matrix:
    """Return trials a second of each part (row) on each class (column).

    Args:
        times_s: Of a trial; infinite where a part does not fit a class, and finite on some class for every part.
        workers: Of each class.
        wanted: Part of the trials that each part of the space should get; their sum is 1.
        least: How much of what it should get a part gets at least, from 0 to 1.
    """
    parts, classes = times_s.shape
    fits = np.isfinite(times_s)
    scale = float(times_s[fits].min())  # about one, for the pivots
    size = parts * classes
    capacity = np.zeros((classes, size + 1))
    supply = np.zeros((parts, size + 1))
    for part in range(parts):
        for at in range(classes):
            column = part * classes + at
            if fits[part, at]:
                capacity[at, column] = times_s[part, at] / scale
                supply[part, column] = -1.0
            else:
                capacity[:, column] = 1.0  # a column that is never worth its place
        supply[part, size] = wanted[part]
    rows = np.concatenate([capacity, supply])
    limits = np.concatenate([np.asarray(workers, float), np.zeros(parts)])
    only_rate = np.zeros(size + 1)
    only_rate[size] = 1.0
    rate = maximise(only_rate, rows, limits)[size]
    bounded = np.concatenate([rows, only_rate[None]])
    dearer = 10 * parts * float(times_s[fits].max()) / scale  # than all the trials that a unit of the rate can displace
    worth = np.concatenate([fits.ravel().astype(float), [dearer]])
    found = maximise(worth, bounded, np.append(limits, least * rate))
    return np.where(fits, found[:size].reshape(parts, classes), 0.0) / scale


def maximise(worth: Matrix, rows: Matrix, limits: Matrix) -> Matrix:
    """Return the x >= 0 with the greatest ``worth x`` of those with ``rows x <= limits``, limits of 0 or more.

    The simplex method on a dense table, by Bland's rule, which ends; for tens of columns. The maximum must be bounded.
    """
    count, size = rows.shape
    table = np.zeros((count + 1, size + count + 1))
    table[:count, :size], table[:count, size:-1], table[:count, -1] = rows, np.eye(count), limits
    table[count, :size] = -np.asarray(worth)
    basis = list(range(size, size + count))
    while True:
        entering = np.flatnonzero(table[count, :-1] < -_TINY)
        if not len(entering):
            break
        column = int(entering[0])
        pivots = table[:count, column]
        ratios = np.where(pivots > _TINY, table[:count, -1] / np.where(pivots > _TINY, pivots, 1.0), np.inf)
        tied = np.flatnonzero(ratios <= ratios.min() + _TINY * max(1.0, float(ratios.min())))
        row = min((int(r) for r in tied), key=lambda r: basis[r])
        table[row] /= table[row, column]
        for other in range(count + 1):
            if other != row:
                table[other] -= table[other, column] * table[row]
        basis[row] = column
    found = np.zeros(size + count)
    found[basis] = table[:count, -1]
    return np.maximum(found[:size], 0.0)
