"""If, Loop and Scan: plain Python while a stage runs, so that gradients go through whatever ran.

While a stage is traced to be written, a condition that is known then (a size, a constant) is decided then, and a loop
whose number of trips is known is unrolled. Other conditions become ``torch.cond``, other loops ``while_loop``, which
are written as ``if`` and ``while``.

Left out: a written loop that collects a value of every trip while its trips depend on what is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .onnx_stage import Body, as_given

_ANY_NUMBER = 2**62
_MOST_TRIPS_WRITTEN = 512

_higher_order: Any = torch.ops.higher_order


def _truth(value: Any) -> bool:
    return bool(value.reshape(-1)[0])


def _is_traced(value: Any) -> bool:
    """Say whether a value will be known only when what is traced runs."""
    return isinstance(value, Tensor) and torch.compiler.is_exporting()


def if_(condition: Any, *captured: Any, then_branch: Body, else_branch: Body) -> tuple[Any, ...]:
    """Run one of two branches."""
    if not _is_traced(condition):
        return (then_branch if _truth(condition) else else_branch)(*captured)
    places = [i for i, value in enumerate(captured) if isinstance(value, Tensor)]

    def traced(branch: Body) -> Any:
        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = list(captured)
            for place, tensor in zip(places, tensors, strict=True):
                values[place] = tensor
            return _apart(branch.tensors(*values), tensors)

        return run

    operands = tuple(captured[i] for i in places)
    made: tuple[Tensor, ...] = _higher_order.cond(
        condition.reshape(()), traced(then_branch), traced(else_branch), operands
    )
    return made


def _apart(made: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copy what would be the same memory as what is given, or as another result."""
    found: list[Tensor] = []
    for tensor in made:
        is_same = any(tensor is other for other in (*given, *found)) or tensor._is_view()
        found.append(tensor.clone() if is_same else tensor)
    return tuple(found)


def loop(
    trips: Any,
    condition: Any,
    *values: Any,
    body: Body,
    given: int,
    is_counted: bool,
    shapes: Sequence[list[int] | None],
) -> tuple[Any, ...]:
    """Run a body while its condition holds, at most so many times.

    Args:
        trips: At most so many; None for any number.
        condition: Whether to run it at all; None for True.
        values: What is carried, then what the body captures.
        body: Takes the number of the trip, the condition, what is carried and what is captured; gives the condition,
            what is carried, and what is collected.
        given: How many inputs the node has.
        is_counted: Whether shapes and constants alone say how often it runs.
        shapes: Of what the body gives, where they are numbers.
    """
    state, captured = list(values[: given - 2]), values[given - 2 :]
    collected: list[list[Any]] = [[] for _ in body.returned[1 + len(state) :]]
    if torch.compiler.is_exporting() and not is_counted:
        return _traced_loop(trips, condition, state, captured, body)
    most = _ANY_NUMBER if trips is None else _number(trips)
    going: Any = np.asarray(True) if condition is None else condition
    trip = 0
    while trip < most and _truth(going):
        going, *made = body(np.asarray(trip, np.int64), going, *state, *captured)
        state, new = made[: len(state)], made[len(state) :]
        for values_so_far, value in zip(collected, new, strict=True):
            values_so_far.append(value)
        trip += 1
        if trip > _MOST_TRIPS_WRITTEN and torch.compiler.is_exporting():
            raise ValueError(f"it runs more than {_MOST_TRIPS_WRITTEN} times, too often to be written out")
    first = 1 + len(state)
    device = next((v.device for v in (*state, *captured) if isinstance(v, Tensor)), None)
    kinds = zip(collected, body.returned[first:], shapes[first:], strict=True)
    return (*state, *(_stacked(values, number, shape, device) for values, (_, number), shape in kinds))


def _number(value: Any) -> int:
    number = value.reshape(-1)[0]
    return int(number)


def _stacked(values: Sequence[Any], number: int, shape: list[int] | None, device: torch.device | None) -> Tensor:
    if values:
        return torch.stack([as_given(value, number, device) for value in values])
    if shape is None or not number:
        raise ValueError("it runs no time, and the model does not say what shape it would collect")
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    return as_given(empty, number, device).reshape(0, *shape)


