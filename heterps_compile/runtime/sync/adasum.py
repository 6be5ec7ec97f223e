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

Two tensors become ``a (+) b = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b``, with products in float64: a float32 sum
of squares loses the coefficients of long vectors. The operation is symmetric and not associative.

Ranks combine pair by pair, each a part of the tensors (recursive vector halving, algorithm 1 of the paper). Four ranks,
a tensor in quarters; the parts that a rank has, and of whom::

    rank            0              1              2              3
    at first        0 : 1 2 3 4    1 : 1 2 3 4    2 : 1 2 3 4    3 : 1 2 3 4
    1 apart         01 : 1 2       01 : 3 4       23 : 1 2       23 : 3 4
    2 apart         0123 : 1       0123 : 3       0123 : 2       0123 : 4
    back            all have 1 2 3 4

The products by which two tensors are scaled are sums over all ranks that hold parts of them: each pair of ranks 1, 2,
4, ... apart adds its own to the other's. Every entry is combined by one rank and passed on: results have the same bits
on all. Ranks beyond a power of two are folded into the first ones, to which they send all they have.

``adasum(on=step)`` combines what the optimisers make of each replica's own mean: each steps by itself, and the moves of
the weights are combined. For plain SGD both are one. With momentum or Adam, whose state stays with its replica, what is
combined is what a replica would have stepped by.

Left out: sparse gradients, but in moves; beginning while the backward still runs.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from heterps_compile.errors import InputError

from .capabilities import ADASUM, ADASUM_OF_STEPS, Capabilities
from .collective import Collective
from .contract import Flat, Rule, flats_of, put

_PRODUCTS = 3  # a.b, a.a, b.b


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


def scales(dot: Tensor, a_squared: Tensor, b_squared: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the factors of two vectors from their products.

    A vector of zeros has the product 0.

    For vectors that lie in parts on several ranks: the three products are summed over the ranks first.
    """
    zero, one = torch.zeros_like(dot), torch.ones_like(dot)
    of_a = one - torch.where(a_squared > 0, dot / torch.where(a_squared > 0, 2 * a_squared, one), zero)
    of_b = one - torch.where(b_squared > 0, dot / torch.where(b_squared > 0, 2 * b_squared, one), zero)
    return of_a, of_b


def products(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a.b``, ``a.a`` and ``b.b`` as one float64 tensor of shape (3,)."""
    a, b = a.double(), b.double()
    return torch.stack([torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)])


def combine(a: Tensor, b: Tensor, splits: Sequence[int] | None = None) -> Tensor:
    """Return the adaptive sum of two flat tensors.

    Args:
        a: Flat, floating.
        b: Of the same shape and dtype.
        splits: Sizes of the layers' tensors in order, each of which is combined on its own;
            by default all is one vector.

    Raises:
        InputError: Shapes or dtypes differ, or the sizes do not add up.
    """
    if a.dim() != 1 or a.shape != b.shape or a.dtype != b.dtype:
        raise InputError(
            "adasum combines flat tensors of one shape and dtype, not "
            f"{a.dtype} of {tuple(a.shape)} with {b.dtype} of {tuple(b.shape)}"
        )
    if splits is None:
        of_a, of_b = scales(*products(a, b))
        return of_a.to(a.dtype) * a + of_b.to(a.dtype) * b
    if sum(splits) != a.numel() or min(splits, default=0) < 0:
        raise InputError(f"layers of {sum(splits)} entries in all do not split a tensor of {a.numel()}")
    parts = zip(torch.split(a, list(splits)), torch.split(b, list(splits)), strict=True)
    return torch.cat([combine(*part) for part in parts]) if splits else a.clone()


def combine_over(group: Collective, rank: int, flat: Tensor, splits: Sequence[int]) -> None:
    """Make a rank's tensor the adaptive sum of those of all ranks, in place; each of them calls it.

    Args:
        group: The ranks.
        rank: This one.
        flat: One-dimensional and floating, of one length and dtype on all.
        splits: Sizes of the layers' tensors in order, each of which is combined on its own.
    """
    count, place = len(group.ranks), group.ranks.index(rank)
    power = 1 << (count.bit_length() - 1)
    if place >= power:
        _exchange(group, group.ranks[place - power], flat, flat[:0])
        flat.copy_(_exchange(group, group.ranks[place - power], flat[:0], flat))
        return
    folded = place + power < count
    if folded:
        other = _exchange(group, group.ranks[place + power], flat[:0], flat)
        flat.copy_(combine(flat, other, splits))
    begin, end, distance = 0, flat.numel(), 1
    parts = []
    while distance < power:
        neighbour = group.ranks[place ^ distance]
        middle = begin + (end - begin) // 2
        is_first = not place & distance
        kept, given = ((begin, middle), (middle, end)) if is_first else ((middle, end), (begin, middle))
        parts.append((neighbour, kept, given))
        begin, end = kept
        mine = flat[begin:end]
        theirs = _exchange(group, neighbour, flat[slice(*given)], mine)
        a, b = (mine, theirs) if is_first else (theirs, mine)
        sums = _products(a, b, begin, splits)
        for apart in _doubling(distance):
            sums += _exchange(group, group.ranks[place ^ apart], sums, sums)
        of_a, of_b = scales(*sums.to(flat.device).unbind(1))
        for layer, part in _layers(begin, end, splits):
            mine[part] = of_a[layer].to(flat.dtype) * a[part] + of_b[layer].to(flat.dtype) * b[part]
        distance *= 2
    for neighbour, kept, given in reversed(parts):
        flat[slice(*given)] = _exchange(group, neighbour, flat[slice(*kept)], flat[slice(*given)])
    if folded:
        _exchange(group, group.ranks[place + power], flat, flat[:0])


def _doubling(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 and so on up to a power of two."""
    apart = 1
    while apart <= most:
        yield apart
        apart *= 2


def _exchange(group: Collective, other: int, given: Tensor, like: Tensor) -> Tensor:
    """Exchange tensors with a rank; empty ones send no message."""
    sent, arrived = given.cpu(), torch.empty(like.shape, dtype=like.dtype)
    works = [group.start_receive(arrived, other)] if arrived.numel() else []  # before: gloo then goes both ways at once
    works += [group.start_send(sent, other)] if sent.numel() else []
    for work in works:
        work.wait()
    return arrived.to(like.device)


def _layers(begin: int, end: int, splits: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield the layers of a stretch and their slices."""
    ends = list(accumulate(splits))
    for layer, (size, last) in enumerate(zip(splits, ends, strict=True)):
        first, after = max(last - size, begin), min(last, end)
        if first < after:
            yield layer, slice(first - begin, after - begin)


def _products(a: Tensor, b: Tensor, begin: int, splits: Sequence[int]) -> Tensor:
    """Compute the products of every layer's entries in a stretch."""
    found = torch.zeros(len(splits), _PRODUCTS, dtype=torch.float64)
    for layer, part in _layers(begin, begin + a.numel(), splits):
        found[layer] = products(a[part], b[part]).cpu()
    return found
