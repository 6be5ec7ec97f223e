"""Synchronisation rules on a list of flat tensors: the oracles of tests that run them on ranks."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heterps_compile.runtime.sync.adasum import combine
from heterps_compile.runtime.sync.top_k import Selection

Select = Callable[[Tensor, int], Selection]


def send_with_feedback(gradient: Tensor, residual: Tensor | None, k: int, select: Select) -> tuple[Selection, Tensor]:
    """Select k entries of gradient plus residual; neither is changed.

    Args:
        gradient: Flat.
        residual: What the last step left, or None on the first.
        k: How many entries are sent.
        select: How they are chosen.
    """
    whole = gradient.clone() if residual is None else gradient + residual
    selection = select(whole, k)
    whole[selection.indices] = 0
    return selection, whole


def tree(replicas: int) -> list[list[tuple[int, int]]]:
    """Return which replica takes which other one in, level by level; the last level leaves replica 0 with all."""
    power = 1 << (replicas.bit_length() - 1)
    levels = [[(i, power + i) for i in range(replicas - power)]] if replicas > power else []
    distance = 1
    while distance < power:
        levels.append([(i, i + distance) for i in range(0, power, 2 * distance)])
        distance *= 2
    return levels


def combine_all(tensors: Sequence[Tensor], splits: Sequence[int] | None = None) -> Tensor:
    """Return the adaptive sum of the replicas' tensors, in the order of the replicas."""
    nodes = list(tensors)
    for level in tree(len(nodes)):
        for into, other in level:
            nodes[into] = combine(nodes[into], nodes[other], splits)
    return nodes[0].clone() if len(nodes) == 1 else nodes[0]


def replica_gap(replicas: Sequence[Tensor]) -> float:
    """Return the root mean square distance of replicas from their mean, in parts of the mean's length.

    0 where all are equal; infinite where the mean is 0 and they are not.
    """
    stacked = torch.stack([replica.double() for replica in replicas])
    mean = stacked.mean(0)
    distance = (stacked - mean).square().sum(1).mean().sqrt()
    return float(distance / mean.norm()) if distance > 0 else 0.0


def steady_models(centres: Tensor, contraction: float) -> Tensor:
    """Return the chain's model after each block, once cycles repeat themselves.

    On quadratics ``|x - c_m|^2 / 2`` this is ``(1 - q) x sum over j of q^j c_(m-j) / (1 - q^M)``, j from 0 to M - 1.

    Args:
        centres: The minimum of every block's quadratic, shape (M, dimensions).
        contraction: q of a block, at least 0 and below 1.
    """
    blocks = centres.shape[0]
    powers = contraction ** torch.arange(blocks, dtype=centres.dtype)
    weights = (1 - contraction) * powers / (1 - contraction**blocks)
    # row m has the centres m, m - 1, ... of the cycle
    before = (torch.arange(blocks)[:, None] - torch.arange(blocks)) % blocks
    return torch.einsum("j,mjd->md", weights.to(centres.device), centres[before])
