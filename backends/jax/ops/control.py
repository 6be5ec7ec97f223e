"""If, Loop and Scan, whose subgraphs come as functions that see what is computed around them.

What is known before the stage runs decides at once: a branch, a number of trips. Else an If is ``lax.cond``, a loop
whose values keep their shapes ``lax.scan``, one that its own values end ``lax.while_loop``; a loop of few trips whose
values change their shapes is unrolled.

Left out: loops that collect a value of every trip while their trips depend on what they compute; jax must know the
size.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from .known import Array, known

MOST_UNROLLED = 512
"""Trips of a loop that are written out, or that keep what gradients need though the loop may end before."""


def if_else(condition: Array, *, then_branch: Callable[..., Any], else_branch: Callable[..., Any]) -> Any:
    """Run one of two branches."""
    if known(condition):
        return then_branch() if bool(np.reshape(condition, -1)[0]) else else_branch()
    return lax.cond(jnp.reshape(condition, ()), lambda: as_arrays(then_branch()), lambda: as_arrays(else_branch()))


def as_arrays(values: Any) -> Any:
    """Return what is known as arrays of jax too."""
    return tuple(jnp.asarray(value) for value in values)


def loop(
    trips: Array | None = None, condition: Array | None = None, *state: Array, body: Callable[..., Any],
    collects: int = 0,
) -> Any:  # fmt: skip
    """Run a body while its condition holds, at most so many times; stack what it gives besides what it carries."""
    going = np.asarray(True) if condition is None else condition
    if not known(going) or (trips is not None and not known(trips)):
        return while_going(trips, going, state, body)
    if not bool(np.reshape(going, -1)[0]):
        trips = np.asarray(0)
    most = -1 if trips is None else max(int(np.reshape(trips, -1)[0]), 0)
    shapes, is_counted = keeps_shapes(state, body)
    if shapes is None:
        return unrolled(most, state, body, collects)
    if not is_counted or most < 0:
        return while_going(trips, going, state, body)

    def step(carried: Any, trip: Array) -> Any:
        made = as_arrays(body(trip, np.asarray(True), *carried)[1:])
        return made[: len(state)], made[len(state) :]

    last, collected = lax.scan(step, as_arrays(state), jnp.arange(most))
    return (*last, *collected)


def keeps_shapes(state: Any, body: Callable[..., Any]) -> Any:
    """Return the shapes a trip makes, None where it changes those of what is carried, and whether it always goes on."""
    goes_on = []

    def trip(number: Array, *carried: Array) -> Any:
        going, *made = body(number, np.asarray(True), *carried)
        goes_on.append(known(going) and bool(np.reshape(going, -1)[0]))
        return as_arrays(made)

    given = as_arrays(state)
    try:
        shapes = jax.eval_shape(trip, jnp.asarray(0), *given)
    except Exception:  # noqa: BLE001 - it needs the number of the trip; unrolled, it says so if it was another fault
        return None, False
    same = all(one.shape == other.shape and one.dtype == other.dtype for one, other in zip(given, shapes, strict=False))
    return (shapes if same else None), goes_on[-1]


def unrolled(most: int, state: Any, body: Callable[..., Any], collects: int) -> Any:
    """Run the trips one after the other, their numbers known."""
    if not 0 <= most <= MOST_UNROLLED:
        times = "as often as it goes on" if most < 0 else f"{most} times"
        raise ValueError(
            f"it runs {times} and its values change their shapes or need the number of the trip; jax unrolls "
            f"{MOST_UNROLLED} trips at most"
        )
    going: Array = np.asarray(True)
    collected = []
    for number in range(most):
        if not known(going):
            raise ValueError("it ends by what it computes, while its values change their shapes")
        if not bool(np.reshape(going, -1)[0]):
            break
        going, *made = body(np.asarray(number), going, *state)
        state, new = tuple(made[: len(state)]), made[len(state) :]
        collected.append(new)
    if collects and not collected:
        raise ValueError("it runs no time, and what it would collect has no known shape")
    return (*state, *(jnp.stack([jnp.asarray(value) for value in values]) for values in zip(*collected, strict=True)))


def while_going(trips: Array | None, going: Array, state: Any, body: Callable[..., Any]) -> Any:
    """Run a loop that ends by a value; with few trips at most in a way that has gradients."""
    shapes, _ = keeps_shapes(state, body)
    if shapes is None:
        raise ValueError("it ends by what it computes, while its values change their shapes")
    if len(shapes) > len(state):
        raise ValueError("it ends by what it computes, and collects a value of every trip")
    start = (jnp.reshape(going, ()), *as_arrays(state))

    def trip(number: Array, carried: Any) -> Any:
        going, *made = as_arrays(body(number, *carried))
        return (jnp.reshape(going, ()), *made)

    if trips is not None and known(trips) and int(np.reshape(trips, -1)[0]) <= MOST_UNROLLED:

        def step(carried: Any, number: Array) -> Any:
            return lax.cond(carried[0], lambda: trip(number, carried), lambda: carried), None

        return lax.scan(step, start, jnp.arange(max(int(np.reshape(trips, -1)[0]), 0)))[0][1:]
    limit = None if trips is None else jnp.reshape(jnp.asarray(trips), ())

    def holds(carried: Any) -> Array:
        number, goes_on = carried[0], carried[1]
        return goes_on if limit is None else goes_on & (number < limit)

    return lax.while_loop(holds, lambda c: (c[0] + 1, *trip(c[0], c[1:])), (jnp.asarray(0), *start))[2:]


def scan(
    *values: Array,
    body: Callable[..., Any],
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] = (),
    scan_input_directions: tuple[int, ...] = (),
    scan_output_axes: tuple[int, ...] = (),
    scan_output_directions: tuple[int, ...] = (),
) -> Any:
    """Run a body for every slice of some inputs; put together what it gives for each."""
    count = len(values) - num_scan_inputs
    state = as_arrays(values[:count])
    sliced = []
    for i, value in enumerate(values[count:]):
        moved = jnp.moveaxis(jnp.asarray(value), scan_input_axes[i] if i < len(scan_input_axes) else 0, 0)
        turned = i < len(scan_input_directions) and scan_input_directions[i]
        sliced.append(jnp.flip(moved, 0) if turned else moved)

    def step(carried: Any, slices: Any) -> Any:
        made = as_arrays(body(*carried, *slices))
        return made[:count], made[count:]

    last, collected = lax.scan(step, state, tuple(sliced))
    results = []
    for i, value in enumerate(collected):
        turned = i < len(scan_output_directions) and scan_output_directions[i]
        flipped = jnp.flip(value, 0) if turned else value
        results.append(jnp.moveaxis(flipped, 0, scan_output_axes[i] if i < len(scan_output_axes) else 0))
    return (*last, *results)


def scan_of_batch(
    lengths: Array | None, *values: Array, body: Callable[..., Any], num_scan_inputs: int,
    directions: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    """Before opset 9: for every sample of a batch."""
    if lengths is not None:
        raise ValueError("its sequences have lengths of their own")

    def one(*sample: Array) -> Any:
        return scan(*sample, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)

    return jax.vmap(one)(*as_arrays(values))
