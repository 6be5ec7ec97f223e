"""The table of ONNX ops: every op is a plain function over tensors, one a row, with the opset that brought it.

A function's positional parameters are the op's inputs in order, an absent one is None; keyword parameters are its
attributes: one without a default gets that of the op's schema (``frontends/onnx_facts.py``). It gives a tensor, or a
tuple where the op has several outputs. How a parameter is annotated says what arrives in it:

- ``Tensor``: a tensor;
- ``Scalar``: a number where the input is a constant of rank 0, else a tensor;
- ``Ints``, ``Floats``, ``Int``, ``Float``: Python numbers, also where the model computes them from shapes. Where they
  are known only when the model runs, they are read out of a tensor then.

Three keyword parameters are no attributes: ``outputs`` is the number of outputs the node asks for, ``types`` the ONNX
data types of its inputs, ``result_type`` that of its first output (0 where nobody knows).

Functions of packages installed beside this one are found through the entry points ``heterps_compile.torch_ops``: each
names a module that registers ops when it is imported.

Ops of ``ai.onnx.ml`` whose attributes are tables take these as tensors behind their inputs. If, Loop and Scan stand in
the table as names alone: ``control_flow.py`` runs them.

Left out: ops on sequences, optional values and strings.
"""

import inspect
import types as python_types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, TypeVar

import torch
from torch import Tensor

from heterps_compile.frontends.onnx_facts import is_known
from heterps_compile.plug_ins import load_module

Ints = list[int]
Floats = list[float]
Int = int
Float = float
Scalar = Tensor | float

GROUP = "heterps_compile.torch_ops"
_FILES = (
    "activation", "attention", "classic_ml", "contrib", "contrib_quantize", "control", "conv", "elementwise", "gather",
    "geometry", "linear", "loss", "norm", "pool", "quantize", "recurrent", "reduce", "reshape", "resize", "scatter",
    "select", "signal", "training", "types",
)  # fmt: skip
_NOT_ATTRIBUTES = frozenset({"outputs", "types", "result_type"})
_UNSIGNED = frozenset({torch.uint16, torch.uint32, torch.uint64})

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class OpVersion:
    """A version of an op: from an opset on, up to the next version.

    Attributes:
        domain: "" for ONNX's own.
        name: Of the op.
        since: The opset that brought it.
        run: What computes it.
        kinds: ``"tensor"``, ``"scalar"``, ``"ints"``, ``"floats"``, ``"int"`` or ``"float"`` for each input.
        variadic: The kind of all further inputs, or None where there are none.
        attributes: Those it knows.
        required: Those that it must be given: the schema's default where a node says nothing.
        wants: Which of ``outputs``, ``types`` and ``result_type`` it is to be given.
    """

    domain: str
    name: str
    since: int
    run: Callable[..., Any]
    kinds: tuple[str, ...]
    variadic: str | None
    attributes: frozenset[str]
    required: frozenset[str]
    wants: frozenset[str]

    def kind(self, place: int) -> str | None:
        """Return the kind of the input at a place, or None where the op takes no such input."""
        return self.kinds[place] if place < len(self.kinds) else self.variadic

    @property
    def max_inputs(self) -> int | None:
        """Return how many inputs it takes, None for any number."""
        return len(self.kinds) if self.variadic is None else None

    def knows(self, attribute: str) -> bool:
        """Say whether it has an attribute, by ONNX's name."""
        return attribute in self.attributes


_TABLE: dict[tuple[str, str], dict[int, OpVersion]] = {}


def op(name: str, since: int, *, domain: str = "", widen: bool = False) -> Callable[[Function], Function]:
    """Put a function into the table; the same function may stand in several rows.

    Args:
        name: Of the op.
        since: The opset that brought this version of it; it is replaced by the next version in the table.
        domain: "" for ONNX's own.
        widen: Compute uint16, uint32 and uint64 as int64, where PyTorch has no kernels for them.
    """

    def register(function: Function) -> Function:
        kinds, variadic, keywords = _signature(function)
        run = _widened(function) if widen else function
        known, wants = keywords.keys() - _NOT_ATTRIBUTES, keywords.keys() & _NOT_ATTRIBUTES
        required = frozenset(key for key in known if keywords[key] is inspect.Parameter.empty)
        version = OpVersion(domain, name, since, run, kinds, variadic, frozenset(known), required, frozenset(wants))
        _TABLE.setdefault((domain, name), {})[since] = version
        return function

    return register


def _signature(function: Callable[..., Any]) -> tuple[tuple[str, ...], str | None, dict[str, Any]]:
    hints = typing.get_type_hints(function)
    kinds: list[str] = []
    variadic: str | None = None
    keywords: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[parameter.name] = parameter.default
        elif parameter.kind is parameter.VAR_POSITIONAL:
            variadic = _kind(hints[parameter.name])
        else:
            kinds.append(_kind(hints[parameter.name]))
    return tuple(kinds), variadic, keywords


def _kind(hint: Any) -> str:
    options = set(typing.get_args(hint)) if isinstance(hint, python_types.UnionType) else {hint}
    options.discard(type(None))
    if options == {Tensor, float}:
        return "scalar"
    names = {Tensor: "tensor", Ints: "ints", Floats: "floats", Int: "int", Float: "float"}
    return names[options.pop()]


def _widened(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any, **attributes: Any) -> Any:
        dtype = next((x.dtype for x in inputs if isinstance(x, Tensor) and x.dtype in _UNSIGNED), None)
        if dtype is None:
            return function(*inputs, **attributes)
        wide = (x.to(torch.int64) if isinstance(x, Tensor) and x.dtype in _UNSIGNED else x for x in inputs)
        result = function(*wide, **attributes)
        return result.to(dtype) if isinstance(result, Tensor) and result.dtype == torch.int64 else result

    return run


@cache
def _load() -> None:
    for file in _FILES:
        import_module(f"{__package__}.{file}")
    for entry in entry_points(group=GROUP):
        load_module(entry)


def find_op(domain: str, name: str, opset: int) -> OpVersion | None:
    """Return the version of an op that a model of an opset means, or None where the table has none."""
    _load()
    domain = "" if domain == "ai.onnx" else domain
    versions = _TABLE.get((domain, name), {})
    since = max((s for s in versions if s <= opset), default=None)
    return None if since is None or not is_known(domain, name, opset) else versions[since]


def declared_ops() -> Mapping[tuple[str, str], tuple[int, ...]]:
    """Return the opsets that brought the known versions of every op, by domain and name."""
    _load()
    return {key: tuple(sorted(versions)) for key, versions in sorted(_TABLE.items())}
