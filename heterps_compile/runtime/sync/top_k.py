r"""``topk``: of a rank's gradients the entries of largest magnitude alone are sent, the rest is kept for later steps.

Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters", MLSys 2021, arXiv
2010.10458. With g_r the gradient of rank r and e_r what it has not sent yet, ::

    a_r = g_r + e_r          sent_r = the k entries of a_r of largest magnitude          e_r <- a_r - sent_r
    every rank steps on      sum over r of sent_r

so that sent and kept are the accumulated gradient to the bit, and with k = n it is ``all-reduce``. The sum is over
ranks in their order, on each of them: replicas stay equal to the last bit. Values and indices travel in one message.

Where ranks share machines, and are on several, the sum of a machine is what entries are chosen of (``by_machine.py``):
each piece of it has one owner there, which selects its part of the k entries, gathers those of the owners on the other
machines, and spreads what they add up to inside. What a machine does not send stays with the owner of the piece, and is
added to that one's own gradient in the next step, wherever pieces lie by then.

Where all ranks are on one machine, and the plan counts with that, there is no other to select for: gradients are summed
whole, as the plan has them.

Where an entry is not finite there is no order among them: NaN is sent, so that every rank sees what a sum would have
shown, a step in float16 is skipped on all, and what was kept stays.

The selection by threshold is the paper's MSTopK: bisection between the mean and the maximum of the magnitudes, one pass
each instead of a sort. After it fewer than k entries are certain, and the lowest indices of the narrow band below fill
up; the paper takes random ones. Where fewer than k entries reach the mean, the bisection runs between 0 and the mean;
where k or more tie at the maximum, the lowest indices of them are taken.

Left out: sparse gradients, which are summed whole; how many entries a density is (``sync_rules/topk.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from heterps_compile.errors import InputError
from heterps_compile.sync_rules import topk as rule
from heterps_compile.sync_rules.rule import SyncRule

from .by_machine import deal_entries
from .capabilities import TOPK, Capabilities
from .collective import Work
from .contract import Flat, Shared
from .residuals import AddsResiduals

_LONGEST = 2**31 - 1
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
        """Return the bytes of values and int32 indices."""
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
    """Find the thresholds; skip entries outside of them.

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
    """Check a tensor and compute its magnitudes.

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


SELECTIONS = {"exact": select_exact, "threshold": select_threshold}


class TopK(AddsResiduals):
    """Sums the largest entries of every rank's gradients, or of every machine's."""

    can: ClassVar[Capabilities] = TOPK

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        assert isinstance(asked, rule.TopK)  # noqa: S101 - of that name
        super().__init__(shared, asked)
        self._asked, self._select = asked, SELECTIONS[asked.selection]
        self._sent: list[tuple[Flat, int, Work, list[Tensor]]] = []
        self._scattered: list[tuple[int, Flat, Work]] = []
        self._whole: list[Work] = []
        self._scale = 1.0

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Select what is sent, keep the rest, and begin to send; where ranks share machines, begin to sum inside."""
        self._scale = scale
        for place, flat in enumerate(flats):
            gradient = flat.tensor
            self.residuals.add_to(place, gradient, scale)
            if self.shared.is_one_machine:
                self.residuals.forget(place)
                self._whole.append(self.shared.group.sum(gradient))
                continue
            if self.shared.by_machine is not None:
                self._scattered.append((place, flat, self.shared.by_machine.scatter(gradient)))
                continue
            k = self._asked.kept(gradient.numel())
            chosen = self._choose(gradient, k)
            if chosen is not None:
                gradient[chosen.indices] = 0
                self._keep(place, gradient)
            work, received = self.shared.group.gather(packed(_or_nan(chosen, gradient, k), gradient.numel()))
            self._sent.append((flat, k, work, received))

    def finish(self) -> None:
        """Add up what all have sent."""
        for work in self._whole:
            work.wait()
        self._whole.clear()
        for place, flat, inside in self._scattered:
            inside.wait()
            self._sum_between(place, flat)
        self._scattered.clear()
        for flat, k, work, received in self._sent:
            work.wait()
            _add_up(flat.tensor, received, k, flat.tensor.numel())
        self._sent.clear()

    def _sum_between(self, place: int, flat: Flat) -> None:
        """Make of this rank's pieces of its machine's sum those of all machines, and spread them inside."""
        by_machine, gradient = self.shared.by_machine, flat.tensor
        assert by_machine is not None  # noqa: S101 - as is asked before
        length, pieces = gradient.numel(), by_machine.pieces(gradient.numel())
        kept = self._asked.kept_between(length, by_machine.most_pieces)
        counts = deal_entries(kept, [piece.size for piece in pieces])
        rest, sent, is_finite = torch.zeros_like(gradient), [], True
        for piece, k in zip(pieces, counts, strict=True):
            if self.shared.rank not in piece.owners:
                continue
            part = gradient[piece.begin : piece.end]
            chosen = self._choose(part, k)
            is_finite &= chosen is not None
            if chosen is not None:
                rest[piece.begin : piece.end] = part
                rest[piece.begin : piece.end][chosen.indices] = 0
            work, received = by_machine.owners(piece).gather(packed(_or_nan(chosen, part, k), length))
            sent.append((part, k, work, received))
        if is_finite:
            self._keep(place, rest)
        for part, k, work, received in sent:
            work.wait()
            _add_up(part, received, k, length)
        by_machine.spread(gradient).wait()

    def _choose(self, flat: Tensor, k: int) -> Selection | None:
        """Return what is sent of a tensor; None where there is no order among its entries."""
        return self._select(flat, k) if bool(flat.isfinite().all()) else None

    def _keep(self, place: int, rest: Tensor) -> None:
        if self._asked.feedback:
            self.residuals.keep(place, rest, self._scale)
        else:
            self.residuals.forget(place)


def _or_nan(chosen: Selection | None, flat: Tensor, k: int) -> Selection:
    """Return a selection, or as many NaN where there is none."""
    if chosen is not None:
        return chosen
    return Selection(torch.full_like(flat[:k], torch.nan), torch.arange(k, device=flat.device))


def _add_up(flat: Tensor, received: Sequence[Tensor], k: int, length: int) -> None:
    """Put the sum of what was received in a tensor's place."""
    flat.zero_()
    for message in received:
        chosen = unpacked(message, k, flat, length)
        flat.index_add_(0, chosen.indices, chosen.values)


def packed(chosen: Selection, length: int) -> Tensor:
    """Return entries as bytes: their values, then their indices; those of a piece are as long as the whole's are."""
    indices = chosen.indices.to(torch.int32 if length <= _LONGEST else torch.int64)
    return torch.cat([part.cpu().contiguous().view(torch.uint8) for part in (chosen.values, indices)])


def unpacked(message: Tensor, k: int, like: Tensor, length: int) -> Selection:
    """Unpack entries of a tensor like another."""
    size = k * like.element_size()
    kind = torch.int32 if length <= _LONGEST else torch.int64
    values, indices = message[:size].view(like.dtype), message[size:].clone().view(kind)
    return Selection(values.to(like.device), indices.long().to(like.device))
