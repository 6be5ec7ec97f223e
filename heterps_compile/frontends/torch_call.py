"""How a torch model's calls map onto its graph: nested structures outside, named values inside.

A model takes and returns tuples, dicts, dataclasses, None; a graph has flat, named inputs and outputs. Of a model that
was just read a structure is a tree of its own types (``torch.utils._pytree``), with a leaf for every value and every
constant; of one that is loaded from a folder it is plain data (``structures.py``), and needs no library.

Left out: the values themselves.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, shorten
from heterps_compile.ir.graph import TORCH

from .structures import Accepts, Structure, accepts_from_json, accepts_to_json, structures_of_call
from .torch_structure import structure_of

_PLAIN = (bool, int, float, str, type(None))
_OUTLINE_SHOWN = 400


@dataclass(frozen=True, slots=True)
class Fixed:
    """A leaf that is no value of the graph but always the same object."""

    value: Any


@dataclass(frozen=True, slots=True)
class Printed:
    """What is left in a file of a constant that JSON does not have: its ``repr``."""

    text: str


Leaf = str | Fixed
"""A leaf of a structure: the name of a value, or something fixed."""


@dataclass(frozen=True)
class CallStructure:
    """Maps calls to graph inputs and graph outputs to results.

    Attributes:
        in_spec: Structure of ``(args, kwargs)``; its leaves are ``in_leaves``.
        out_spec: Structure of the result; its leaves are ``out_leaves``.
        names: Names of the positional parameters of the model's ``forward``, in order.
        accepts: What each named input may be.
    """

    in_spec: pytree.TreeSpec | Structure
    in_leaves: tuple[Leaf, ...]
    out_spec: pytree.TreeSpec | Structure
    out_leaves: tuple[Leaf, ...]
    names: tuple[str, ...]
    accepts: Mapping[str, Accepts]

    def __post_init__(self) -> None:
        """Check that both structures can be written to a file.

        Raises:
            InputError: naming what cannot.
        """
        for spec in (self.in_spec, self.out_spec):
            _as_data(spec)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the graph inputs by name out of a call's arguments.

        Raises:
            InputError: where the arguments are structured otherwise than the example's, or are no such tensors.
        """
        leaves, spec = pytree.tree_flatten(self._arrange(args, kwargs))
        own = self.in_spec
        if not (own.takes(structure_of(spec)) if isinstance(own, Structure) else spec == own):
            raise InputError(
                f"the arguments are structured as {_outline(spec)}, the model was read with {_outline(own)}; "
                f"call it as in the example inputs"
            )
        values = {}
        for leaf, value in zip(self.in_leaves, leaves, strict=True):
            if isinstance(leaf, str):
                values[leaf] = _accepted(leaf, value, self.accepts[leaf])
            else:
                _check_fixed(leaf.value, value)
        return values

    def unbind(self, values: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a call's arguments out of the graph inputs by name: the inverse of :meth:`bind`."""
        leaves = [values[leaf] if isinstance(leaf, str) else leaf.value for leaf in self.in_leaves]
        args, kwargs = _build(self.in_spec, leaves)
        return args, kwargs

    def assemble(self, values: Mapping[str, Any]) -> Any:
        """Return what the model returns, structure included, out of the graph outputs by name.

        Of a model that was just read that is an object of the model's own type, of one from a file a plain one with
        the same names (``results.py``).

        Raises:
            InputError: naming the output that is missing.
        """
        missing = [leaf for leaf in self.out_leaves if isinstance(leaf, str) and leaf not in values]
        if missing:
            raise InputError(f"output {missing[0]!r} is missing; given are {', '.join(map(repr, values))}")
        return _build(
            self.out_spec, [values[leaf] if isinstance(leaf, str) else leaf.value for leaf in self.out_leaves]
        )

    def disassemble(self, result: Any) -> tuple[Any, ...]:
        """Return the graph outputs, in order, out of what the model returned: the inverse of :meth:`assemble`.

        Raises:
            InputError: where the model returns another structure than when it was read.
        """
        leaves, spec = pytree.tree_flatten(result)
        if len(leaves) != len(self.out_leaves):
            expected = _outline(self.out_spec)
            raise InputError(f"the model returns {_outline(spec)}; when it was read it returned {expected}")
        return tuple(v for leaf, v in zip(self.out_leaves, leaves, strict=True) if isinstance(leaf, str))

    def to_json(self) -> str:
        """Return text that :func:`call_from_json` understands once it is parsed."""
        return json.dumps(
            {
                "kind": TORCH,
                "takes": _as_data(self.in_spec).to_json(),
                "inputs": [_leaf_json(leaf) for leaf in self.in_leaves],
                "returns": _as_data(self.out_spec).to_json(),
                "outputs": [_leaf_json(leaf) for leaf in self.out_leaves],
                "names": self.names,
                "accepts": accepts_to_json(self.accepts),
            },
            allow_nan=False,
        )

    def _arrange(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Move arguments between positions and keywords until they stand as in the example."""
        positional, keyword = _build(self.in_spec, [None] * len(self.in_leaves))
        count, by_name, moved = len(positional), dict(kwargs), list(args)
        for name in self.names[len(moved) : count]:
            if name not in by_name:
                break
            moved.append(by_name.pop(name))
        for name, value in zip(self.names[count:], moved[count:], strict=False):
            if name in by_name:
                raise InputError(f"argument {name!r} is given twice, by position and by name")
            by_name[name] = value
        if len(moved) < count or len(moved) > max(count, len(self.names)):
            raise InputError(
                f"{len(args)} positional arguments are given, the model was read with {count}"
                f" ({', '.join(self.names[:count])}); call it as in the example inputs"
            )
        faults = [f"{key!r} is missing" for key in keyword if key not in by_name]
        faults += [f"{key!r} was not among them" for key in by_name if key not in keyword]
        if faults:
            raise InputError(
                f"the arguments are not those the model was read with: {'; '.join(faults)}; "
                f"call it as in the example inputs, or read it again with others"
            )
        return tuple(moved[:count]), {key: by_name[key] for key in keyword}


def call_from_json(content: Mapping[str, Any]) -> CallStructure:
    """Return the structure out of what :meth:`CallStructure.to_json` wrote, parsed.

    Raises:
        InputError: where it is not such a thing.
    """
    takes, returns = structures_of_call(content)
    try:
        return CallStructure(
            in_spec=takes,
            in_leaves=tuple(map(_leaf_from_json, content["inputs"])),
            out_spec=returns,
            out_leaves=tuple(map(_leaf_from_json, content["outputs"])),
            names=tuple(map(str, content["names"])),
            accepts=accepts_from_json(content["accepts"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"the plan does not say how the model is called: {printable(str(error))}") from error


def _as_data(spec: pytree.TreeSpec | Structure) -> Structure:
    return spec if isinstance(spec, Structure) else structure_of(spec)


def _build(spec: pytree.TreeSpec | Structure, leaves: Sequence[Any]) -> Any:
    return spec.build(leaves) if isinstance(spec, Structure) else pytree.tree_unflatten(leaves, spec)


def _leaf_json(leaf: Leaf) -> Any:
    if isinstance(leaf, str):
        return leaf
    value = leaf.value
    if isinstance(value, Printed):
        return {"printed": value.text}
    if type(value) is complex or (type(value) is float and not math.isfinite(value)):
        return {"number": [float(value.real).hex(), float(value.imag).hex()], "of": type(value).__name__}
    return {"is": value} if type(value) in _PLAIN else {"printed": repr(value)}


def _leaf_from_json(leaf: Any) -> Leaf:
    if isinstance(leaf, str):
        return leaf
    if "number" in leaf:
        real, imaginary = map(float.fromhex, leaf["number"])
        return Fixed(real if leaf["of"] == "float" else complex(real, imaginary))
    return Fixed(leaf["is"] if "is" in leaf else Printed(str(leaf["printed"])))


def _check_fixed(expected: Any, given: Any) -> None:
    if isinstance(expected, Printed):
        is_same, shown = repr(given) == expected.text, expected.text
    else:
        is_same = given is expected or (type(given) is type(expected) and bool(given == expected))
        shown = repr(expected)
    if not is_same:
        raise InputError(
            f"an argument is {shorten(printable(repr(given)), 60)}, the model was read with "
            f"{shorten(printable(shown), 60)} there and is right for that alone; read it again with the new one"
        )


def _accepted(name: str, value: Any, accepts: Accepts) -> Any:
    """Return the value back, or say why it is none for that input."""
    if accepts.shape is None:
        return value
    if accepts.dtype is None:
        if not isinstance(value, (bool, int, float)):
            raise InputError(f"input {name!r} must be a number, not a {type(value).__name__}")
        return value
    if not isinstance(value, torch.Tensor):
        raise InputError(f"input {name!r} must be a tensor, not a {type(value).__name__}")
    dtype = str(value.dtype).removeprefix("torch.")
    fits = value.dim() == len(accepts.shape) and all(
        d in (None, e) for d, e in zip(accepts.shape, value.shape, strict=True)
    )
    if not fits or dtype != accepts.dtype:
        shown = ", ".join("any" if d is None else str(d) for d in accepts.shape)
        raise InputError(
            f"input {name!r} is {dtype}{list(value.shape)}, the model was read with {accepts.dtype}[{shown}]; "
            f"read it again with such an example, or with dynamic_shapes"
        )
    return value


def _outline(spec: pytree.TreeSpec | Structure) -> str:
    """Print a structure on one line, with a star for every leaf."""
    return shorten(str(_as_data(spec)), _OUTLINE_SHOWN)
