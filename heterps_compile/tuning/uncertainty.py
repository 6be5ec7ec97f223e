"""How uncertain the results of a part of a space are: the second of SHADHO's measures (Kinnison et al., WACV 2018).

A Gaussian process with a squared exponential kernel is fitted to the losses over the cube of the part, again and again,
each time to four fifths of them. Where the losses determine the landscape, its length scale comes out the same each
time; the measure is how far the fits lie apart: the greatest less the least of the inverse length scales.

The authors' code takes length scales that it drew and did not fit, so that its measure does not depend on the results;
this one is made anew from what the paper says.

Left out: one length scale a parameter; what is more than the last hundred results.
"""

from collections.abc import Sequence

import numpy as np

from .space import Vector

LEAST_RESULTS = 5
_MOST_RESULTS = 100
_FITS = 8
_PART = 0.8
_LENGTHS = np.geomspace(0.05, 5.0, 16)
_NOISES = (1e-3, 1e-1)


def uncertainty(vectors: Sequence[Vector], losses: Sequence[float], random: np.random.Generator) -> float | None:
    """Return the spread of the inverse length scales; None where fewer than five results are finite."""
    finite = [index for index, loss in enumerate(losses) if np.isfinite(loss)][-_MOST_RESULTS:]
    if len(finite) < LEAST_RESULTS:
        return None
    x = np.array([vectors[index] for index in finite])
    y = np.array([losses[index] for index in finite])
    apart = ((x[:, None] - x[None]) ** 2).sum(-1)
    count = max(int(len(x) * _PART), LEAST_RESULTS - 1)
    inverse = []
    for _ in range(_FITS):
        some = random.permutation(len(x))[:count]
        inverse.append(1 / _fitted_length(apart[np.ix_(some, some)], y[some]))
    return max(inverse) - min(inverse)


def _fitted_length(apart: Vector, y: Vector) -> float:
    """Return the length scale of the greatest marginal likelihood, over a grid of it and of the noise."""
    spread = float(y.std())
    y = (y - y.mean()) / (spread if spread > 0 else 1.0)
    best, found = -np.inf, float(_LENGTHS[-1])
    for length in _LENGTHS:
        kernel = np.exp(-0.5 * apart / length**2)
        for noise in _NOISES:
            lower = np.linalg.cholesky(kernel + noise * np.eye(len(y)))
            likely = -0.5 * float((np.linalg.solve(lower, y) ** 2).sum()) - float(np.log(np.diag(lower)).sum())
            if likely > best:
                best, found = likely, float(length)
    return found
