"""A description made a module that runs, the call that goes with it, and what its result is taken apart into.

Left out: choosing (``draw.py``), comparing (``judge.py``).
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import gradients, layers, pointwise, shapes, state  # noqa: F401 - each fills the table
from .description import Description, Input, Output, Step
from .layers import HOOKS
from .table import OPS


class Pair(NamedTuple):
    """A result with two names."""

    first: Any
    second: Any


class Triple(NamedTuple):
    """A result with three names."""

    left: Any
    middle: Any
    right: Any


@dataclass
class Record:
    """A result that is a dataclass."""

    score: Any
    extra: Any = None


torch.export.register_dataclass(Record, serialized_type_name="heterps_hunt.Record")

CONTAINERS: Mapping[str, Any] = {
    "tuple": tuple,
    "list": list,
    "dict": lambda parts: {f"key {i}" if i else "key": part for i, part in enumerate(parts)},
    "pair": lambda parts: Pair(*parts),
    "triple": lambda parts: Triple(*parts),
    "record": lambda parts: Record(*parts),
}
SIZES = {"pair": 2, "triple": 3, "record": 2}


class Described(nn.Module):
    """Runs the steps of a description one after the other."""

    def __init__(self, description: Description) -> None:
        super().__init__()
        self.described = description
        self.parts = nn.ModuleList()
        self.calls: list[Any] = []
        self.unread = nn.ModuleDict()
        if description.unused:
            self.unread["layer"] = nn.Linear(3, 3)
            self.unread["norm"] = nn.BatchNorm1d(3)

    def add(self, step: Step, values: list[Any]) -> None:
        """Make what runs a step."""
        made = OPS[step.op].make(values, **dict(step.options)) if step.shares is None else self.calls[step.shares]
        if isinstance(made, nn.Module) and step.shares is None:
            self.parts.append(made)
            if step.frozen:
                made.requires_grad_(False)
            if step.hook:
                HOOKS[step.hook](made)
        self.calls.append(made)

    def try_step(self, step: Step, values: list[Any]) -> tuple[Any, ...]:
        """Make what runs a step, and run a copy of it on copies, so that neither buffers nor values change."""
        given = [value.clone() if isinstance(value, Tensor) else value for value in (values[arg] for arg in step.args)]
        self.add(step, given)
        made = (
            copy.deepcopy(self.calls[-1]).train(self.training)(*given) if self._has_state() else self.calls[-1](*given)
        )
        return made if isinstance(made, tuple) else (made,)

    def _has_state(self) -> bool:
        return isinstance(self.calls[-1], nn.Module)

    def tie(self) -> None:
        """Make the tied weight one tensor."""
        if self.described.tied_weight is not None:
            first, second = self.described.tied_weight
            self.calls[second].weight = self.calls[first].weight

    def forward(self, a: Any, b: Any = None, c: Any = None, d: Any = None) -> Any:
        values = [a, b, c, d][: len(self.described.inputs)]
        for step, call in zip(self.described.steps, self.calls, strict=True):
            made = call(*[values[arg] for arg in step.args])
            values.extend(made if isinstance(made, tuple) else (made,))
        return self._result(self.described.output, values)

    def _result(self, output: Output, values: list[Any]) -> Any:
        if output.parts:
            return CONTAINERS[output.kind]([self._result(part, values) for part in output.parts])
        if output.kind == "value":
            return values[output.at]
        if output.kind == "parameter":
            return list(self.parameters())[output.at]
        return output.constant


def build(description: Description) -> Described:
    """Return the module; the same description gives the same weights.

    Raises:
        Exception: whatever a step raises that cannot be made or run.
    """
    torch.manual_seed(description.seed)
    module = Described(description)
    values = list(arguments(description))
    with torch.no_grad():
        for step in description.steps:
            values.extend(module.try_step(step, values))
    module.tie()
    return module.train(description.training)


def one_input(spec: Input, generator: torch.Generator) -> Any:
    """Generate one argument."""
    if spec.value is not None:
        return spec.value
    if spec.kind == "int":
        return torch.randint(0, spec.high, spec.shape, generator=generator)
    if spec.kind == "bool":
        return torch.rand(spec.shape, generator=generator) > 0.5
    return torch.randn(spec.shape, generator=generator)


def arguments(description: Description, call: int = 0) -> Iterator[Any]:
    """Yield the arguments in the order of the inputs; those of another call are others."""
    generator = torch.Generator().manual_seed(description.seed * 31 + call)
    for spec in description.inputs:
        yield one_input(spec, generator)


def as_call(description: Description, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and keyword arguments."""
    pairs = list(zip("abcd", description.inputs, values, strict=False))
    named = {name: value for name, spec, value in pairs if spec.by_name}
    return tuple(value for _, spec, value in pairs if not spec.by_name), named
