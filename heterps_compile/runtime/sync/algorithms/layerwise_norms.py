"""Norms of layers for LARS and LAMB, with the weights of each replica's shard alone.

Shi et al., MLSys 2021, arXiv 2010.10458 (parallel tensor operator): where replicas hold the same weights, each computes
norms of a part, and what they have is exchanged, a number a layer. The paper deals layers; here it is entries, as
layers differ in size by orders of magnitude: replica r of N has the r-th of N equal stretches of the flat tensors, sums
the squares of what each layer has in it, and these are added up over replicas::

    layers       | a      | b  | c             |
    replicas     | 0         | 1         | 2   |          a: 0;  b: 0 and 1;  c: 1 and 2

LARS (You et al., arXiv 1708.03888) takes the rate times ``trust |w| / (|g| + decay |w|)``, LAMB (arXiv 1904.00962)
times ``|w| / |u|`` of Adam's step u with decay in it; 1 where either norm is 0. Sums of squares are float64, so that
the result hangs on the number of replicas by the order of a sum alone.

Left out: the exchange and the optimisers (``runtime/layerwise.py``).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from heterps_compile.errors import InputError


def shard_bounds(length: int, replica: int, replicas: int) -> tuple[int, int]:
    """Return where a replica's stretch of a flat tensor begins and ends.

    Raises:
        InputError: There is no such replica.
    """
    if not 0 <= replica < replicas:
        raise InputError(f"there is no replica {replica} of {replicas}")
    return length * replica // replicas, length * (replica + 1) // replicas


def squares_of_shard(flat: Tensor, splits: Sequence[int], replica: int, replicas: int) -> Tensor:
    """Return the sum of squares of every layer's entries in a replica's stretch, float64, of shape (layers,).

    Args:
        flat: All layers one behind the other.
        splits: How many entries each has.
        replica: Which stretch, from 0.
        replicas: Of how many.

    Raises:
        InputError: The sizes do not add up, or there is no such replica.
    """
    if flat.dim() != 1 or sum(splits) != flat.numel() or min(splits, default=0) < 0:
        raise InputError(f"layers of {sum(splits)} entries in all do not split a tensor of {tuple(flat.shape)}")
    return squares_in_stretch(torch.split(flat, list(splits)), replica, replicas)


def squares_in_stretch(layers: Sequence[Tensor], replica: int, replicas: int) -> Tensor:
    """Return the sum of squares of every layer's entries in a replica's stretch of all of them, float64.

    Args:
        layers: Of any shapes, one behind the other.
        replica: Which stretch, from 0.
        replicas: Of how many.

    Raises:
        InputError: There is no such replica.
    """
    first, end = shard_bounds(sum(layer.numel() for layer in layers), replica, replicas)
    sums, begin = [], 0
    for layer in layers:
        part = layer.reshape(-1)[max(first - begin, 0) : max(end - begin, 0)]
        sums.append(part.double().square().sum())
        begin += layer.numel()
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.float64)


def lars_ratios(weight_squares: Tensor, gradient_squares: Tensor, trust: float = 0.001, decay: float = 0.0) -> Tensor:
    """Return what LARS multiplies each layer's rate by, of the summed squares of all replicas."""
    weights, gradients = weight_squares.sqrt(), gradient_squares.sqrt()
    whole = (weights > 0) & (gradients > 0)
    return torch.where(whole, trust * weights / torch.where(whole, gradients + decay * weights, 1.0), 1.0)


def lamb_ratios(weight_squares: Tensor, update_squares: Tensor) -> Tensor:
    """Return what LAMB multiplies each layer's update by, of the summed squares of all replicas."""
    weights, updates = weight_squares.sqrt(), update_squares.sqrt()
    whole = (weights > 0) & (updates > 0)
    return torch.where(whole, weights / torch.where(whole, updates, 1.0), 1.0)
