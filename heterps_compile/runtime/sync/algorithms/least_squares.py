"""A finite sum of squares with a given condition, of which minimum and noise are known: what ADSAGA is held against.

Rows have length 1, so that every term has the curvature L = 1, and the smallest curvature of the mean is 1 / condition.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.errors import InputError

from .adsaga import LinearTerms

_ROUNDS = 500


@dataclass(frozen=True, slots=True)
class LeastSquares:
    """The mean over i of ``(features[i] x - targets[i])^2 / 2``.

    Attributes:
        features: Shape (n, d), float64, rows of length 1.
        targets: Shape (n,).
        minimum: Where the mean is least, shape (d,).
    """

    features: Tensor
    targets: Tensor
    minimum: Tensor

    @classmethod
    def drawn(cls, terms: int, weights: int, *, condition: float, noise: float, seed: int) -> "LeastSquares":
        """Draw one with a condition, L over the smallest curvature; all other curvatures are equal.

        Args:
            terms: n, above ``weights``.
            weights: d, 2 or more.
            condition: At least d, as the curvatures add up to L.
            noise: Of a target, in parts of the standard deviation of a weight.
            seed: Of all that is drawn.

        Raises:
            InputError: There is no such problem.
        """
        if not 2 <= weights < terms or condition < weights:
            raise InputError(
                f"no {terms} rows of length 1 with {weights} columns have a condition of {condition:g}; "
                f"it is {weights} at least, and rows must be more than columns"
            )
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randn(terms, weights, generator=generator, dtype=torch.float64)
        wanted = torch.full((weights,), (1 - 1 / condition) / (weights - 1), dtype=torch.float64)
        wanted[0] = 1 / condition
        # curvatures and lengths are set in turn, which settles
        for _ in range(_ROUNDS):
            rows = rows / rows.norm(dim=1, keepdim=True)
            found, axes = torch.linalg.eigh(rows.T @ rows / terms)
            if (found - wanted).abs().max() < 1e-14:
                break
            rows = rows @ (axes * (wanted / found).sqrt()) @ axes.T
        rows = rows / rows.norm(dim=1, keepdim=True)
        true = torch.randn(weights, generator=generator, dtype=torch.float64)
        targets = rows @ true + noise * torch.randn(terms, generator=generator, dtype=torch.float64)
        return cls(rows, targets, torch.linalg.lstsq(rows, targets[:, None]).solution[:, 0])

    def terms(self) -> LinearTerms:
        """Return it as a finite sum."""
        return LinearTerms(self.features, lambda term, product: product - self.targets[term])

    def start(self) -> Tensor:
        """Return the weights to begin with: zeros."""
        return torch.zeros_like(self.minimum)

    def error(self, weights: Tensor) -> float:
        """Return the squared distance from the minimum, in parts of that of ``start``."""
        return float((weights - self.minimum).square().sum() / self.minimum.square().sum())


def sgd_floor(problem: LeastSquares, step: float) -> float:
    """Return the mean error of SGD in its steady state, one worker, terms drawn evenly.

    With e the distance from the minimum and r_i the residuals there, ``e <- e - step a_i (a_i e + r_i)``. The mean of e
    goes to 0, and its second moment M to the fixed point of the mean over terms of
    ``(I - step a a') M (I - step a a') + step^2 r^2 a a'``.
    """
    rows = problem.features
    count, weights = rows.shape
    residuals = rows @ problem.minimum - problem.targets
    mean = rows.T @ rows / count
    noise = (rows * residuals.square()[:, None]).T @ rows / count
    moment = torch.zeros(weights, weights, dtype=rows.dtype)
    for _ in range(200_000):
        along = (rows @ moment * rows).sum(1)
        fourth = (rows * along[:, None]).T @ rows / count
        after = moment - step * (mean @ moment + moment @ mean) + step**2 * (fourth + noise)
        if (after - moment).abs().max() < 1e-12 * after.abs().max():
            break
        moment = after
    return float(moment.trace() / problem.minimum.square().sum())
