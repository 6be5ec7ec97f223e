"""Gradients of a model that runs, whole or in stages: of its parameters and of its floating inputs.

The whole and the stages are differentiated along the same random directions, one for every output, so that no element's
gradient cancels another's. Nothing accumulates: ``.grad`` stays what it is, and the optimiser's hooks are not called.

Left out: second derivatives; comparing (``verify.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_reasons import whole_reason

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From inputs to outputs, both by name."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What is trained.

    Attributes:
        tensors: By the name the plan has; several where a tensor has copies, whose gradients are added up.
    """

    tensors: Mapping[str, tuple[Tensor, ...]]

    @classmethod
    def of_modules(cls, modules: Sequence[nn.Module], names: Mapping[str, str]) -> "Parameters":
        """Return those of modules; ``names`` has the plan's name of what goes by another one in the model."""
        trained: list[tuple[str, Tensor]] = [
            (module.__dict__.get("tied_as", {}).get(name, name), tensor)
            for module in modules
            for name, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers())
            if tensor.requires_grad and tensor.is_leaf
        ]
        known = {id(tensor): names[name] for name, tensor in trained if name in names}  # whatever its other names
        found: dict[str, dict[int, Tensor]] = {}
        for name, tensor in trained:
            found.setdefault(known.get(id(tensor), name), {})[id(tensor)] = tensor
        return cls({name: tuple(tensors.values()) for name, tensors in found.items()})


@dataclass(frozen=True, slots=True)
class Gradients:
    """What a run gave.

    Attributes:
        outputs: By name.
        parameters: Gradients by the plan's name; none for what no output depends on.
        inputs: Gradients of the inputs, by name; none for what no output depends on.
    """

    outputs: Mapping[str, Any]
    parameters: Mapping[str, Tensor]
    inputs: Mapping[str, Tensor]


def differentiate(
    run: Run, inputs: Mapping[str, Any], parameters: Parameters, directions: "Directions", *, with_inputs: bool = True
) -> Gradients:
    """Run once and give the gradients.

    Args:
        run: What is run; it does not change its inputs in place, which leaves do not bear.
        inputs: By name; they stay as they are.
        parameters: What it is differentiated by.
        directions: Along which, by output.
        with_inputs: Whether to differentiate by the floating inputs as well.

    Raises:
        BackendError: with the reason of PyTorch, where it cannot.
    """
    with torch.enable_grad():
        leaves = {name: _leaf(value) for name, value in inputs.items() if with_inputs and _is_floating(value)}
        outputs = run({**inputs, **leaves})
        outputs = {name: _as_now(output) for name, output in outputs.items()}
        made = {n: o for n, o in outputs.items() if isinstance(o, Tensor) and o.requires_grad and n in directions}
        wanted = [*(tensor for tensors in parameters.tensors.values() for tensor in tensors), *leaves.values()]
        if not made or not wanted:
            return Gradients(outputs, {}, {})
        along = [directions.of(name, output) for name, output in made.items()]
        try:
            found = torch.autograd.grad(list(made.values()), wanted, along, allow_unused=True)
        except Exception as error:  # a backward of a model's own may raise anything
            raise BackendError(f"cannot be differentiated: {whole_reason(error)}") from error
    by_tensor = {id(tensor): _dense(gradient) for tensor, gradient in zip(wanted, found, strict=True)}
    of_parameters = {name: _sum([by_tensor[id(t)] for t in tensors]) for name, tensors in parameters.tensors.items()}
    of_inputs = {name: by_tensor[id(leaf)] for name, leaf in leaves.items()}
    return Gradients(outputs, _given(of_parameters), _given(of_inputs))


class Directions:
    """A seeded random direction for every output, the same whoever asks first."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self._seeds = {name: seed + place for place, name in enumerate(dict.fromkeys(names))}

    def __contains__(self, name: str) -> bool:
        """Say whether the output is differentiated."""
        return name in self._seeds

    def of(self, name: str, output: Tensor) -> Tensor:
        """Return the direction of an output, of its shape."""
        generator = torch.Generator().manual_seed(self._seeds[name])
        wide = torch.complex128 if output.is_complex() else torch.float64
        drawn = torch.randn(output.shape, generator=generator, dtype=wide)
        return drawn.to(dtype=output.dtype, device=output.device)


def _as_now(output: Any) -> Any:
    """Copy an output that has no gradient: it may be a buffer, which goes on changing."""
    return output.clone() if isinstance(output, Tensor) and not output.requires_grad else output


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _leaf(value: Tensor) -> Tensor:
    return value.detach().clone().requires_grad_()


def _dense(gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    return (gradient if gradient.layout is torch.strided else gradient.to_dense()).detach()


def _sum(gradients: Sequence[Tensor | None]) -> Tensor | None:
    known = [gradient for gradient in gradients if gradient is not None]
    return sum(known[1:], known[0]) if known else None


def _given(gradients: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: gradient for name, gradient in gradients.items() if gradient is not None}
