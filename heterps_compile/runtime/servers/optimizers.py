"""Optimisers that change only the rows that a step has touched.

Each takes rows in compact arrays, duplicates summed, and changes them in place. Adam is the lazy kind, as
``torch.optim.SparseAdam``: moments of a row stand still while no step touches it; bias is corrected by the number of
steps of the whole table. Momentum likewise: the velocity of an untouched row neither decays nor moves it.

Weight decay is the L2 term of torch's SGD, Adagrad and Adam, ``g + weight_decay * w``, of touched rows alone: a row
that no step touches does not decay. The learning rate comes with every update, since a schedule may change it.

Left out: decoupled weight decay, as of AdamW.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heterps_compile.errors import RunError, UnknownNameError

Floats = NDArray[np.float32]


class SparseOptimizer(Protocol):
    """Changes rows by their gradients."""

    @property
    def name(self) -> str:
        """Return the name it goes by in options and checkpoints."""
        ...

    @property
    def states(self) -> int:
        """Return how many numbers it keeps for every weight."""
        ...

    @property
    def initial(self) -> float:
        """Return what those numbers are before a row's first gradient."""
        ...

    @property
    def lr(self) -> float:
        """Return the learning rate without a schedule."""
        ...

    @property
    def weight_decay(self) -> float:
        """Return what of a weight is added to its gradient."""
        ...

    def update(self, weights: Floats, state: Floats, gradients: Floats, step: int, lr: float) -> None:
        """Change rows in place.

        Args:
            weights: [n, width].
            state: [n, states * width].
            gradients: [n, width], summed over all that touched the row in this step.
            step: How many updates the table has had, this one included; counts from 1.
            lr: The learning rate of this update.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sgd:
    """w -= lr * g; with momentum m: v = m v + g, w -= lr * v."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, momentum=self.momentum)

    @property
    def name(self) -> str:
        """Return ``"sgd"``."""
        return "sgd"

    @property
    def states(self) -> int:
        """Return 1 for the velocity, 0 without momentum."""
        return 1 if self.momentum else 0

    @property
    def initial(self) -> float:
        """Return 0."""
        return 0.0

    def update(self, weights: Floats, state: Floats, gradients: Floats, step: int, lr: float) -> None:
        """Change rows in place."""
        gradients = _with_decay(gradients, weights, self.weight_decay)
        if self.momentum:
            state *= self.momentum
            state += gradients
            weights -= lr * state
        else:
            weights -= lr * gradients


@dataclass(frozen=True, slots=True)
class Adagrad:
    """s += g^2, w -= lr * g / (sqrt(s) + eps) (Duchi et al., JMLR 2011), as ``torch.optim.Adagrad``."""

    lr: float
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, eps=self.eps)

    @property
    def name(self) -> str:
        """Return ``"adagrad"``."""
        return "adagrad"

    @property
    def states(self) -> int:
        """Return 1: the sum of squares."""
        return 1

    @property
    def initial(self) -> float:
        """Return what the sum of squares starts from."""
        return self.initial_accumulator

    def update(self, weights: Floats, state: Floats, gradients: Floats, step: int, lr: float) -> None:
        """Change rows in place."""
        gradients = _with_decay(gradients, weights, self.weight_decay)
        state += gradients * gradients
        scale = np.sqrt(state)
        scale += self.eps
        np.divide(gradients, scale, out=scale)
        scale *= lr
        weights -= scale


@dataclass(frozen=True, slots=True)
class Adam:
    """Lazy Adam (Kingma & Ba, ICLR 2015), as ``torch.optim.SparseAdam``; the state is both its moments."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _check(self.lr, self.weight_decay, beta1=self.beta1, beta2=self.beta2, eps=self.eps)

    @property
    def name(self) -> str:
        """Return ``"adam"``."""
        return "adam"

    @property
    def states(self) -> int:
        """Return 2."""
        return 2

    @property
    def initial(self) -> float:
        """Return 0."""
        return 0.0

    def update(self, weights: Floats, state: Floats, gradients: Floats, step: int, lr: float) -> None:
        """Change rows in place."""
        gradients = _with_decay(gradients, weights, self.weight_decay)
        width = weights.shape[1]
        first, second = state[:, :width], state[:, width:]
        first += (1 - self.beta1) * (gradients - first)
        second += (1 - self.beta2) * (gradients * gradients - second)
        scale = np.sqrt(second)
        scale += self.eps
        np.divide(first, scale, out=scale)
        scale *= lr * math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step)
        weights -= scale


OPTIMIZERS: dict[str, type[Sgd] | type[Adagrad] | type[Adam]] = {"sgd": Sgd, "adagrad": Adagrad, "adam": Adam}


def sparse_optimizer(name: str, lr: float, weight_decay: float = 0.0) -> SparseOptimizer:
    """Return the optimiser of that name with its other numbers as they are by default.

    Raises:
        UnknownNameError: where there is none of that name.
        RunError: where the learning rate is not above 0, or the weight decay below it.
    """
    if name not in OPTIMIZERS:
        raise UnknownNameError("optimiser of parameter servers", name, OPTIMIZERS)
    return OPTIMIZERS[name](lr, weight_decay=weight_decay)


def _with_decay(gradients: Floats, weights: Floats, weight_decay: float) -> Floats:
    if not weight_decay:
        return gradients
    decay = weights * np.float32(weight_decay)
    decay += gradients
    return decay


def _check(lr: float, weight_decay: float, **numbers: float) -> None:
    if not (math.isfinite(lr) and lr > 0):
        raise RunError(f"the learning rate of the parameter servers is {lr:g}; it must be above 0")
    if not (math.isfinite(weight_decay) and weight_decay >= 0):
        raise RunError(f"the weight decay of the parameter servers is {weight_decay:g}; it must be 0 or more")
    for name, number in numbers.items():
        if not 0 <= number < 1:
            raise RunError(f"{name} of the parameter servers' optimiser is {number:g}; it must be in [0, 1)")
