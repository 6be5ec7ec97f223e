r"""``adasum``: gradients of replicas that are orthogonal are added, those that are parallel averaged.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv 2006.02924; each parameter is
combined by itself, as there. What is combined is each replica's mean over its own samples: of M micro-batches, m of
them here, a buffer has 1/M of their sum, so that it is multiplied by M/m first (``contract.py``). Equal gradients then
stay what they are, which is the mean of the batch, and orthogonal ones of N replicas are N times the batch's mean::

    2 replicas of 3 and 1 micro-batches, gradients a a a and b     combined       mean of the batch
    a = b                                                          a              a
    a.b = 0                                                        a + b          (3 a + b) / 4

The rule gives replicas an equal say, whatever their shares: (a + b) / 2 of parallel ones. With weights of samples the
means are of the batch's weight over M, not of the replica's own: parallel ones have the weighted mean of the batch
where shares are equal.

Every rank gathers all gradients and combines them in one order (``algorithms/adasum.py``), also where replicas are no
power of two: the ones beyond it are folded into the first. So all have the same bits.

Left out: sparse gradients; recursive halving.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .algorithms.adasum import combine_all
from .capabilities import ADASUM, Capabilities
from .contract import Flat, Rule, Work


class Adasum(Rule):
    """Combines gradients by the angles between them."""

    can: ClassVar[Capabilities] = ADASUM

    _sent: Sequence[tuple[Flat, Work, list[Tensor]]] = ()

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Begin to gather; a combination of gradients is scaled as they are."""
        sent = []
        for flat in flats:
            mean = flat.tensor if self.shared.share == 1 else flat.tensor / self.shared.share
            message = mean.cpu().contiguous().view(torch.uint8)
            sent.append((flat, *self.shared.group.gather(message)))
        self._sent = sent

    def finish(self) -> None:
        """Combine what all have."""
        for flat, work, received in self._sent:
            work.wait()
            of_ranks = [message.view(flat.tensor.dtype).to(flat.tensor.device) for message in received]
            flat.tensor.copy_(combine_all(of_ranks, flat.sizes))
        self._sent = ()
