r"""Adasum: orthogonal gradients are added, parallel ones averaged.

Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021, arXiv 2006.02924::

    a (+) b  =  (1 - a.b / (2 a.a)) a  +  (1 - a.b / (2 b.b)) b

Each one is shortened by half of its projection on the other. Many are combined in a binary tree::

    g0 g1 g2 g3 g4 g5          6 replicas: the last 2 are folded into the first 2
     \__________/  |            g0 (+) g4,  g1 (+) g5,  g2,  g3
        \__________/           then a tree over 4

The paper combines powers of two alone. Here the replicas beyond the largest power of two are folded into the first ones
beforehand, as recursive doubling does it. Orthogonal ones are still added and equal ones averaged; on noisy ones
``expected_projection`` has what the lighter branches cost. The operation is symmetric and not associative: the
order of the replicas is part of the result.

Of gradients ``mu + noise`` with ``rho = mu.mu / E noise.noise`` and noise in many dimensions, a node of signal ``s``
combined with its equal has the projection on mu times ``(s + 2) / (s + 1)`` and the signal ``2 s``. The product over
the levels of a tree telescopes::

    projection of N  =  N (2 + rho) / (2 + N rho)              N: rho = 0 adds, rho -> infinity averages

Sums of products are float64, as a float32 sum of squares loses the coefficients of long vectors. Left out: who sends
what to whom.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.errors import InputError


def scales(dot: Tensor, a_squared: Tensor, b_squared: Tensor) -> tuple[Tensor, Tensor]:
    """Return what two vectors are multiplied by before they are added, of their products; a vector of zeros counts 0.

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


def tree(replicas: int) -> list[list[tuple[int, int]]]:
    """Return which replica takes which other one in, level by level; the last level leaves replica 0 with all.

    Raises:
        InputError: There is no replica.
    """
    if replicas < 1:
        raise InputError(f"adasum combines one replica or more, not {replicas}")
    power = 1 << (replicas.bit_length() - 1)
    levels = [[(i, power + i) for i in range(replicas - power)]] if replicas > power else []
    distance = 1
    while distance < power:
        levels.append([(i, i + distance) for i in range(0, power, 2 * distance)])
        distance *= 2
    return levels


def combine_all(tensors: Sequence[Tensor], splits: Sequence[int] | None = None) -> Tensor:
    """Return the adaptive sum of the replicas' tensors, in the order of the replicas.

    Raises:
        InputError: There is none, or they do not fit each other (``combine``).
    """
    nodes = list(tensors)
    for level in tree(len(nodes)):
        for into, other in level:
            nodes[into] = combine(nodes[into], nodes[other], splits)
    return nodes[0].clone() if len(nodes) == 1 else nodes[0]


@dataclass(frozen=True, slots=True)
class _Node:
    """A partial result ``p mu + noise``: the projection p, and the noise's square over that of mu."""

    projection: float
    noise: float

    def combined(self, other: "_Node") -> "_Node":
        dot = self.projection * other.projection
        mine = 1 - dot / (2 * (self.projection**2 + self.noise))
        theirs = 1 - dot / (2 * (other.projection**2 + other.noise))
        return _Node(mine * self.projection + theirs * other.projection, mine**2 * self.noise + theirs**2 * other.noise)


def expected_projection(signal: float, replicas: int) -> float:
    """Return the projection on mu of the adaptive sum of noisy gradients, for any number of replicas.

    Args:
        signal: ``mu.mu`` over the mean of ``noise.noise``, above 0.
        replicas: N. For powers of two the result is ``N (2 + signal) / (2 + N signal)``.
    """
    nodes = [_Node(1.0, 1 / signal)] * replicas
    for level in tree(replicas):
        for into, other in level:
            nodes[into] = nodes[into].combined(nodes[other])
    return nodes[0].projection
