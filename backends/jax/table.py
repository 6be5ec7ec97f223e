"""What a row of the op table is, how a row is found, and how others add theirs.

A function takes the inputs of its op in order, an absent one is None, and its attributes by name (``transA`` as
``trans_a``), with ONNX's defaults, since a written stage carries its source: a test holds them against the schemas
(``frontends/onnx_facts.py``), from which comes what has no default of its own. A function of an op with several
outputs has the keyword ``outputs``: how many are read, or, where it has no default, how many there are. It gives one
array for one, else a tuple. A function that draws random numbers has the keyword-only ``key``, which is jax's, or None
where nothing is to be drawn.

The rows themselves stand in ``op_rows.py``. Packages installed beside this one add theirs through the entry points
``heterps_compile.jax_ops``: each names a module that calls :func:`register` when it is imported.

Left out: control flow, and ops on sequences, optional values and strings; ops that draw random numbers.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from heterps_compile.frontends.onnx_facts import is_known
from heterps_compile.plug_ins import load_module

GROUP = "heterps_compile.jax_ops"
TRAINING_DOMAIN = "heterps_compile"
"""Of the two ops that stages of PyTorch models in training mode are exported with; no model of a user has them."""

_ROWS = "heterps_compile.backends.jax.op_rows"


@cache
def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function, or none where Python does not know them."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {}


def snake(name: str) -> str:
    """Return the name of an attribute as functions have it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


@dataclass(frozen=True, slots=True)
class Op:
    """A row: what an op is in jax, from an opset on up to the next row of the same op.

    Attributes:
        name: Of the op.
        since: The opset from which on the function is right.
        function: Of ``jax.numpy``, ``jax.nn``, ``jax.lax`` or ``operator``, or one whose source a stage can carry.
        known: Which inputs must be known before the stage runs: shapes, axes.
        keeps: Whether what it makes of known inputs is known: what shapes are computed with.
        domain: "" for ONNX's own.
    """

    name: str
    since: int
    function: Callable[..., Any]
    known: tuple[int, ...] = ()
    keeps: bool = False
    domain: str = ""

    def knows(self, attribute: str) -> bool:
        """Say whether the function has an attribute, by ONNX's name; of what Python knows nothing of, any."""
        takes = parameters_of(self.function)
        return not takes or snake(attribute) in takes

    @property
    def max_inputs(self) -> int | None:
        """Return how many inputs the function takes, None where it is any number or Python does not know it."""
        found = parameters_of(self.function).values()
        if not found or any(parameter.kind is parameter.VAR_POSITIONAL for parameter in found):
            return None
        return sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in found)


MAKES_KNOWN = frozenset({"EyeLike", "Shape", "Size"})
"""Ops that make what is known of values that are not: they read shapes alone."""

_TABLE: dict[tuple[str, str], dict[int, Op]] = {}


def register(*rows: Op) -> None:
    """Put rows into the table; a row takes the place of one with the same domain, name and opset."""
    for row in rows:
        _TABLE.setdefault((row.domain, row.name), {})[row.since] = row


def find_op(domain: str, name: str, opset: int) -> Op | None:
    """Return the row for an op of a model that imports an opset of its domain, or None where there is none."""
    _load()
    versions = _TABLE.get((domain, name), {})
    since = max((version for version in versions if version <= opset), default=None)
    return None if since is None or not is_known(domain, name, opset) else versions[since]


def declared_ops() -> Mapping[tuple[str, str], Sequence[int]]:
    """Give, for every op of the table by domain and name, the opsets its rows begin at; those of models alone."""
    _load()
    return {key: tuple(sorted(versions)) for key, versions in sorted(_TABLE.items()) if key[0] != TRAINING_DOMAIN}


@cache
def _load() -> None:
    """Import the built-in rows and those of packages beside this one, which register themselves."""
    register(*import_module(_ROWS).ROWS)
    for entry in entry_points(group=GROUP):
        load_module(entry)
