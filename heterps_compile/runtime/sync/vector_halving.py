"""Combine the tensors of ranks pair by pair as adasum does, each rank a part of them: recursive vector halving.

Maleki et al., arXiv 2006.02924, algorithm 1. Four ranks, a tensor in quarters; what a rank has of whom::

    rank            0              1              2              3
    at first        0 : 1 2 3 4    1 : 1 2 3 4    2 : 1 2 3 4    3 : 1 2 3 4
    1 apart         01 : 1 2       01 : 3 4       23 : 1 2       23 : 3 4
    2 apart         0123 : 1       0123 : 3       0123 : 2       0123 : 4
    back            all have 1 2 3 4

In each level a rank gives half of its part away and combines the other half. The products by which two tensors are
scaled are sums over all ranks that hold parts of them: each pair of ranks 1, 2, 4, ... apart adds its own to the
other's, so that all have the same bits. Every entry is combined by one rank and passed on: results have the same bits
on all. Ranks beyond a power of two give the first ones all they have (``algorithms/adasum.py``: ``tree``).

Left out: what two tensors become (``algorithms/adasum.py``), counting (``sync_rules/adasum.py``).
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .algorithms.adasum import combine, products, scales
from .collective import Collective

_PRODUCTS = 3  # a.b, a.a, b.b


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
    """Send a tensor to a rank and return what it sends, of the form of another one; no message has no entries."""
    sent, arrived = given.cpu(), torch.empty(like.shape, dtype=like.dtype)
    works = [group.start_receive(arrived, other)] if arrived.numel() else []  # before: gloo then goes both ways at once
    works += [group.start_send(sent, other)] if sent.numel() else []
    for work in works:
        work.wait()
    return arrived.to(like.device)


def _layers(begin: int, end: int, splits: Sequence[int]) -> Iterator[tuple[int, slice]]:
    """Yield the layers that lie in a stretch of all of them, and where in it."""
    ends = list(accumulate(splits))
    for layer, (size, last) in enumerate(zip(splits, ends, strict=True)):
        first, after = max(last - size, begin), min(last, end)
        if first < after:
            yield layer, slice(first - begin, after - begin)


def _products(a: Tensor, b: Tensor, begin: int, splits: Sequence[int]) -> Tensor:
    """Return the products of every layer's entries in a stretch, 0 of those that have none there, on the CPU."""
    found = torch.zeros(len(splits), _PRODUCTS, dtype=torch.float64)
    for layer, part in _layers(begin, begin + a.numel(), splits):
        found[layer] = products(a[part], b[part]).cpu()
    return found
