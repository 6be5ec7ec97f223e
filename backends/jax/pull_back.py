r"""The forward of a stage that leaves what its backward needs, and that backward; each is compiled as a whole.

::

    forward     values, parameters     -->  outputs, new running statistics, residuals
    backward    residuals, gradients of the outputs  -->  gradients of what moves

The residuals are those of ``jax.vjp``, so that nothing is computed twice but what only lies otherwise in memory: of a
weight that is transposed there would be a second copy for every micro-batch. Residuals that are values or parameters
are not given back, but told by their places: jax would copy them. What is given back has memory of its own.

Left out: who calls this (``torch_module.py``); gradients of gradients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import numpy as jnp

from .stage import JaxStage

_REARRANGING = frozenset({"broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "transpose"})


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Residuals:
    """What a forward leaves for its backward.

    Attributes:
        made: Arrays that the forward has made.
        sources: Of every leaf of the pullback which array of the forward it is; None for the next of those made.
        tree: Of the pullback.
    """

    made: list[Any]
    sources: tuple[int | None, ...] = field(metadata={"static": True})
    tree: Any = field(metadata={"static": True})


@dataclass(frozen=True, eq=False)
class Forward:
    """A stage as a function of arrays alone: the values it takes that are not known, then its parameters.

    Attributes:
        stage: The stage; its own parameters are not used.
        names: Of the parameters, in order.
        known: Values that shapes depend on, by their places among the inputs: constants of what is compiled.
        moving: Of every array, whether its gradient is wanted.
        recomputes: Leave no residuals but the arrays themselves; the backward runs the stage again.
    """

    stage: JaxStage
    names: tuple[str, ...]
    known: Mapping[int, Any]
    moving: tuple[bool, ...]
    recomputes: bool = False

    def __call__(self, arrays: Sequence[Any], key: Any) -> tuple[tuple[Any, ...], dict[str, Any], Residuals]:
        """Return outputs, new values of what is updated, and residuals; pure, for ``jax.jit``.

        Args:
            arrays: Those of ``moving``.
            key: Two words of 32 bits, where the stage drops at random; else None.
        """
        moved = [array for array, moves in zip(arrays, self.moving, strict=True) if moves]
        policy = None if self.recomputes else _is_residual
        run = jax.checkpoint(self._outputs, prevent_cse=False, policy=policy)
        floats, pullback, (others, updates) = jax.vjp(lambda moved: run(moved, arrays, key), moved, has_aux=True)
        leaves, tree = jax.tree.flatten(pullback)
        # what an update overwrites must not be looked at again
        names = [None] * (len(arrays) - len(self.names)) + list(self.names)
        place = {id(a): i for i, (a, name) in enumerate(zip(arrays, names, strict=True)) if name not in updates}
        sources = tuple(place.get(id(leaf)) for leaf in leaves)
        made = [leaf for leaf, source in zip(leaves, sources, strict=True) if source is None]
        outputs = {**floats, **others}
        # jnp.copy: else an output that is an input would be the very same memory
        given, new = jax.tree.map(jnp.copy, (tuple(outputs[i] for i in sorted(outputs)), updates))
        return given, new, Residuals(made, sources, tree)

    def influences(self, arrays: Sequence[Any], key: Any) -> tuple[frozenset[int], ...]:
        """Give, for every array that moves, the outputs that it changes in a way that has a gradient.

        A parameter beside them, behind ``stop_gradient`` or in a branch of another output, has no gradient at all, as
        in PyTorch: an optimiser leaves it alone, where it might move one whose gradient is zero.
        """
        moved = [array for array, moves in zip(arrays, self.moving, strict=True) if moves]

        def floats(moved: list[Any]) -> dict[int, Any]:
            return self._outputs(moved, arrays, key)[0]

        def push(moved: list[Any], tangents: list[Any]) -> Any:
            return jax.linearize(floats, moved)[1](tangents)

        closed, shapes = jax.make_jaxpr(push, return_shape=True)(moved, moved)
        jaxpr = closed.jaxpr
        reach = {id(variable): frozenset({i}) for i, variable in enumerate(jaxpr.invars[len(moved) :])}
        nothing: frozenset[int] = frozenset()
        for equation in jaxpr.eqns:
            of_all = nothing.union(*(reach.get(id(variable), nothing) for variable in equation.invars))
            reach.update((id(variable), of_all) for variable in equation.outvars)
        of_output = dict(zip(shapes, (reach.get(id(variable), nothing) for variable in jaxpr.outvars), strict=True))
        return tuple(frozenset(o for o, reached in of_output.items() if i in reached) for i in range(len(moved)))

    def _outputs(self, moved: Sequence[Any], arrays: Sequence[Any], key: Any) -> tuple[dict[int, Any], Any]:
        """Run the stage's step; give the outputs that have gradients by place, and beside them others and updates."""
        remaining = iter(moved)
        given = [next(remaining) if moves else array for array, moves in zip(arrays, self.moving, strict=True)]
        count = len(given) - len(self.names)
        rest = iter(given[:count])
        values = [self.known[i] if i in self.known else next(rest) for i in range(len(self.stage.inputs))]
        drawn = None if key is None else jax.random.wrap_key_data(key, impl="threefry2x32")
        outputs, updates = self.stage.step(dict(zip(self.names, given[count:], strict=True)), *values, key=drawn)
        floats = {i: o for i, o in enumerate(outputs) if jnp.issubdtype(jnp.result_type(o), jnp.inexact)}
        return floats, ({i: o for i, o in enumerate(outputs) if i not in floats}, updates)


def _is_residual(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive.name not in _REARRANGING


@jax.jit
def pull_back(residuals: Residuals, arrays: Sequence[Any], gradients: Mapping[int, Any]) -> list[Any]:
    """Return the gradients of what moves from those of the outputs that have some, by place.

    Args:
        residuals: Of the forward.
        arrays: Those it ran on.
        gradients: Of every output of floats.
    """
    made = iter(residuals.made)
    leaves = [next(made) if source is None else arrays[source] for source in residuals.sources]
    (moved,) = jax.tree.unflatten(residuals.tree, leaves)(gradients)
    return [jnp.copy(gradient) for gradient in moved]
