"""A stage of an ONNX model in memory: an ``nn.Module`` that runs the ops of the table one after the other.

Its parameters bear the names of the model's initializers. Values between ops are tensors, or host values (see
``onnx_ops/shape_arithmetic.py``) where they are made of shapes alone.

Left out: how a model becomes steps (``from_onnx.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heterps_compile.errors import BackendError, HeterpsError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.torch_reasons import whole_reason
from heterps_compile.progress import check

from .holder import Slot
from .onnx_ops.dtypes import TORCH_TYPES, as_tensor
from .onnx_ops.shape_arithmetic import host_tensor, number_of

_NAME_SHOWN = 80
_REASON_SHOWN = 300
_NOTHING = nullcontext()
_BRANCH = frozenset({"NonMaxSuppression", "RoiAlign", "Unique", "If", "Loop", "Scan"})
_MAKE_NUMBERS = frozenset({"Shape", "Size"})
_NUMBERS = ("ints", "int", "floats", "float")


@dataclass(frozen=True, slots=True)
class Argument:
    """What a step takes as one input.

    Attributes:
        place: Where the value lies, or None for an absent input.
        kind: As in :class:`~.onnx_ops.table.OpVersion`, or ``"host"`` for a step of shape arithmetic, or ``"any"`` for
            a value that is handed on as it is.
        number: ONNX's data type of it.
    """

    place: int | None
    kind: str
    number: int = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One node.

    Attributes:
        node: Its name, for messages.
        op: Its op, for messages.
        run: The function of the table.
        arguments: Its inputs.
        keywords: Its attributes, and what else the function wants.
        outputs: Where its outputs go, None for those nobody reads.
        last: Places that nobody reads afterwards.
        names: Of its outputs, for whoever prints them.
    """

    node: str
    op: str
    run: Callable[..., Any]
    arguments: tuple[Argument, ...]
    keywords: Mapping[str, Any]
    outputs: tuple[int | None, ...]
    last: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A subgraph, as control flow runs it.

    Attributes:
        index: Of the stage.
        takes: How many values it takes: its own inputs, then what it captures.
        steps: Its nodes. Places count the values it takes, then all others.
        constants: What lies at every place before it runs, None where it is not known.
        returned: Place and ONNX data type of every output.
    """

    index: int
    takes: int
    steps: tuple[Step, ...]
    constants: tuple[Any, ...]
    returned: tuple[tuple[int, int], ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run on what it takes; give tensors, and host values as they are.

        Raises:
            BackendError: naming stage, node and op.
        """
        env = [*values, *self.constants[self.takes :]]
        device = next((value.device for value in values if isinstance(value, Tensor)), None)
        _run_steps(self.index, self.steps, env, device, None)
        return tuple(env[place] for place, _ in self.returned)

    def tensors(self, *values: Any) -> tuple[Tensor, ...]:
        """Run on what it takes; give tensors alone."""
        device = next((value.device for value in values if isinstance(value, Tensor)), None)
        made = zip(self(*values), self.returned, strict=True)
        return tuple(as_given(value, number, device) for value, (_, number) in made)


