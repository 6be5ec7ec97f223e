"""Clip the gradients of the whole model by their norm, as one process would with ``clip_grad_norm_``.

Every parameter counts once, on the first of the ranks that hold it: replicas, and stages that share a tied weight, have
the same summed gradient. Two stages of 2 and 1 replicas that share a tensor ``e``::

    rank | stage | holds   | counts
    0    | 0     | w0, e   | |w0|^2, |e|^2
    1    | 0     | w0, e   |
    2    | 1     | w1, e   | |w1|^2

One all-reduce of float64 gives every rank the squares of all parameters, each in a place of its own. Adding zeros is
exact and ``math.fsum`` rounds once, so the norm depends neither on the order of ranks nor on where stages are cut: from
gradients of the same bits come the same bits under every layout.

Rows on parameter servers count too, table by table, with the gradients that the servers have summed and hold back; one
worker learns their squares and tells the servers what to multiply them by.
"""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError

from .world import make_group

_EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ has the same
# Elements that are squared in float64 at once: on a CPU they stay in its cache, on a GPU few calls are what counts.
_AT_ONCE, _AT_ONCE_ON_GPU = 2**16, 2**24


class ServedGradients(Protocol):
    """Gradients of this step that parameter servers hold back."""

    @property
    def places(self) -> int:
        """Return how many sums of squares there are."""
        ...

    def squares(self) -> list[float]:
        """Return them, once every worker has pushed."""
        ...

    def scale(self, factor: float) -> None:
        """Have the gradients applied, multiplied by a factor."""
        ...


class GradientClip:
    """Scales the gradients of a rank so that those of the whole model have a norm of at most ``max_norm``."""

    def __init__(
        self,
        max_norm: float,
        held: Iterable[nn.Parameter],
        counted: Iterable[nn.Parameter],
        pipeline: tuple[int, int],
        served: ServedGradients | None = None,
    ) -> None:
        """Agree with the others on whose numbers lie where; every rank of the pipeline does so.

        Args:
            max_norm: Above zero.
            held: The trained parameters of this rank.
            counted: Those of them that it counts.
            pipeline: How many ranks there are, and which one this is.
            served: Gradients on parameter servers, on the one rank that counts them.
        """
        ranks, rank = pipeline
        self._served = served
        self._max_norm = max_norm
        self._held = _each_once(held)
        self._counted = _each_once(counted)
        self._group = make_group(range(ranks)) if ranks > 1 else None
        counts = torch.zeros(ranks, dtype=torch.int64)
        counts[rank] = len(self._counted) + (0 if served is None else served.places)
        if self._group is not None:
            self._group.sum(counts).wait()
        self._first, self._size = int(counts[:rank].sum()), int(counts.sum())

    def measure(self) -> float:
        """Return the 2-norm over the summed gradients of the whole model; all ranks call it, and get the same."""
        squares = torch.zeros(self._size, dtype=torch.float64)
        sums = [_squares(parameter) for parameter in self._counted]
        found = iter(torch.stack(every).tolist() if (every := [part for parts in sums for part in parts]) else ())
        for place, parts in enumerate(sums, self._first):
            squares[place] = math.fsum(islice(found, len(parts)))
        if self._served is not None:
            first = self._first + len(self._counted)
            squares[first : first + self._served.places] = torch.tensor(self._served.squares(), dtype=torch.float64)
        if self._group is not None:
            self._group.sum(squares).wait()
        return math.sqrt(math.fsum(squares.tolist())) if bool(squares.isfinite().all()) else float(squares.sum())

    def clip(self, norm: float) -> None:
        """Scale the summed gradients of this rank; all ranks call it with the norm that they measured.

        Raises:
            RunError: where it is not finite; on every rank.
        """
        if not math.isfinite(norm):
            raise RunError(
                f"the norm of the gradients is {norm}; look at the data of that step, lower the learning rate, or go "
                f"on from an earlier checkpoint (--resume)"
            )
        factor = self._max_norm / (norm + _EPSILON)
        if self._served is not None:
            self._served.scale(min(factor, 1.0))
        if factor < 1:
            for parameter in self._held:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)


def _each_once(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for parameter in parameters}.values())


def _squares(parameter: nn.Parameter) -> list[Tensor]:
    """Return sums of squares of a parameter's gradient, part by part; rows of a sparse one are summed first."""
    if parameter.grad is None:
        return []
    if parameter.grad.is_sparse:
        parameter.grad = parameter.grad.coalesce()
    flat: Tensor = (parameter.grad.values() if parameter.grad.is_sparse else parameter.grad).detach().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    parts = torch.split(flat, _AT_ONCE if flat.device.type == "cpu" else _AT_ONCE_ON_GPU)
    return [part.double().square().sum() for part in parts]
