"""Synchronisation in the background: training goes on while replicas are pulled together.

Zheng et al., "ShadowSync: Performing Synchronization in the Background for Highly Scalable Distributed Training", arXiv
2003.03477, with its three rules: elastic averaging (EASGD, arXiv 1412.6651), model averaging and block momentum.
A background thread takes a snapshot, agrees with others on a target, and moves the present weights towards it.

The paper moves ``w <- (1 - pull) w + pull target`` and so takes back a part of the steps that were trained meanwhile.
Here ``w <- w + pull (target - snapshot)``: the same where nothing was trained meanwhile, and no step is lost.

Updates are functions of flat tensors and give new ones. Left out: the thread, and the lock between it and the
optimiser; ``shadow_clock.py`` says what is gained.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps_compile.errors import InputError


def pulled(present: Tensor, snapshot: Tensor, target: Tensor, pull: float) -> Tensor:
    """Return the present weights, moved by a part of the way from their snapshot to the target.

    Raises:
        InputError: The part is not above 0 and at most 1.
    """
    _check_pull(pull)
    return present + pull * (target - snapshot)


def elastic(local: Tensor, centre: Tensor, pull: float) -> tuple[Tensor, Tensor]:
    """EASGD: return a replica and the centre, each moved by a part of their difference to the other.

    Their sum stays what it is, up to rounding.

    Raises:
        InputError: The part is not above 0 and at most 1.
    """
    _check_pull(pull)
    difference = pull * (local - centre)
    return local - difference, centre + difference


def elastic_centre(centre: Tensor, mean: Tensor, replicas: int, pull: float) -> Tensor:
    """EASGD: return the centre after ``elastic`` with all replicas at once, of their mean alone.

    Every rank can keep the centre then: an all-reduce gives the mean.

    Raises:
        InputError: All replicas together would pull the centre beyond their mean, and it would oscillate.
    """
    _check_pull(pull)
    if pull * replicas > 1 + 1e-9:
        raise InputError(
            f"{replicas} replicas that pull a centre by {pull:g} each pull it beyond their mean; "
            f"take {1 / replicas:.3g} at most"
        )
    return centre + replicas * pull * (mean - centre)


@dataclass(frozen=True, slots=True)
class BlockMomentum:
    """BMUF: the global model, which goes on in the direction of the last blocks.

    Attributes:
        weights: The global model.
        velocity: Its last move.
    """

    weights: Tensor
    velocity: Tensor

    @classmethod
    def beginning(cls, weights: Tensor) -> "BlockMomentum":
        """Return the state before the first block."""
        return cls(weights.clone(), torch.zeros_like(weights))

    def after_block(self, mean: Tensor, momentum: float, rate: float = 1.0) -> "BlockMomentum":
        """Return the state after a block at whose end the replicas' mean was ``mean``.

        With momentum 0 and rate 1 the global model is the mean. Where every block moves the mean by d from the global
        model, the latter moves by ``rate d / (1 - momentum)`` in the end: with a momentum of ``1 - 1 / replicas``, the
        usual choice, by the sum of the replicas' moves.

        Raises:
            InputError: The momentum is not at least 0 and below 1, or the rate not above 0.
        """
        if not 0 <= momentum < 1 or not rate > 0:
            raise InputError(
                f"block momentum needs a momentum from 0 to below 1 and a rate above 0, not {momentum:g} and {rate:g}"
            )
        velocity = momentum * self.velocity + rate * (mean - self.weights)
        return BlockMomentum(self.weights + velocity, velocity)


def replica_gap(replicas: Sequence[Tensor]) -> float:
    """Return the root mean square distance of replicas from their mean, in parts of the mean's length.

    0 where all are equal; infinite where the mean is 0 and they are not.
    """
    stacked = torch.stack([replica.double() for replica in replicas])
    mean = stacked.mean(0)
    distance = (stacked - mean).square().sum(1).mean().sqrt()
    return float(distance / mean.norm()) if distance > 0 else 0.0


def _check_pull(pull: float) -> None:
    if not 0 < pull <= 1:
        raise InputError(f"replicas are pulled by a part above 0 and at most 1 of the way, not by {pull:g}")