class OnnxStage(nn.Module):
    """One runnable stage; ``state_dict`` keys are names of the model's initializers.

    Attributes:
        index: Its place in the order of execution.
        inputs: Names of the values ``forward`` takes, in order: tensors or arrays.
        outputs: Names of the values it gives, in order: a tuple of tensors.
        parameter_names: Names of the tensors it holds, in the order :meth:`run_on` takes them.
        tied_as: Of its tensors that go by several names in the model: the one the plan has, by its name here.
        made: What its nodes read, by name: places of inputs, or what makes a value of all inputs.
    """

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameter_names: tuple[str, ...]
    tied_as: Mapping[str, str]
    made: Mapping[str, int | Callable[[Sequence[Tensor]], Any]]
    _slots: tuple[Slot, ...]
    _steps: tuple[Step, ...]
    _constants: Sequence[Any]
    _returned: tuple[tuple[int, int], ...]

    def __init__(self, index: int, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> None:
        super().__init__()
        # straight into the instance, which goes before a submodule or parameter of the same name
        self.__dict__.update(index=index, inputs=inputs, outputs=outputs, parameter_names=(), tied_as={})
        self.__dict__["made"] = {name: place for place, name in enumerate(inputs)}

    def program(
        self,
        slots: Mapping[str, Slot],
        steps: Sequence[Step],
        constants: Sequence[Any],
        returned: Sequence[tuple[int, int]],
    ) -> None:
        """Say what it runs.

        Args:
            slots: Where it holds its tensors, by name.
            steps: Its nodes. Places count the tensors it holds, then its inputs, then all other values.
            constants: What lies at every place before it runs, None where it is not known.
            returned: Place and ONNX data type of every output.
        """
        self.__dict__.update(
            parameter_names=tuple(slots),
            _slots=tuple(slots.values()),
            _steps=tuple(steps),
            _constants=list(constants),
            _returned=tuple(returned),
        )

    def forward(self, *values: Any) -> tuple[Tensor, ...]:
        """Run the stage on its inputs in order, arrays or tensors."""
        tensors = [table[key] for table, key in self._slots]
        device = tensors[0].device if tensors else None
        given = [_as_input(value, device) for value in values]
        return self.run_on(tensors, given)

    @property
    def reader_of_elements(self) -> tuple[Step, str] | None:
        """Return the first step that branches on elements of a tensor, or takes a number out of one, and its name."""
        known = {place for place, value in enumerate(self._constants) if value is not None}
        names = dict(enumerate((*self.parameter_names, *self.made)))
        for step in self._steps:
            read = [a.place for a in step.arguments if a.kind in _NUMBERS and a.place not in (None, *known)]
            if step.op in _BRANCH or read:
                return step, names.get((read or [step.arguments[0].place])[0] or 0, "")
            if all(a.kind == "host" for a in step.arguments) or step.op in _MAKE_NUMBERS:
                known.update(place for place in step.outputs if place is not None)
            names |= {place: name for place, name in zip(step.outputs, step.names, strict=False) if place is not None}
        return None

    def run_on(
        self,
        tensors: Sequence[Tensor],
        values: Sequence[Tensor],
        around: Callable[[Step], AbstractContextManager[Any]] | None = None,
    ) -> tuple[Tensor, ...]:
        """Run on the tensors it holds, given in order, and its inputs.

        Args:
            tensors: What it holds.
            values: Its inputs.
            around: Gives a context for every step to run in.

        Raises:
            BackendError: naming stage, node and op.
        """
        if len(values) != len(self.inputs):
            raise BackendError(f"stage {self.index} takes {len(self.inputs)} values, and {len(values)} are given")
        given = (*tensors, *(values[m] if isinstance(m, int) else m(values) for m in self.made.values()))
        env = [*given, *self._constants[len(given) :]]
        device = next((t.device for t in (*tensors, *values)), None)
        _run_steps(self.index, self._steps, env, device, around)
        return tuple(as_given(env[place], number, device) for place, number in self._returned)


def _run_steps(
    index: int,
    steps: Sequence[Step],
    env: list[Any],
    device: torch.device | None,
    around: Callable[[Step], AbstractContextManager[Any]] | None,
) -> None:
    """Run steps one after the other on the values at their places."""
    for step in steps:
        check()
        try:
            with around(step) if around else _NOTHING:
                inputs = [_argument(a, env, device) for a in step.arguments]
                results = step.run(*inputs, **step.keywords)
        except HeterpsError:
            raise
        except Exception as error:
            raise BackendError(_message(index, step, error)) from error
        for place, result in zip(step.outputs, results if isinstance(results, tuple) else (results,), strict=False):
            if place is not None:
                env[place] = result
        for place in step.last:
            env[place] = None


def _message(index: int, step: Step, error: Exception) -> str:
    node, op = (printable(shorten(text, _NAME_SHOWN)) for text in (step.node, step.op))
    reason = shorten(whole_reason(error), _REASON_SHOWN)
    return f"stage {index}: node {node!r} ({op}) cannot be run: {reason}"


def _as_input(value: Any, device: torch.device | None) -> Tensor:
    tensor = value if isinstance(value, Tensor) else as_tensor(np.asarray(value))
    return tensor if device is None or tensor.device == device else tensor.to(device)


def as_given(value: Any, number: int, device: torch.device | None) -> Tensor:
    """Return a tensor or host value as a tensor of an ONNX data type, 0 for the one it has."""
    if not isinstance(value, Tensor):
        return host_tensor(np.asarray(value), number or number_of(value), device)
    # an op of the table may give a wider integer than ONNX has there
    wanted = TORCH_TYPES.get(number)
    return value if wanted is None or value.dtype == wanted else value.to(wanted)


def _argument(argument: Argument, env: Sequence[Any], device: torch.device | None) -> Any:
    if argument.place is None:
        return None
    value, kind = env[argument.place], argument.kind
    if kind == "tensor" and isinstance(value, Tensor):
        return value
    if kind in ("host", "any"):
        return value
    if kind == "tensor":
        return host_tensor(np.asarray(value), argument.number or number_of(value), device)
    if kind == "scalar":
        if isinstance(value, Tensor):
            return value
        return value.reshape(-1).tolist()[0] if value.ndim == 0 else host_tensor(value, argument.number or 7, device)
    numbers = value.reshape(-1).tolist()
    return numbers if kind in ("ints", "floats") else numbers[0]
