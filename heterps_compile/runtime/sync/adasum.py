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

``adasum(on=step)`` combines what the optimisers make of each replica's own mean: each steps by itself, and the moves of
the weights are combined. For plain SGD both are one. With momentum or Adam, whose state stays with its replica, what is
combined is what a replica would have stepped by.

Left out: sparse gradients, but in moves; recursive halving.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from .algorithms.adasum import combine_all
from .capabilities import ADASUM, ADASUM_OF_STEPS, Capabilities
from .contract import Flat, Rule, Work, flats_of, put


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


class AdasumOfSteps(Rule):
    """Combines the steps that replicas make alone by the angles between them."""

    can: ClassVar[Capabilities] = ADASUM_OF_STEPS

    _before: Sequence[Flat] = ()

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Make means over the samples of this rank of its gradients; scaled ones stay scaled."""
        for flat in flats:
            flat.tensor.div_(self.shared.share)

    def before_step(self, step: int) -> None:
        """Keep the weights, which all replicas have in common."""
        self._before = flats_of(self.shared.parameters)

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Combine the moves of all replicas, parameter by parameter."""
        before, self._before = self._before, ()
        if is_skipped:
            return
        sent = []
        for now, then in zip(flats_of(self.shared.parameters), before, strict=True):
            move = (now.tensor - then.tensor).cpu().view(torch.uint8)
            sent.append((then, *self.shared.group.gather(move)))
        for then, work, received in sent:
            work.wait()
            moves = [message.view(then.tensor.dtype).to(then.tensor.device) for message in received]
            then.tensor.add_(combine_all(moves, then.sizes))
        put(self.shared.parameters, before)
