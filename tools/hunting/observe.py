"""Call a module twice and note all that a user can see of it: results, gradients, inputs and buffers afterwards.

Used by the process that draws and by the fresh one, which knows nothing of the types that a drawn module returns.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

Path = tuple[tuple[str, Any], ...]
LEVELS = ("inputs", "parameters", "none")


@dataclass
class Seen:
    """What one call showed.

    Attributes:
        results: The leaves of the result by the way to each: arrays, numbers, None.
        gradients: Of parameters by name, and of floating inputs by ``"input N"``; zeros where there is none.
        inputs: The tensors that were given, after the call.
        state: Buffers after the call, by name.
        scored: The leaves of what the same call gives in evaluation mode, of the first call alone.
    """

    results: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    scored: dict[str, Any] = field(default_factory=dict)


def taken_apart(result: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a result, each with the way to it: attributes, keys and positions."""
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        for name in result._fields:
            yield from taken_apart(getattr(result, name), (*path, ("attribute", name)))
    elif dataclasses.is_dataclass(result) and not isinstance(result, type):
        for part in dataclasses.fields(result):
            yield from taken_apart(getattr(result, part.name), (*path, ("attribute", part.name)))
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from taken_apart(value, (*path, ("key", key)))
    elif isinstance(result, (tuple, list)):
        for place, value in enumerate(result):
            yield from taken_apart(value, (*path, ("place", place)))
    else:
        yield path, result


def leaf_at(result: Any, path: Path) -> Any:
    """Follow a way into a result.

    Raises:
        Exception: where the result is structured otherwise.
    """
    for kind, key in path:
        result = getattr(result, key) if kind == "attribute" else result[key]
    return result


def as_array(value: Any) -> Any:
    """Return an array of its own memory; None, numbers and text as they are."""
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        return (dense.float() if dense.dtype == torch.bfloat16 else dense).clone().numpy()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return np.array(value)


def loss_of(leaves: Sequence[Any]) -> Tensor | None:
    """Weigh every element of every output that can be differentiated, each otherwise."""
    generator = torch.Generator().manual_seed(7)
    total: Tensor | None = None
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            weights = torch.rand(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.dtype) + 0.5
            if leaf.requires_grad:
                part = (leaf * weights).sum().double()
                total = part if total is None else total + part
    return total


def observe(
    call: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    *,
    level: str = "none",
    seed: int = 0,
    parameters: Callable[[], Mapping[str, Tensor | None]] = dict,
    paths: Sequence[Path] | None = None,
) -> Seen:
    """Call once, and differentiate where ``level`` says so.

    Args:
        call: The module or its stages.
        args: Positional arguments; tensors are copied first.
        named: Keyword arguments.
        level: ``"inputs"`` for gradients of parameters and floating inputs, ``"parameters"``, or ``"none"``.
        seed: Of PyTorch's random numbers.
        parameters: Gives the gradients by name after the backward.
        paths: The ways to the leaves, where their types are not known here.
    """
    given: list[Any] = []
    for value in (*args, *named.values()):
        copied = value.clone() if isinstance(value, Tensor) else value
        if level == "inputs" and isinstance(copied, Tensor) and copied.is_floating_point():
            copied.requires_grad_(True)
        given.append(copied)
    torch.manual_seed(seed)
    with torch.set_grad_enabled(level != "none"):
        result = call(*given[: len(args)], **dict(zip(named, given[len(args) :], strict=True)))
    found = list(taken_apart(result)) if paths is None else [(path, leaf_at(result, path)) for path in paths]
    seen = Seen()
    for path, leaf in found:
        seen.results[_shown(path)] = as_array(leaf)
    if level != "none":
        loss = loss_of([leaf for _, leaf in found])
        if loss is not None:
            loss.backward()
        seen.gradients = {name: as_array(gradient) for name, gradient in parameters().items()}
    for place, value in enumerate(given):
        if isinstance(value, Tensor):
            seen.inputs[f"input {place}"] = as_array(value)
            if level == "inputs" and value.is_floating_point():
                seen.gradients[f"input {place}"] = as_array(value.grad)
    return seen


def _shown(path: Path) -> str:
    return "".join(f".{key}" if kind == "attribute" else f"[{key!r}]" for kind, key in path)


def stage_gradients(stages: Sequence[Any]) -> dict[str, Tensor | None]:
    """Return the gradients that stages hold, by the plan's name of each tensor, and forget them.

    A tensor that several stages hold is counted once where they share it, and added up where they do not.
    """
    found: dict[str, Tensor | None] = {}
    counted: set[int] = set()
    for stage in stages:
        tied = getattr(stage, "tied_as", {})
        for name, tensor in stage.state_dict(keep_vars=True).items():
            if not tensor.requires_grad or id(tensor) in counted:
                continue
            counted.add(id(tensor))
            plain = tied.get(name, name)
            if tensor.grad is not None:
                before = found.get(plain)
                found[plain] = tensor.grad.clone() if before is None else before + tensor.grad
            found.setdefault(plain, None)
            tensor.grad = None
    return found
