"""Turn an ONNX model, whole or one stage of it, into a module that runs and trains.

What becomes of constants:

1. Float initializers that the graph calls weights are parameters under their own names; nodes that only reshape them
   run in the module, so that gradients reach the initializer.
2. What nodes make of other constants is computed here, once.
3. A constant that is read as a shape, an axis or a number stands in the program; one that is read as a tensor is a
   buffer, which ``state_dict`` has where the constant is an initializer.

Left out: what the ops do (``onnx_ops/``), and source code (``lower_onnx.py``, ``print_stage.py``).
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from heterps_compile.backends.unsupported import UnsupportedNode, reason_without_row
from heterps_compile.errors import BackendError, UnsupportedOpError
from heterps_compile.escape import printable

from .holder import Slot, hold_tensor
from .onnx_ops.dtypes import as_tensor
from .onnx_ops.shape_arithmetic import LARGEST, SHAPE_ARITHMETIC
from .onnx_ops.table import NEWEST_OPSET, OpVersion, find_op
from .onnx_stage import Argument, OnnxStage, Step

_MAKES_HOST = frozenset({"Shape", "Size"})


def find_unsupported(nodes: Sequence[ir.Node], opsets: Mapping[str, int]) -> list[UnsupportedNode]:
    """Give the nodes that the table cannot run, and why."""
    found = []
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        opset = _opset(opsets, domain)
        reason = _missing(node, domain, opset)
        if reason:
            found.append(UnsupportedNode(node.name or "", node.op_type, domain or "ai.onnx", opset, reason))
    return found


def _opset(opsets: Mapping[str, int], domain: str) -> int:
    return opsets.get(domain, opsets.get("ai.onnx", 1) if domain == "" else 1)


def _missing(node: ir.Node, domain: str, opset: int) -> str:
    if domain == "" and opset > NEWEST_OPSET:
        return f"the torch backend knows opsets up to {NEWEST_OPSET}"
    version = find_op(domain, node.op_type, opset)
    if version is None:
        return reason_without_row("torch", node.op_type)
    unknown = [name for name in node.attributes if name not in version.attributes]
    if unknown:
        return f"the torch backend does not know its attribute {printable(unknown[0])!r}"
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return "it refers to an attribute of a function"
    if any(version.kind(i) is None for i, value in enumerate(node.inputs) if value is not None):
        return f"the torch backend takes {len(version.kinds)} inputs of it, and it has {len(node.inputs)}"
    return ""


@dataclass(frozen=True)
class ModelConstants:
    """What the stages of one model share.

    Attributes:
        is_weight: Whether the graph calls a constant a weight, by its name.
        number: ONNX data type of a value by its name, 0 where nobody knows.
        tensors: Constants that were made already, by name; stages that read the same one share it.
    """

    is_weight: Callable[[str], bool | None]
    number: Callable[[str], int]
    tensors: MutableMapping[str, Tensor] = field(default_factory=dict)


def convert_model(
    model: ir.Model, constants: ModelConstants, *, index: int = 0, outputs: Sequence[str] | None = None
) -> OnnxStage:
    """Turn a model into a stage.

    Args:
        model: The model, or a part of one.
        constants: What is known of the whole model.
        index: Of the stage.
        outputs: Names of the values to give, where they are not the model's own outputs.

    Raises:
        UnsupportedOpError: naming the first node that the table cannot run.
        BackendError: for a constant that is no tensor.
    """
    faults = find_unsupported(list(model.graph), model.graph.opset_imports)
    if faults:
        more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise UnsupportedOpError(f"stage {index}: {faults[0].describe()}{more}")
    inputs = tuple(value.name or "" for value in model.graph.inputs if not value.is_initializer())
    returned = tuple(value.name or "" for value in model.graph.outputs) if outputs is None else tuple(outputs)
    return _Converter(model, constants, OnnxStage(index, inputs, returned)).convert()


class _Converter:
    """Lays out the nodes of one model as steps over numbered places."""

    def __init__(self, model: ir.Model, constants: ModelConstants, stage: OnnxStage) -> None:
        self.model, self.constants, self.stage = model, constants, stage
        self._known: dict[str, Tensor] = {}  # constants other than weights, by name
        self._initializers = model.graph.initializers
        self._slots: dict[str, Slot] = {}
        self._hosts: set[str] = set()
        self._plan: list[tuple[ir.Node, OpVersion, str]] = []

    def convert(self) -> OnnxStage:
        for node in self.model.graph:
            self._sort_in(node)
        wanted = [(node, self._wants(node, version, mode)) for node, version, mode in self._plan]
        held = dict.fromkeys(
            name for _, wants in wanted for name, kind in wants if kind == "tensor" and self._is_constant(name)
        )
        held.update(dict.fromkeys(name for name in self.stage.outputs if self._is_constant(name)))
        for name in held:
            self._hold(name)
        places = {("tensor", name): i for i, name in enumerate((*self._slots, *self.stage.inputs))}
        constants: list[Any] = [None] * len(places)
        last_reader: dict[int, int] = {}
        steps = []
        for position, ((node, version, mode), (_, wants)) in enumerate(zip(self._plan, wanted, strict=True)):
            arguments = []
            for (name, kind), value in zip(wants, node.inputs, strict=True):
                place = None if value is None else self._place(name, kind, places, constants)
                arguments.append(Argument(place, kind, self._number(name)))
                if place is not None:
                    last_reader[place] = position
            outputs = tuple(self._output(out, places, constants) for out in node.outputs)
            names = tuple(out.name or "" for out in node.outputs)
            run = SHAPE_ARITHMETIC[node.op_type] if mode == "host" else version.run
            keywords = self._keywords(node, version, mode)
            steps.append(Step(node.name or "", node.op_type, run, tuple(arguments), keywords, outputs, (), names))
        returned = [(places["tensor", name], self._number(name)) for name in self.stage.outputs]
        kept = {place for place, _ in returned} | {i for i, c in enumerate(constants) if c is not None}
        kept |= set(range(len(self._slots)))
        freed: dict[int, list[int]] = {}
        for place, position in last_reader.items():
            if place not in kept:
                freed.setdefault(position, []).append(place)
        steps = [_with_last(step, tuple(freed.get(i, ()))) for i, step in enumerate(steps)]
        self.stage.program(self._slots, steps, constants, returned)
        return self.stage

    def _sort_in(self, node: ir.Node) -> None:
        """Compute a node now if it is made of constants, else say how it will run."""
        opset = _opset(self.model.graph.opset_imports, "" if node.domain == "ai.onnx" else node.domain)
        version = find_op(node.domain, node.op_type, opset)
        assert version is not None  # noqa: S101 - find_unsupported has seen to it; this tells the type checker
        names = [value.name or "" for value in node.inputs if value is not None]
        if self._folds(node, version):
            self._fold(node, version)
            return
        is_arithmetic = node.op_type in SHAPE_ARITHMETIC and node.domain in ("", "ai.onnx")
        all_host = all(name in self._hosts or self._is_small(name) for name in names)
        if is_arithmetic and all_host and any(name in self._hosts for name in names):
            self._hosts.update(out.name or "" for out in node.outputs)
            self._plan.append((node, version, "host"))
            return
        if node.op_type in _MAKES_HOST:
            self._hosts.update(out.name or "" for out in node.outputs)
        self._plan.append((node, version, "op"))

    def _folds(self, node: ir.Node, version: OpVersion) -> bool:
        for place, value in enumerate(node.inputs):
            if value is None:
                continue
            name = value.name or ""
            is_number = version.kind(place) not in ("tensor", "scalar")
            if not self._is_constant(name) or (self._weighs(name) and not is_number):
                return False
        return not node.op_type.startswith("Random")

    def _fold(self, node: ir.Node, version: OpVersion) -> None:
        arguments: list[Any] = []
        for place, value in enumerate(node.inputs):
            kind = version.kind(place)
            name = "" if value is None else value.name or ""
            if value is None:
                arguments.append(None)
            elif kind in ("tensor", "scalar"):
                arguments.append(self._constant(name))
            else:
                numbers = self._constant(name).reshape(-1).tolist()
                arguments.append(numbers if kind in ("ints", "floats") else numbers[0])
        try:
            with torch.no_grad():
                results = version.run(*arguments, **self._keywords(node, version, "op"))
        except Exception as error:
            raise BackendError(
                f"stage {self.stage.index}: node {printable(node.name or '')!r} ({printable(node.op_type)}) makes a "
                f"constant, and cannot be run: {printable(str(error))}"
            ) from error
        for out, result in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=False):
            made = result if isinstance(result, Tensor) else as_tensor(np.asarray(result))
            self._known[out.name or ""] = made

    def _is_constant(self, name: str) -> bool:
        return name in self._known or name in self._initializers

    def _weighs(self, name: str) -> bool:
        """Say whether a constant is trained: the graph tells of those its nodes read, and floats of rank 1 are."""
        told = self.constants.is_weight(name)
        if told is not None or name not in self._initializers:
            return bool(told)
        tensor = self._initializers[name].const_value
        return tensor is not None and tensor.dtype.is_floating_point() and len(tensor.shape) > 0

    def _is_small(self, name: str) -> bool:
        if not self._is_constant(name) or self._weighs(name):
            return False
        if name in self._known:
            return self._known[name].numel() <= LARGEST
        tensor = self._initializers[name].const_value
        return tensor is not None and tensor.size <= LARGEST

    def _constant(self, name: str) -> Tensor:
        if name in self._known:
            return self._known[name]
        if name not in self.constants.tensors:
            tensor = self._initializers[name].const_value
            if tensor is None or tensor.dtype is ir.DataType.STRING:
                raise BackendError(
                    f"stage {self.stage.index}: the constant {printable(name)!r} is no tensor of numbers"
                )
            try:
                self.constants.tensors[name] = as_tensor(np.asarray(tensor.numpy()))
            except (OSError, ValueError, TypeError) as error:
                raise BackendError(
                    f"stage {self.stage.index}: the tensor {printable(name)!r} cannot be read: "
                    f"{printable(str(error))}; mend the model's files"
                ) from error
        return self.constants.tensors[name]

    def _hold(self, name: str) -> None:
        tensor = self._constant(name)
        shared = self.constants.tensors
        if self._weighs(name) and tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
            tensor = shared[name] if isinstance(shared.get(name), nn.Parameter) else nn.Parameter(tensor)
        shared[name] = tensor
        self._slots[name] = hold_tensor(self.stage, name, tensor, is_transient=name not in self._initializers)

    def _wants(self, node: ir.Node, version: OpVersion, mode: str) -> list[tuple[str, str]]:
        """Give name and kind of every input; a number is taken as a tensor where it is one when the model runs."""
        wants = []
        for place, value in enumerate(node.inputs):
            name = "" if value is None else value.name or ""
            kind = "host" if mode == "host" else version.kind(place) or "tensor"
            if kind == "scalar" and value is not None:
                is_number = name in self._hosts or (self._is_small(name) and self._constant(name).dim() == 0)
                kind = "scalar" if is_number else "tensor"
            wants.append((name, kind))
        return wants

    def _place(self, name: str, kind: str, places: dict[tuple[str, str], int], constants: list[Any]) -> int:
        if kind == "tensor" or not self._is_constant(name):
            return places["tensor", name]
        if ("host", name) not in places:
            places["host", name] = len(constants)
            tensor = self._constant(name).detach()
            constants.append((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
        return places["host", name]

    def _output(self, value: ir.Value, places: dict[tuple[str, str], int], constants: list[Any]) -> int | None:
        if not value.name or not (value.uses() or value.name in self.stage.outputs):
            return None
        places["tensor", value.name] = len(constants)
        constants.append(None)
        return places["tensor", value.name]

    def _number(self, name: str) -> int:
        known = self.constants.number(name)
        if not known and name in self._initializers:
            tensor = self._initializers[name].const_value
            return 0 if tensor is None else tensor.dtype.value
        return known

    def _keywords(self, node: ir.Node, version: OpVersion, mode: str) -> dict[str, Any]:
        keywords = {name: _plain(attribute) for name, attribute in node.attributes.items()}
        if mode == "op":
            if "outputs" in version.wants:
                keywords["outputs"] = len(node.outputs)
            if "types" in version.wants:
                keywords["types"] = [0 if v is None else self._number(v.name or "") for v in node.inputs]
            if "result_type" in version.wants:
                keywords["result_type"] = self._number(node.outputs[0].name or "")
        return keywords


def _with_last(step: Step, last: tuple[int, ...]) -> Step:
    return Step(step.node, step.op, step.run, step.arguments, step.keywords, step.outputs, last, step.names)


def _plain(attribute: ir.Attr) -> Any:
    if attribute.type is ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    value = attribute.value
    return list(value) if isinstance(value, (tuple, list)) else value
