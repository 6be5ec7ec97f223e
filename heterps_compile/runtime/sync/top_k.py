r"""``topk``: of a rank's gradients the entries of largest magnitude alone are sent, the rest is kept for later steps.

Shi et al., "Towards Scalable Distributed Training of Deep Learning on Public Cloud Clusters", MLSys 2021, arXiv
2010.10458. With g_r the gradient of rank r and e_r what it has not sent yet, ::

    a_r = g_r + e_r          sent_r = the k entries of a_r of largest magnitude          e_r <- a_r - sent_r
    every rank steps on      sum over r of sent_r

so that sent and kept are the accumulated gradient to the bit, and with k = n it is ``all-reduce``. The sum is over
ranks in their order, on each of them: replicas stay equal to the last bit. Values and indices travel in one message.

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
from .capabilities import TOPK, Capabilities
from .contract import Flat, Shared, Work
from .residuals import AddsResiduals

SELECTIONS = {"exact": select_exact, "threshold": select_threshold}
_LONGEST = 2**31 - 1


class TopK(AddsResiduals):
    """Sums the largest entries of every rank's gradients."""

    can: ClassVar[Capabilities] = TOPK

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        assert isinstance(asked, rule.TopK)  # noqa: S101 - of that name
        super().__init__(shared, asked)
        self._asked, self._select = asked, SELECTIONS[asked.selection]
        self._sent: list[tuple[Flat, int, Work, list[Tensor]]] = []

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Select what is sent, keep the rest, and begin to send."""
        for place, flat in enumerate(flats):
            gradient = flat.tensor
            self.residuals.add_to(place, gradient, scale)
            k = self._asked.kept(gradient.numel())
            if bool(gradient.isfinite().all()):
                chosen = self._select(gradient, k)
                gradient[chosen.indices] = 0
                if self._asked.feedback:
                    self.residuals.keep(place, gradient, scale)
                else:
                    self.residuals.forget(place)
            else:
                indices = torch.arange(k, device=gradient.device)
                chosen = Selection(torch.full_like(gradient[:k], torch.nan), indices)
            work, received = self.shared.group.gather(packed(chosen, gradient.numel()))
            self._sent.append((flat, k, work, received))

    def finish(self) -> None:
        """Add up what all have sent."""
        for flat, k, work, received in self._sent:
            work.wait()
            flat.tensor.zero_()
            for message in received:
                chosen = unpacked(message, k, flat.tensor)
                flat.tensor.index_add_(0, chosen.indices, chosen.values)
        self._sent.clear()


def packed(chosen: Selection, length: int) -> Tensor:
    """Return entries as bytes: their values, then their indices."""
    indices = chosen.indices.to(torch.int32 if length <= _LONGEST else torch.int64)
    return torch.cat([part.cpu().contiguous().view(torch.uint8) for part in (chosen.values, indices)])


def unpacked(message: Tensor, k: int, like: Tensor) -> Selection:
    """Return what :func:`packed` made, of entries of a tensor like another."""
    size = k * like.element_size()
    kind = torch.int32 if like.numel() <= _LONGEST else torch.int64
    values, indices = message[:size].view(like.dtype), message[size:].clone().view(kind)
    return Selection(values.to(like.device), indices.long().to(like.device))
