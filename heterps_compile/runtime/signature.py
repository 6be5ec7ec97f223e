"""How a call's arguments become graph inputs, and graph outputs what the model returns.

An ONNX model takes arrays by position or name and returns a list. A PyTorch model's nested structures are
kept by its front end (``frontends/torch_call.py``), which is imported only for such models.

Left out: what the values are; a stage checks its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from heterps_compile.errors import InputError, PlanError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.structures import Accepts, accepts_from_json, accepts_to_json, structures_of_call
from heterps_compile.ir.graph import TORCH, Graph
from heterps_compile.plan.plan import Plan


class Signature(Protocol):
    """Maps calls to graph inputs and graph outputs to results."""

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return graph inputs by name.

        Raises:
            InputError: where the arguments are not those of the model.
        """
        ...

    def assemble(self, values: Mapping[str, Any]) -> Any:
        """Return what the model returns out of graph outputs by name."""
        ...

    def to_json(self) -> str:
        """Return text that :func:`signature_of_plan` reads back."""
        ...


@dataclass(frozen=True, slots=True)
class ArraySignature:
    """Arrays in, by position or name; a list of arrays out, as an ONNX Runtime session gives.

    Attributes:
        inputs: Names, in the model's order.
        outputs: Names, in the model's order, repeats allowed.
        accepts: Dtype and shape of each input, dimensions that may vary by name; empty in an older plan.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    accepts: Mapping[str, Accepts] = field(default_factory=dict)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return graph inputs by name."""
        takes = f"the model takes {', '.join(map(repr, self.inputs)) or 'nothing'}"
        if len(args) > len(self.inputs):
            raise InputError(f"{len(args)} arguments are given; {takes}")
        values = dict(zip(self.inputs, args, strict=False))
        for name, value in kwargs.items():
            if name not in self.inputs:
                raise InputError(f"there is no input {name!r}; {takes}")
            if name in values:
                raise InputError(f"input {name!r} is given twice, by position and by name")
            values[name] = value
        missing = [name for name in self.inputs if name not in values]
        if missing:
            raise InputError(f"input {missing[0]!r} is missing; {takes}")
        return values

    def assemble(self, values: Mapping[str, Any]) -> list[Any]:
        """Return the outputs as a list."""
        return [values[name] for name in self.outputs]

    def to_json(self) -> str:
        """Return text; the plan has the names already."""
        return json.dumps({"kind": "arrays", "accepts": accepts_to_json(self.accepts)})


def signature_of_graph(graph: Graph) -> Signature:
    """Return the signature of a model that was just read."""
    if graph.family == TORCH:
        from heterps_compile.frontends.torch_call import CallStructure  # noqa: PLC0415 - torch only for torch models

        structure: CallStructure = graph.source.call
        return structure
    accepts = {name: Accepts(graph.values[name].dtype, graph.values[name].shape) for name in graph.inputs}
    return ArraySignature(graph.inputs, graph.outputs, accepts)


def is_of_a_module(plan: Plan) -> bool:
    """Tell whether a plan is of a PyTorch model, which has a training and an evaluation mode."""
    try:
        return bool(json.loads(plan.signature)["kind"] == TORCH)
    except (ValueError, TypeError, KeyError):
        return False


def signature_of_plan(plan: Plan) -> Signature:
    """Return the signature of a model that is loaded from its plan.

    Raises:
        PlanError: where the plan's signature is none.
    """
    content = _content(plan)
    if content["kind"] == "arrays":
        return ArraySignature(plan.graph_inputs, plan.graph_outputs, _accepts_of_arrays(content))
    from heterps_compile.frontends.torch_call import call_from_json  # noqa: PLC0415 - torch only for torch models

    structure: Signature = call_from_json(content)
    return structure


def check_signature(plan: Plan) -> None:
    """Check that a plan says how its model is called, without PyTorch and whatever library the model came from.

    Raises:
        PlanError: where the plan's signature is none.
        InputError: where it does not say how the model is called.
    """
    content = _content(plan)
    if content["kind"] == "arrays":
        _accepts_of_arrays(content)
    else:
        structures_of_call(content)


def _accepts_of_arrays(content: Mapping[str, Any]) -> dict[str, Accepts]:
    try:
        return accepts_from_json(content.get("accepts", {}))
    except (TypeError, ValueError, AttributeError) as error:
        shown = shorten(printable(str(error)), 100)
        raise PlanError(
            f"model.signature: the inputs have no dtypes and shapes: {shown}. Fix: compile again"
        ) from error


def _content(plan: Plan) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(plan.signature)
        kind = content["kind"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise PlanError(f"model.signature: {plan.signature[:60]!r} is no signature") from error
    if kind not in ("arrays", TORCH):
        raise PlanError(f"model.signature: unknown kind {str(kind)[:60]!r}; expected 'arrays' or 'torch'")
    return content
