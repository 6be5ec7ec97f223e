"""LARS and LAMB for training files: every layer's rate follows from norms, which the replicas of a stage share out.

::

    from heterps_compile.runtime.layerwise import Lamb

    def optimizer(parameters):
        return Lamb([parameter for _, parameter in parameters], lr=2e-3)

Replicas that take the same steps hold the same weights and gradients, so each sums the squares of its stretch of them
alone, and one all-reduce of two float64 a layer brings all sums to all (Shi et al., MLSys 2021, arXiv 2010.10458): 2
(k - 1) 16 T bytes of T layers in a step, over k replicas. Where there is one process, or replicas step alone, every
rank has whole norms. Replica r of N sums the r-th of N equal stretches of the flat tensors, as layers differ in size::

    layers       | a      | b  | c             |
    replicas     | 0         | 1         | 2   |          a: 0;  b: 0 and 1;  c: 1 and 2

A layer is a parameter; parameter groups with ``adapts=False`` (biases, norms) take the rate as it is.

Left out: sparse gradients, which are refused.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from heterps_compile.errors import InputError, RunError

from .sync.contract import Shared


@dataclass(frozen=True, slots=True)
class _Layer:
    """A parameter, what its group says, and the tensor whose norm counts beside that of the weights."""

    parameter: nn.Parameter
    group: dict[str, Any]
    beside: Tensor


class Layerwise(Optimizer):
    """An optimiser whose rates follow from norms of layers."""

    def __init__(self, parameters: Iterable[Any], options: dict[str, Any]) -> None:
        """Begin with whole norms.

        Args:
            parameters: Or parameter groups.
            options: Of groups that do not say otherwise.
        """
        self._shared: list[Shared] = []
        super().__init__(parameters, options)

    def split_norms(self, shared: Sequence[Shared]) -> None:
        """Share norms out among ranks that hold the same parameters and step them alike; each of them calls it.

        Args:
            shared: Parameters and the ranks that hold them, in one order on all; others have whole norms.
        """
        self._shared = list(shared)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take a step.

        Args:
            closure: Computes the loss again, as for any optimiser.

        Raises:
            RunError: for a sparse gradient.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        layers = {id(layer.parameter): layer for layer in self._layers()}
        norms: dict[int, tuple[Tensor, Tensor]] = {}
        for shared in self._shared:
            held = [layers[id(p)] for p in shared.parameters.values() if id(p) in layers]
            norms |= _squares(held, shared)
        norms |= _squares([layer for key, layer in layers.items() if key not in norms], None)
        for key, layer in layers.items():
            self._update(layer, *norms[key])
        return loss

    def _layers(self) -> Iterator[_Layer]:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise RunError(
                        f"{type(self).__name__} takes norms of dense gradients, and a parameter of "
                        f"{'x'.join(map(str, parameter.shape))} has a sparse one; make its embedding dense "
                        f"(sparse=False), or give it an optimiser that takes it"
                    )
                yield _Layer(parameter, group, self._beside(parameter, group))

    def _beside(self, parameter: nn.Parameter, group: dict[str, Any]) -> Tensor:
        """Return what is measured beside the weights."""
        raise NotImplementedError

    def _update(self, layer: _Layer, weights: Tensor, beside: Tensor) -> None:
        """Step a layer whose summed squares are known."""
        raise NotImplementedError


def _squares(layers: Sequence[_Layer], shared: Shared | None) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the summed squares of layers by parameter, each rank's part of them added up."""
    if not layers:
        return {}
    place, count = (0, 1) if shared is None else (shared.place, shared.count)
    of_weights = squares_in_stretch([layer.parameter for layer in layers], place, count)
    of_beside = squares_in_stretch([layer.beside for layer in layers], place, count)
    both = torch.cat([of_weights, of_beside])
    if shared is not None:
        shared.group.sum(both).wait()
    of_weights, of_beside = torch.split(both, len(layers))
    pairs = zip(of_weights, of_beside, strict=True)
    return {id(layer.parameter): pair for layer, pair in zip(layers, pairs, strict=True)}


