"""Local steps, then averaging; and a predictor a block where the data come in a cycle of blocks.

Ding et al., "Distributed Optimization over Block-Cyclic Data", arXiv 2002.07454. A day's data come by night, morning
and so on; one model that is averaged over local steps follows the block it has just seen::

    block    1    2    3    1    2    3    1 ...            M = 3 blocks a cycle
    chain    x -> x -> x -> x -> x -> x -> x                averaged over the clients every ``steps`` steps
    MM-PSGD  p1   p2   p3   p1   p2   p3   p1               p_m: the mean of the chain's models after rounds in block m
    MC-PSGD  y1   y2   y3   y1   y2   y3   y1               besides, a chain a block that sees nothing else;
                                                            p_m takes the one of x and y_m with the lower loss

On quadratics ``|x - c_m|^2 / 2`` a block that contracts by q (``x <- c_m + q (x - c_m)``) gives, in the steady state,
``x_m = (1 - q) x sum over j of q^j c_(m-j) / (1 - q^M)``, j from 0 to M - 1: ``steady_models``.

Left out: how clients' data are dealt; steps themselves, which are the optimiser's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heterps_compile.errors import InputError


def average(models: Sequence[Tensor]) -> Tensor:
    """Return the mean of the clients' flat models, in the order of the clients.

    Raises:
        InputError: There is none.
    """
    if not models:
        raise InputError("no client has a model to average; one is needed at least")
    return torch.stack(list(models)).mean(0)


def mean_with(mean: Tensor, seen: int, model: Tensor) -> Tensor:
    """Return the mean of so many models with one more."""
    return mean + (model - mean) / (seen + 1)


@dataclass(slots=True)
class BlockPredictors:
    """MM-PSGD: for every block the running mean of the global models at the ends of its rounds.

    Attributes:
        models: By block.
        rounds: How many rounds each is the mean of.
    """

    models: dict[int, Tensor] = field(default_factory=dict)
    rounds: dict[int, int] = field(default_factory=dict)

    def take(self, block: int, model: Tensor) -> None:
        """Take the global model in at the end of a round in a block."""
        seen = self.rounds.get(block, 0)
        if seen:
            self.models[block] = mean_with(self.models[block], seen, model)
        else:
            self.models[block] = model.clone()
        self.rounds[block] = seen + 1

    def take_better(self, block: int, mixed: tuple[Tensor, float], separate: tuple[Tensor, float]) -> bool:
        """MC-PSGD: take in the model with the lower loss, of ``(model, loss)`` of both chains.

        Returns:
            Whether it was the one of the chain that sees the block alone; on a tie it is the mixed one.
        """
        chosen = separate[1] < mixed[1]
        self.take(block, (separate if chosen else mixed)[0])
        return chosen

    def of(self, block: int) -> Tensor:
        """Return a block's predictor.

        Raises:
            InputError: No round of the block has ended yet.
        """
        if block not in self.models:
            seen = ", ".join(map(str, sorted(self.models))) or "none"
            raise InputError(f"block {block} has no predictor yet: no round of it has ended (blocks with one: {seen})")
        return self.models[block]


def steady_models(centres: Tensor, contraction: float) -> Tensor:
    """Return the chain's model after each block, once cycles repeat themselves.

    Args:
        centres: The minimum of every block's quadratic, shape (M, dimensions).
        contraction: q of a block, at least 0 and below 1.

    Raises:
        InputError: The contraction is none.
    """
    if not 0 <= contraction < 1:
        raise InputError(f"a chain settles where a block contracts by 0 to below 1, not by {contraction:g}")
    blocks = centres.shape[0]
    powers = contraction ** torch.arange(blocks, dtype=centres.dtype)
    weights = (1 - contraction) * powers / (1 - contraction**blocks)
    # row m has the centres m, m - 1, ... of the cycle
    before = (torch.arange(blocks)[:, None] - torch.arange(blocks)) % blocks
    return torch.einsum("j,mjd->md", weights.to(centres.device), centres[before])


def block_loss(models: Tensor, centres: Tensor) -> float:
    """Return the mean over blocks of ``|x - c_m|^2 / 2``, of one model a block (M, d) or one for all (d)."""
    return float((models - centres).square().sum(-1).mean() / 2)
