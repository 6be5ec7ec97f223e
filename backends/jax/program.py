"""A stage as a list of calls: what is run, and what is written out as source.

Left out: where the parameters' arrays are (:mod:`.stage`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten

from .table import Op

_REASON_SHOWN = 400
_NAME_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is an input of the stage or what an earlier call made."""

    name: str


@dataclass(frozen=True, slots=True)
class Param:
    """An argument that is a parameter of the stage."""

    name: str


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph: a function of its own inputs that sees what is computed before it too.

    Attributes:
        inputs: Names of the values it is given.
        calls: In order.
        results: What it gives, as in :class:`Program`.
    """

    inputs: tuple[str, ...]
    calls: "tuple[Call, ...]"
    results: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a function.

    Attributes:
        op: What is called.
        arguments: :class:`Ref`, :class:`Param`, None, a number, a tuple of numbers, or a numpy array.
        options: Attributes by the names the function has for them.
        results: Names of what it makes, "" where nobody reads it.
        node: Name of the node it stands for.
        draws: Whether it draws random numbers, and takes the stage's key.
        bodies: Subgraphs, by the names the function has for them.
    """

    op: Op
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    results: tuple[str, ...]
    node: str
    draws: bool = False
    bodies: Mapping[str, Body] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Program:
    """A pure function: parameters and inputs in, a tuple of outputs and what the model changes in itself out.

    Attributes:
        index: Of the stage.
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
        calls: In order.
        results: What it gives: :class:`Ref`, :class:`Param` or a constant, one an output.
        known_inputs: Inputs that must be known before it runs, since shapes depend on their elements.
        parameters: Arrays it reads, by name, as numpy arrays that may be mapped from a file.
        weights: Names of the parameters that are trained.
        described: dtype and shape of a value by name, where they are known, for a reader.
        updates: What becomes of the parameters that the model changes when it runs, by name; as in ``results``.
        tied_as: Of the parameters that go by several names in the model: the one the plan has, by its name here.
    """

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    calls: tuple[Call, ...]
    results: tuple[Any, ...]
    known_inputs: frozenset[str]
    parameters: Mapping[str, Any] = field(repr=False)
    weights: frozenset[str] = field(repr=False)
    described: Mapping[str, str] = field(repr=False)
    updates: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tied_as: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def momentum(self) -> dict[str, float | None]:
        """Return of every update how far it moves a running average towards what is new; None for other updates."""
        makers = {result: call for call in self.calls for result in call.results}
        found: dict[str, float | None] = {}
        for name, value in self.updates.items():
            call = makers.get(value.name) if isinstance(value, Ref) else None
            is_average = call is not None and call.op.name == "BatchNorm" and Param(name) in call.arguments
            found[name] = call.options["momentum"] if call is not None and is_average else None
        return found

    @property
    def draws(self) -> bool:
        """Say whether a call draws random numbers."""
        return any(call.draws for call in every_call(self.calls))

    def __call__(self, params: Mapping[str, Any], *inputs: Any, key: Any = None) -> tuple[Any, ...]:
        """Run; pure, so that jax can transform it. An output that is known (a shape) is a numpy array.

        Raises:
            BackendError: naming stage, node and op that cannot run on these inputs.
        """
        return self.step(params, *inputs, key=key)[0]

    def step(self, params: Mapping[str, Any], *inputs: Any, key: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Run; give the new values of what the model changes besides the outputs.

        Raises:
            BackendError: naming stage, node and op that cannot run on these inputs.
        """
        values = {
            name: np.asarray(value) if name in self.known_inputs else jnp.asarray(value)
            for name, value in zip(self.inputs, inputs, strict=True)
        }

        self._run(self.calls, values, params, key)
        results = tuple(_find(result, values, params) for result in self.results)
        return results, {name: _find(value, values, params) for name, value in self.updates.items()}

    def _run(self, calls: Iterable[Call], values: dict[str, Any], params: Mapping[str, Any], key: Any) -> None:
        """Run calls on the values there are, and put what they make beside these."""
        for call in calls:
            options = {**call.options, **({"key": key} if call.draws else {})}
            options |= {name: self._function(body, values, params, key) for name, body in call.bodies.items()}
            try:
                given = _as_wide_as_jax([_find(argument, values, params) for argument in call.arguments])
                made = call.op.function(*given, **options)
            except BackendError:
                raise
            except Exception as error:
                reason = printable(shorten(" ".join(str(error).split()), _REASON_SHOWN))
                raise BackendError(
                    f"stage {self.index} cannot run node {printable(shorten(call.node, _NAME_SHOWN))!r} "
                    f"({call.op.name}): {reason}"
                ) from error
            results = made if isinstance(made, tuple) else (made,)
            values.update(zip(call.results, results, strict=False))

    def _function(self, body: Body, values: Mapping[str, Any], params: Mapping[str, Any], key: Any) -> Any:
        def run(*given: Any) -> tuple[Any, ...]:
            inner = {**values, **dict(zip(body.inputs, given, strict=True))}
            self._run(body.calls, inner, params, key)
            return tuple(_find(result, inner, params) for result in body.results)

        return run


def every_call(calls: Iterable[Call]) -> Iterator[Call]:
    """Yield calls and, behind each, those of its subgraphs."""
    for call in calls:
        yield call
        for body in call.bodies.values():
            yield from every_call(body.calls)


def _find(argument: Any, values: Mapping[str, Any], params: Mapping[str, Any]) -> Any:
    if isinstance(argument, Ref):
        return values[argument.name]
    return params[argument.name] if isinstance(argument, Param) else argument


def _as_wide_as_jax(arguments: list[Any]) -> list[Any]:
    """Convert constants beside jax arrays to the dtypes jax has now: it mixes up 64 bits of then with 32 of now."""
    if not any(isinstance(argument, jax.Array) for argument in arguments):
        return arguments
    return [
        a.astype(jax.dtypes.canonicalize_dtype(a.dtype)) if isinstance(a, (np.ndarray, np.generic)) else a
        for a in arguments
    ]