def squares_in_stretch(layers: Sequence[Tensor], replica: int, replicas: int) -> Tensor:
    """Return the sum of squares of every layer's entries in a replica's stretch of all of them, float64.

    Args:
        layers: Of any shapes, one behind the other.
        replica: Which stretch, from 0.
        replicas: Of how many.
    """
    length = sum(layer.numel() for layer in layers)
    first, end = length * replica // replicas, length * (replica + 1) // replicas
    sums, begin = [], 0
    for layer in layers:
        part = layer.reshape(-1)[max(first - begin, 0) : max(end - begin, 0)]
        sums.append(part.double().square().sum())
        begin += layer.numel()
    return torch.stack(sums) if sums else torch.zeros(0, dtype=torch.float64)


def lars_ratios(weight_squares: Tensor, gradient_squares: Tensor, trust: float = 0.001, decay: float = 0.0) -> Tensor:
    """Compute LARS factors of rates from summed squares."""
    weights, gradients = weight_squares.sqrt(), gradient_squares.sqrt()
    whole = (weights > 0) & (gradients > 0)
    return torch.where(whole, trust * weights / torch.where(whole, gradients + decay * weights, 1.0), 1.0)


def lamb_ratios(weight_squares: Tensor, update_squares: Tensor) -> Tensor:
    """Compute LAMB factors of updates from summed squares."""
    weights, updates = weight_squares.sqrt(), update_squares.sqrt()
    whole = (weights > 0) & (updates > 0)
    return torch.where(whole, weights / torch.where(whole, updates, 1.0), 1.0)


class Lars(Layerwise):
    """SGD with momentum, the rate of a layer times ``trust |w| / (|g| + decay |w|)`` (You et al., arXiv 1708.03888)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        adapts: bool = True,
    ) -> None:
        """Take parameters, or groups of them.

        Args:
            params: What it steps.
            lr: Rate.
            momentum: Of steps.
            weight_decay: Added to gradients, times the weights.
            trust: How long a step is, of the weights' length.
            adapts: Whether norms count.

        Raises:
            InputError: where a number is none that it can have.
        """
        _refuse(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "adapts": adapts}
        super().__init__(params, options)

    def _beside(self, parameter: nn.Parameter, group: dict[str, Any]) -> Tensor:
        assert parameter.grad is not None  # noqa: S101 - of a layer
        return parameter.grad

    def _update(self, layer: _Layer, weights: Tensor, beside: Tensor) -> None:
        parameter, group = layer.parameter, layer.group
        step = layer.beside.add(parameter, alpha=group["weight_decay"])
        ratio = float(lars_ratios(weights, beside, group["trust"], group["weight_decay"])) if group["adapts"] else 1.0
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        moved = state["momentum_buffer"].mul_(group["momentum"]).add_(step, alpha=group["lr"] * ratio)
        parameter.sub_(moved)


class Lamb(Layerwise):
    """Adam with decoupled decay, the step u of a layer times ``|w| / |u|`` (You et al., arXiv 1904.00962)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        adapts: bool = True,
    ) -> None:
        """Take parameters, or groups of them.

        Args:
            params: What it steps.
            lr: Rate.
            betas: Of the means of gradients and of their squares.
            eps: Added to the root of the second.
            weight_decay: Of the step, times the weights.
            adapts: Whether norms count.

        Raises:
            InputError: where a number is none that it can have.
        """
        _refuse(lr=lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)
        options = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "adapts": adapts}
        super().__init__(params, options)

    def _beside(self, parameter: nn.Parameter, group: dict[str, Any]) -> Tensor:
        assert parameter.grad is not None  # noqa: S101 - of a layer
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if "step" not in state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        mean = state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
        step: Tensor = (mean / (1 - beta1 ** state["step"])).div_(root)
        return step.add_(parameter, alpha=group["weight_decay"])

    def _update(self, layer: _Layer, weights: Tensor, beside: Tensor) -> None:
        ratio = float(lamb_ratios(weights, beside)) if layer.group["adapts"] else 1.0
        layer.parameter.sub_(layer.beside, alpha=layer.group["lr"] * ratio)


def _refuse(**numbers: float) -> None:
    """Refuse numbers below 0 and parts of 1 and more.

    Raises:
        InputError: naming one.
    """
    for name, number in numbers.items():
        is_part = name in ("momentum", "beta1", "beta2")
        if not (0 <= number < (1 if is_part else float("inf"))):
            raise InputError(f"{name} is {number:g}; it must be 0 or more{' and below 1' if is_part else ''}")