def _traced_loop(
    trips: Any, condition: Any, state: Sequence[Any], captured: Sequence[Any], body: Body
) -> tuple[Any, ...]:
    """Trace a loop whose trips only what runs can count."""
    if len(body.returned) > 1 + len(state):
        raise ValueError("how often it runs depends on what the model computes, and it collects a value of every trip")
    places = [i for i, value in enumerate(captured) if isinstance(value, Tensor)]
    numbers = [number for _, number in body.returned]
    carried = [as_given(v, n, None) for v, n in zip(state, numbers[1:], strict=True)]
    device = next((tensor.device for tensor in (*carried, *captured) if isinstance(tensor, Tensor)), None)
    counter = torch.zeros((), dtype=torch.int64, device=device)
    going = torch.ones((), dtype=torch.bool, device=device) if condition is None else as_given(condition, 9, device)
    limit = None if trips is None else as_given(trips, 7, device).reshape(())
    extra = ([] if limit is None else [limit]) + [captured[i] for i in places]

    def holds(trip: Tensor, going: Tensor, *rest: Tensor) -> Tensor:
        return going.clone() if limit is None else going & (trip < rest[len(carried)])

    def run(trip: Tensor, going: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        values = list(captured)
        for place, tensor in zip(places, rest[len(rest) - len(places) :], strict=True):
            values[place] = tensor
        made = body.tensors(trip, going, *rest[: len(carried)], *values)
        return _apart((trip + 1, made[0].reshape(()), *made[1:]), (trip, going, *rest))

    start = (counter, going.reshape(()), *(tensor.clone() for tensor in carried))
    made: tuple[Tensor, ...] = _higher_order.while_loop(holds, run, start, tuple(extra))
    return made[2:]


@dataclass(frozen=True, slots=True)
class _Sliced:
    """How many inputs of a Scan are sliced, along which axes, and 1 for those from the end."""

    count: int
    axes: Sequence[int] = ()
    directions: Sequence[int] = ()


def scan(
    *values: Any,
    body: Body,
    given: int,
    shapes: Sequence[list[int] | None],
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> tuple[Any, ...]:
    """Run a body for every slice of some inputs; collect what it gives for each.

    Args:
        values: What is carried, what is sliced, then what the body captures.
        body: Takes what is carried, the slices and what is captured; gives what is carried and what is collected.
        given: How many inputs the node has.
        shapes: Of what the body gives, where they are numbers.
        num_scan_inputs: How many inputs are sliced.
        scan_input_axes: Along which axes.
        scan_input_directions: 1 where from the end.
        scan_output_axes: Along which axes what is collected is put together.
        scan_output_directions: 1 where from the end.
    """
    sliced = _Sliced(num_scan_inputs, scan_input_axes, scan_input_directions)
    made = _scan(values[:given], values[given:], body, sliced, shapes)
    carried = given - num_scan_inputs
    collected = []
    for i, value in enumerate(made[carried:]):
        turned = value.flip(0) if i < len(scan_output_directions) and scan_output_directions[i] else value
        axis = scan_output_axes[i] if i < len(scan_output_axes) else 0
        collected.append(turned.movedim(0, axis) if axis else turned)
    return (*made[:carried], *collected)


def scan_of_batch(
    lengths: Any,
    *values: Any,
    body: Body,
    given: int,
    shapes: Sequence[list[int] | None],
    num_scan_inputs: int,
    directions: Sequence[int] = (),
) -> tuple[Any, ...]:
    """Before opset 9: for every sample of a batch; the arguments are those of :func:`scan`."""
    if lengths is not None:
        raise ValueError("its sequences have lengths of their own")
    batched, captured = values[: given - 1], values[given - 1 :]
    sliced = _Sliced(num_scan_inputs, (), directions)
    every = [_scan([v[i] for v in batched], captured, body, sliced, shapes) for i in range(batched[0].shape[0])]
    return tuple(torch.stack(parts) for parts in zip(*every, strict=True))


def _scan(
    given: Sequence[Tensor],
    captured: Sequence[Any],
    body: Body,
    sliced: _Sliced,
    shapes: Sequence[list[int] | None],
) -> list[Tensor]:
    count = len(given) - sliced.count
    axes, directions = sliced.axes, sliced.directions
    state: list[Any] = list(given[:count])
    sequences = [v.movedim(axes[i], 0) if i < len(axes) else v for i, v in enumerate(given[count:])]
    length = sequences[0].shape[0]
    if any(sequence.shape[0] != length for sequence in sequences):
        raise ValueError(f"it slices inputs of different lengths ({[s.shape[0] for s in sequences]})")
    if length > _MOST_TRIPS_WRITTEN and torch.compiler.is_exporting():
        raise ValueError(f"it runs {length} times, and more than {_MOST_TRIPS_WRITTEN} are too many to be written out")
    collected: list[list[Tensor]] = [[] for _ in body.returned[count:]]
    for step in range(length):
        places = [length - 1 - step if i < len(directions) and directions[i] else step for i in range(sliced.count)]
        made = body.tensors(*state, *(s[place] for s, place in zip(sequences, places, strict=True)), *captured)
        state = list(made[:count])
        for so_far, value in zip(collected, made[count:], strict=True):
            so_far.append(value)
    kinds = zip(collected, body.returned[count:], shapes[count:], strict=True)
    return [*state, *(_stacked(values, number, shape, given[0].device) for values, (_, number), shape in kinds)]
