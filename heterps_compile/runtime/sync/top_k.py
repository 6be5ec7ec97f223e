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

Left out: sparse gradients, which are summed whole; how many entries a density is (``sync_rules/topk.py``).
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from heterps_compile.sync_rules import topk as rule
from heterps_compile.sync_rules.rule import SyncRule

from .algorithms.top_k import Selection, select_exact, select_threshold
from .by_machine import deal_entries
from .capabilities import TOPK, Capabilities
from .collective import Work
from .contract import Flat, Shared
from .residuals import AddsResiduals

SELECTIONS = {"exact": select_exact, "threshold": select_threshold}
_LONGEST = 2**31 - 1


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
    """Return what :func:`packed` made, of entries of a tensor like another."""
    size = k * like.element_size()
    kind = torch.int32 if length <= _LONGEST else torch.int64
    values, indices = message[:size].view(like.dtype), message[size:].clone().view(kind)
    return Selection(values.to(like.device), indices.long().to(like.device))
