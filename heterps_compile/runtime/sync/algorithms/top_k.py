"""The k entries of largest magnitude of a flat tensor, exactly k of them.

Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters", MLSys 2021, arXiv
2010.10458 (the operator MSTopK): a threshold is found by bisection between the mean and the maximum of the magnitudes,
by ``bisections`` counts of one pass each instead of a sort. After them fewer than k entries are certain, and the rest
comes from the narrow band below. The paper takes it from a random place of the band; this file takes the lowest
indices, so that two calls give the same.

Departures from the paper, all of them for cases in which it gives another number than k:

1. Where fewer than k entries reach the mean, the bisection runs between 0 and the mean.
2. Where k or more entries tie at the maximum, the lowest indices of them are taken.
3. A tensor with NaN or infinite entries is refused: there is no order among them.

Left out: who talks to whom (``hierarchy.py`` counts it, the runtime does it); what is not sent
(``error_feedback.py``).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from heterps_compile.errors import InputError

_LEFT = 8
"""Entries are copied out once less than one in so many is left between the thresholds."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries of a flat tensor.

    Attributes:
        values: With their signs; as many as indices, in the tensor's dtype.
        indices: Distinct and ascending, int64.
    """

    values: Tensor
    indices: Tensor

    @property
    def size_bytes(self) -> int:
        """Return what values and indices take as they are sent: the indices as int32 where they fit."""
        return self.values.numel() * (self.values.element_size() + 4)

    def dense(self, length: int) -> Tensor:
        """Return a tensor of a length with these entries, and 0 elsewhere."""
        flat = torch.zeros(length, dtype=self.values.dtype, device=self.values.device)
        flat[self.indices] = self.values
        return flat


def select_exact(flat: Tensor, k: int) -> Selection:
    """Return the k entries of largest magnitude, by torch's selection; which of equal ones is torch's choice.

    Args:
        flat: One-dimensional, floating, finite.
        k: From 0 to its length.

    Raises:
        InputError: It is not one-dimensional, ``k`` is beyond its length, or an entry is NaN or infinite.
    """
    magnitudes = _magnitudes(flat, k)
    indices = torch.topk(magnitudes, k, sorted=False).indices.sort().values
    return Selection(flat[indices], indices)


def select_threshold(flat: Tensor, k: int, bisections: int = 30) -> Selection:
    """Return k entries of nearly the largest magnitude, by bisection of a threshold; see the module.

    All that is left out is at most ``(max - mean) / 2**bisections`` above the smallest that is in.

    Args:
        flat: One-dimensional, floating, finite.
        k: From 0 to its length.
        bisections: Passes over the tensor; 30 resolve float32.

    Raises:
        InputError: It is not one-dimensional, ``k`` is beyond its length, or an entry is NaN or infinite.
    """
    if bisections < 0:
        raise InputError(f"a threshold is found by 0 or more bisections, not {bisections}")
    magnitudes = _magnitudes(flat, k)
    if k == 0 or k == flat.numel():
        indices = torch.arange(k, device=flat.device)
        return Selection(flat[indices], indices)
    # Thresholds stay on the device. k or more entries reach ``low``, fewer ``high``.
    most = magnitudes.max()
    mean = torch.minimum(magnitudes.mean(dtype=torch.float64).to(flat.dtype), most)
    reach_mean, reach_most = ((magnitudes >= bound).sum() >= k for bound in (mean, most))
    low = torch.where(reach_mean, mean, torch.zeros_like(mean))
    high = torch.where(reach_mean, most, mean)
    bisect = _bisect_what_is_left if magnitudes.device.type == "cpu" else _bisect
    low, high = bisect(magnitudes, low, high, k, bisections)
    low = torch.where(reach_most, most, low)
    high = torch.where(reach_most, torch.full_like(most, torch.inf), high)
    reached = (magnitudes >= low).nonzero().squeeze(1)
    certain = magnitudes[reached] >= high
    chosen = certain | (~certain & ((~certain).cumsum(0) <= k - certain.sum()))
    indices = reached[chosen]
    return Selection(flat[indices], indices)


def _bisect(magnitudes: Tensor, low: Tensor, high: Tensor, k: int, bisections: int) -> tuple[Tensor, Tensor]:
    """Return closer thresholds, between which the k-th magnitude lies, without waiting for a device."""
    for _ in range(bisections):
        middle = low + (high - low) / 2
        enough = (magnitudes >= middle).sum() >= k
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low, high


def _bisect_what_is_left(
    magnitudes: Tensor, low: Tensor, high: Tensor, k: int, bisections: int
) -> tuple[Tensor, Tensor]:
    """Return the same thresholds; what lies outside of them is not counted again once it is most of the entries.

    Of a million and a half entries of a Gaussian, 1 % chosen, a selection takes a quarter of the time.
    """
    left, above = magnitudes, 0
    reach_low, reach_high = magnitudes.numel(), _count(magnitudes >= high)
    for _ in range(bisections):
        middle = low + (high - low) / 2
        count = above + _count(left >= middle)
        if count >= k:
            low, reach_low = middle, count
        else:
            high, reach_high = middle, count
        if _LEFT * (reach_low - reach_high) < left.numel():
            left, above = left[(left >= low) & (left < high)], reach_high
    return low, high


def _count(mask: Tensor) -> int:
    """Return how many are true, without the copy in int64 that torch sums."""
    return int(np.count_nonzero(mask.numpy()))


def _magnitudes(flat: Tensor, k: int) -> Tensor:
    """Return absolute values of what entries can be selected from.

    Raises:
        InputError: Nothing can, see ``select_exact``.
    """
    if flat.dim() != 1 or not flat.is_floating_point():
        shape = "x".join(map(str, flat.shape)) or "no dimension"
        raise InputError(f"entries are selected from a flat floating tensor, not from one of {flat.dtype} of {shape}")
    if not 0 <= k <= flat.numel():
        raise InputError(f"{k} entries cannot be selected from {flat.numel()}")
    magnitudes = flat.abs()
    # the maximum is NaN where any entry is
    if flat.numel() and not bool(torch.isfinite(magnitudes.max())):
        bad = int((~torch.isfinite(flat)).sum())
        raise InputError(
            f"{bad} of {flat.numel()} entries are NaN or infinite, so none is the largest; lower the learning rate or "
            "clip gradients, or skip the step as a gradient scaler does"
        )
    return magnitudes
