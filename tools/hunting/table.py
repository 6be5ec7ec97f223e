"""The table of operations, and what a row's drawing may ask of the values made so far."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Drawn = tuple[tuple[int, ...], dict[str, Any]]
"""Places of the values that a step reads, and its options."""


class UnfitError(Exception):
    """Nothing made so far fits what a row wants; another row is drawn."""


@dataclass(frozen=True)
class Op:
    """One row.

    Attributes:
        draw: Chooses values and options; raises :class:`UnfitError`.
        make: Gives what runs: a function, or an ``nn.Module`` where the step has tensors of its own. It takes the
            values of a first call, for their shapes, and the options.
        weight: How often it is drawn.
    """

    name: str
    draw: "Callable[[Draw], Drawn]"
    make: Callable[..., Callable[..., Any]]
    weight: float = 1.0


OPS: dict[str, Op] = {}


def op(
    name: str, draw: "Callable[[Draw], Drawn]", make: Callable[..., Callable[..., Any]], weight: float = 1.0
) -> None:
    """Put a row into the table."""
    OPS[name] = Op(name, draw, make, weight)


def function(run: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return the ``make`` of a step that has no tensors: ``run(*values, **options)``."""
    return lambda _values, **options: lambda *values: run(*values, **options)


class Draw:
    """The values made so far, and choices among them; later ones are chosen more often."""

    def __init__(self, rng: random.Random, values: Sequence[Any], given: int) -> None:
        self.rng, self.values, self.given = rng, values, given

    def one(self, fits: Callable[[Tensor], bool]) -> int:
        """Choose a tensor that fits.

        Raises:
            UnfitError: there is none.
        """
        places = [i for i, v in enumerate(self.values) if isinstance(v, Tensor) and fits(v)]
        if not places:
            raise UnfitError
        recent = places[-4:]
        return self.rng.choice(recent if self.rng.random() < 0.75 else places)

    def floating(self, *ranks: int) -> int:
        """Choose a floating tensor of one of these ranks; of any where none are given."""
        return self.one(lambda v: v.is_floating_point() and v.dim() in (ranks or range(1, 9)))

    def float32(self, *ranks: int) -> int:
        """Choose a float32 tensor of one of these ranks."""
        return self.one(lambda v: v.dtype == torch.float32 and v.dim() in (ranks or range(1, 9)))

    def whole(self) -> int:
        """Choose an integer tensor."""
        return self.one(lambda v: v.dtype == torch.int64)

    def like(self, place: int) -> int:
        """Choose a tensor of the same shape and dtype, another one where there is one."""
        wanted = self.values[place]
        fitting = [
            i
            for i, v in enumerate(self.values)
            if isinstance(v, Tensor) and v.shape == wanted.shape and v.dtype == wanted.dtype and i != place
        ]
        return self.rng.choice(fitting) if fitting else place

    def made(self, place: int) -> bool:
        """Say whether a value was made by a step, not given."""
        return place >= self.given

    def shape(self, place: int) -> tuple[int, ...]:
        return tuple(self.values[place].shape)

    def axis(self, place: int, first: int = 0) -> int:
        """Choose an axis from ``first`` on, sometimes counted from the end."""
        rank = len(self.shape(place))
        if rank <= first:
            raise UnfitError
        axis = self.rng.randrange(first, rank)
        return axis - rank if self.rng.random() < 0.3 else axis

    def choose(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance
