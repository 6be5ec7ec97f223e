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

Ranks combine pair by pair, each a part of the tensors (``vector_halving.py``), and all have the same bits; those beyond
a power of two are folded into the first.

``adasum(on=step)`` combines what the optimisers make of each replica's own mean: each steps by itself, and the moves of
the weights are combined. For plain SGD both are one. With momentum or Adam, whose state stays with its replica, what is
combined is what a replica would have stepped by.

Left out: sparse gradients, but in moves; beginning while the backward still runs.
"""

from collections.abc import Sequence
from typing import ClassVar

from .capabilities import ADASUM, ADASUM_OF_STEPS, Capabilities
from .contract import Flat, Rule, flats_of, put
from .vector_halving import combine_over


class Adasum(Rule):
    """Combines gradients by the angles between them."""

    can: ClassVar[Capabilities] = ADASUM

    _means: Sequence[Flat] = ()

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Make means over the samples of this rank of its gradients; a combination of scaled ones is scaled."""
        for flat in flats:
            flat.tensor.div_(self.shared.share)
        self._means = flats

    def finish(self) -> None:
        """Combine what all have."""
        for flat in self._means:
            combine_over(self.shared.group, self.shared.rank, flat.tensor, flat.sizes)
        self._means = ()


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
        for now, then in zip(flats_of(self.shared.parameters), before, strict=True):
            move = now.tensor.sub_(then.tensor)
            combine_over(self.shared.group, self.shared.rank, move, then.sizes)
            then.tensor.add_(move)
        put(self.shared.parameters, before)
