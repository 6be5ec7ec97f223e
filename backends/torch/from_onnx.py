"""Turn an ONNX model, whole or one stage of it, into a module that runs and trains.

What becomes of constants:

1. Float initializers that the graph calls weights are parameters under their own names; nodes that only reshape them
   run in the module, so that gradients reach the initializer.
2. What nodes make of other constants is computed here, once.
3. A constant that is read as a shape, an axis or a number stands in the program; one that is read as a tensor is a
   buffer, which ``state_dict`` has where the constant is an initializer.

Left out: what the ops do (``onnx_ops/``), and source code (``lower_onnx.py``, ``print_stage.py``).
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from heterps_compile.backends.onnx_stage.ml_attributes import find_prepare
from heterps_compile.backends.onnx_stage.nodes import OpTable, are_read, domain_of, opset_of
from heterps_compile.backends.onnx_stage.nodes import find_unsupported as nodes_unsupported
from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError, UnsupportedOpError
from heterps_compile.escape import printable
from heterps_compile.frontends.onnx_bodies import lift_initializers
from heterps_compile.frontends.onnx_facts import stated_defaults
from heterps_compile.frontends.onnx_shapes import DTYPES
from heterps_compile.ir.graph import OPAQUE, Graph
from heterps_compile.progress import check

from . import control_flow
from .holder import Slot, hold_tensor
from .onnx_ops.dtypes import as_tensor
from .onnx_ops.shape_arithmetic import LARGEST, SHAPE_ARITHMETIC
from .onnx_ops.table import OpVersion, find_op
from .onnx_stage import Argument, Body, OnnxStage, Step

_NUMBERS = {name: number for number, name in DTYPES.items()}
_MAKES_HOST = frozenset({"Shape", "Size"})
_REASON_SHOWN = 200
_SCAN_WITHOUT_BATCH = 9
"""From this opset on a Scan has no batch dimension of its own."""


_CONTROL = frozenset({"If", "Loop", "Scan"})


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


def constants_of(graph: Graph) -> ModelConstants:
    """Return what the stages of a graph share."""

    def is_weight(name: str) -> bool | None:
        parameter = graph.parameters.get(name)
        return None if parameter is None else parameter.kind == "weight"

    def number(name: str) -> int:
        known = graph.values.get(name) or graph.parameters.get(name)
        return 0 if known is None or known.dtype == OPAQUE else _NUMBERS[known.dtype]

    return ModelConstants(is_weight, number)


def convert_model(
    model: ir.Model,
    constants: ModelConstants,
    *,
    index: int = 0,
    outputs: Sequence[str] | None = None,
    hosts: Iterable[str] = (),
) -> OnnxStage:
    """Turn a model into a stage.

    Args:
        model: The model, or a part of one.
        constants: What is known of the whole model.
        index: Of the stage.
        outputs: Names of the values to give, where they are not the model's own outputs.
        hosts: Inputs that are passed as host values.

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
    lift_initializers(model.graph)
    converter = _Converter(model.graph, model.graph.opset_imports, constants, OnnxStage(index, inputs, returned))
    converter._hosts.update(hosts)
    return converter.convert()


class _Converter:
    """Lays out the nodes of one graph, a model's or a subgraph's, as steps over numbered places."""

    def __init__(
        self,
        graph: ir.Graph,
        opsets: Mapping[str, int],
        constants: ModelConstants,
        stage: OnnxStage,
        outer: "_Converter | None" = None,
    ) -> None:
        self.graph, self.opsets, self.constants, self.stage = graph, opsets, constants, stage
        # names are unique in the whole model, so that a subgraph shares what is known of them
        self._known: dict[str, Tensor] = {} if outer is None else outer._known  # constants other than weights
        self._initializers: Mapping[str, ir.Value] = graph.initializers if outer is None else outer._initializers
        self._hosts: set[str] = set() if outer is None else set(outer._hosts)
        self._slots: dict[str, Slot] = {}
        self._plan: list[_Planned] = []

    def convert(self) -> OnnxStage:
        for node in self.graph:
            check()
            self._sort_in(node)
        for name in self._held(self.stage.outputs):
            self._hold(name)
        taken = (*self._slots, *self.stage.inputs)
        steps, constants, returned = self._lay_out(taken, self.stage.outputs, kept=len(self._slots))
        self.stage.program(self._slots, steps, constants, returned)
        return self.stage

    def _held(self, outputs: Sequence[str]) -> dict[str, None]:
        """Return the names of constants that are needed as tensors."""
        wanted = (name for planned in self._plan for name, kind in planned.wants if kind == "tensor")
        return dict.fromkeys(name for name in (*wanted, *outputs) if self._is_constant(name))

    def _lay_out(
        self, taken: Sequence[str], outputs: Sequence[str], kept: int
    ) -> tuple[list[Step], list[Any], list[tuple[int, int]]]:
        """Return the steps, what lies at every place before they run, and the places of the outputs.

        Args:
            taken: Names of what is given, in order.
            outputs: Names of what is returned.
            kept: How many of what is given must not be let go of.
        """
        places = {("tensor", name): i for i, name in enumerate(taken)}
        constants: list[Any] = [None] * len(places)
        last_reader: dict[int, int] = {}
        steps = []
        for position, planned in enumerate(self._plan):
            arguments = []
            for name, kind in planned.wants:
                place = self._place(name, kind, places, constants) if name else None
                arguments.append(Argument(place, kind, self._number(name)))
                if place is not None:
                    last_reader[place] = position
            node = planned.node
            made = tuple(self._output(out, outputs, places, constants) for out in node.outputs)
            names = tuple(out.name or "" for out in node.outputs)
            steps.append(
                Step(node.name or "", node.op_type, planned.run, tuple(arguments), planned.keywords, made, (), names)
            )
        returned = [
            (places["tensor", name] if ("tensor", name) in places else self._place(name, "host", places, constants),
             self._number(name))
            for name in outputs
        ]  # fmt: skip
        staying = {place for place, _ in returned} | {i for i, c in enumerate(constants) if c is not None}
        staying |= set(range(kept))
        freed: dict[int, list[int]] = {}
        for place, position in last_reader.items():
            if place not in staying:
                freed.setdefault(position, []).append(place)
        return [_with_last(s, tuple(freed.get(i, ()))) for i, s in enumerate(steps)], constants, returned

    def _sort_in(self, node: ir.Node) -> None:
        """Compute a node now if it is made of constants, else say how it will run."""
        domain = domain_of(node)
        if domain == "" and node.op_type in _CONTROL:
            self._plan.append(self._control(node))
            return
        version = find_op(domain, node.op_type, opset_of(self.opsets, domain))
        assert version is not None  # noqa: S101 - find_unsupported has seen to it; this tells the type checker
        names = [value.name or "" for value in node.inputs if value is not None]
        if self._folds(node, version):
            self._fold(node, version)
            return
        is_arithmetic = node.op_type in SHAPE_ARITHMETIC and domain == ""
        all_host = all(name in self._hosts or self._is_small(name) for name in names)
        if is_arithmetic and all_host and any(name in self._hosts for name in names):
            self._hosts.update(out.name or "" for out in node.outputs)
            wants = [("" if value is None else value.name or "", "host") for value in node.inputs]
            self._plan.append(_Planned(node, SHAPE_ARITHMETIC[node.op_type], wants, _attributes(node)))
            return
        if node.op_type in _MAKES_HOST:
            self._hosts.update(out.name or "" for out in node.outputs)
        wants, keywords = self._wants(node, version), self._keywords(node, version)
        prepare = find_prepare(domain, node.op_type)
        if prepare is not None:
            prepared = prepare(_attributes(node), are_read(node))
            wants += [(self._constant_of(node, i, array), "tensor") for i, array in enumerate(prepared.arrays)]
            keywords = dict(prepared.options)
        self._plan.append(_Planned(node, version.run, wants, keywords))

    def _constant_of(self, node: ir.Node, number: int, array: Any) -> str:
        """Keep an array of a node's attributes under a name that no value has."""
        name = f"{node.name or node.op_type}:{number}"
        while self._is_constant(name):
            name += "'"
        self._known[name] = as_tensor(array)
        return name

    def _folds(self, node: ir.Node, version: OpVersion) -> bool:
        for place, value in enumerate(node.inputs):
            if value is None:
                continue
            name = value.name or ""
            is_number = version.kind(place) not in ("tensor", "scalar")
            if not self._is_constant(name) or (self._weighs(name) and not is_number):
                return False
        return not node.op_type.startswith("Random") and find_prepare(node.domain, node.op_type) is None

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
                results = version.run(*arguments, **self._keywords(node, version))
        except Exception as error:
            raise BackendError(
                f"stage {self.stage.index}: node {printable(node.name or '')!r} ({printable(node.op_type)}) makes a "
                f"constant, and cannot be run: {printable(str(error))}"
            ) from error
        for out, result in zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=False):
            made = result if isinstance(result, Tensor) else as_tensor(np.asarray(result))
            self._known[out.name or ""] = made

    def _control(self, node: ir.Node) -> "_Planned":
        """Lay out the subgraphs of a node; what they capture comes behind its inputs."""
        given = [("" if value is None else value.name or "") for value in node.inputs]
        bodies = {name: a.as_graph() for name, a in node.attributes.items() if a.type is ir.AttributeType.GRAPH}
        keywords = {name: _plain(a) for name, a in node.attributes.items() if name not in bodies}
        if node.op_type == "If":
            inner = {name: self._inside(body, ()) for name, body in bodies.items()}
            made = [[name in one._hosts or one._is_small(name) for name in _outputs(one)] for one in inner.values()]
            if self._is_host(given[0]) and all(map(all, made)):
                self._hosts.update(out.name or "" for out in node.outputs)
        elif node.op_type == "Loop":
            inner = {"body": self._loop_body(node, bodies["body"])}
            goes_on = inner["body"]._is_host(_outputs(inner["body"])[0])
            keywords["is_counted"] = goes_on and all(name == "" or self._is_host(name) for name in given[:2])
        else:
            inner = {"body": self._inside(bodies["body"], ())}
        free = dict.fromkeys(name for one in inner.values() for name in one._free())
        as_host = [node.op_type != "Scan"] * len(given)
        if node.op_type == "Loop":
            formals = [value.name or "" for value in bodies["body"].inputs]
            as_host[2:] = [formal in inner["body"]._hosts for formal in formals[2:]]
        wants = [
            (name, "any" if not self._is_constant(name) else "host" if host and self._is_small(name) else "tensor")
            for name, host in zip(given, as_host, strict=False)
        ]
        wants += [(name, "tensor" if self._is_constant(name) else "any") for name in free]
        if node.op_type == "If":
            keywords |= {name: one._body(free) for name, one in inner.items()}
            return _Planned(node, control_flow.if_, wants, keywords)
        body = inner["body"]
        keywords |= {
            "body": body._body(free),
            "given": len(given),
            "shapes": [_static_shape(out) for out in body.graph.outputs],
        }
        run: Callable[..., Any] = control_flow.loop if node.op_type == "Loop" else control_flow.scan
        if node.op_type == "Scan" and opset_of(self.opsets, "") < _SCAN_WITHOUT_BATCH:
            run = control_flow.scan_of_batch
        return _Planned(node, run, wants, keywords)

    def _is_host(self, name: str) -> bool:
        return name in self._hosts or self._is_small(name)

    def _loop_body(self, node: ir.Node, body: ir.Graph) -> "_Converter":
        """Lay out a Loop's body, with host values for what is known in every trip: the number of the trip, sizes."""
        names = [value.name or "" for value in body.inputs]
        given = ["" if value is None else value.name or "" for value in node.inputs]
        hosts = {
            formal
            for formal, name in zip(names, given, strict=False)
            if formal and (name == "" or (self._is_host(name) and (name in self._hosts or _is_whole(body, formal))))
        }
        while True:
            inner = self._inside(body, hosts)
            results = [value.name or "" for value in body.outputs]
            lost = {f for f, r in zip(names[1:], results, strict=False) if f in hosts and not inner._is_host(r)}
            if names[0] in hosts and not (names[1] in hosts and names[1] not in lost):
                lost.add(names[0])  # how often it runs is told by what it computes
            if not lost:
                return inner
            hosts -= lost

    def _inside(self, body: ir.Graph, hosts: Collection[str]) -> "_Converter":
        inner = _Converter(body, self.opsets, self.constants, self.stage, self)
        inner._hosts |= set(hosts)
        for node in body:
            inner._sort_in(node)
        return inner

    def _free(self) -> list[str]:
        """Return the names of what a subgraph takes from outside, and of the constants it needs as tensors."""
        own = {value.name for value in self.graph.inputs} | {o.name for p in self._plan for o in p.node.outputs}
        wanted = [(n, k) for planned in self._plan for n, k in planned.wants]
        wanted += [(name, "host" if self._is_small(name) else "tensor") for name in _outputs(self)]
        return [
            n for n, k in wanted if n and n not in own and (k == "tensor" or not self._is_constant(n))
        ]  # fmt: skip

    def _body(self, free: Iterable[str]) -> Body:
        taken = (*(value.name or "" for value in self.graph.inputs), *free)
        steps, constants, returned = self._lay_out(taken, _outputs(self), kept=len(taken))
        return Body(self.stage.index, len(taken), tuple(steps), tuple(constants), tuple(returned))

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
                self.constants.tensors[name] = as_tensor(_array(tensor))
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

    def _wants(self, node: ir.Node, version: OpVersion) -> list[tuple[str, str]]:
        """Return name and kind of every input; a number is taken as a tensor where it is one when the model runs.

        Where all inputs would be numbers they are tensors: an op of the table has at least one.
        """
        wants = []
        for place, value in enumerate(node.inputs):
            name = "" if value is None else value.name or ""
            kind = version.kind(place) or "tensor"
            if kind == "scalar" and value is not None:
                is_number = name in self._hosts or (self._is_small(name) and self._constant(name).dim() == 0)
                kind = "scalar" if is_number else "tensor"
            wants.append((name, kind))
        are_numbers = {kind for name, kind in wants if name} == {"scalar"}
        return [(name, "tensor" if are_numbers else kind) for name, kind in wants]

    def _place(self, name: str, kind: str, places: dict[tuple[str, str], int], constants: list[Any]) -> int:
        if kind == "tensor" or not self._is_constant(name):
            return places["tensor", name]
        if ("host", name) not in places:
            places["host", name] = len(constants)
            tensor = self._constant(name).detach()
            constants.append((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())
        return places["host", name]

    def _output(
        self, value: ir.Value, outputs: Sequence[str], places: dict[tuple[str, str], int], constants: list[Any]
    ) -> int | None:
        if not value.name or not (value.uses() or value.name in outputs):
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

    def _keywords(self, node: ir.Node, version: OpVersion) -> dict[str, Any]:
        opset = opset_of(self.opsets, version.domain)
        stated = stated_defaults(version.domain, version.name, opset)
        keywords = {name: stated[name] for name in version.required & stated.keys()} | _attributes(node)
        if "outputs" in version.wants:
            keywords["outputs"] = len(node.outputs)
        if "types" in version.wants:
            keywords["types"] = [0 if v is None else self._number(v.name or "") for v in node.inputs]
        if "result_type" in version.wants:
            keywords["result_type"] = self._number(node.outputs[0].name or "")
        return keywords


@dataclass(frozen=True, slots=True)
class _Planned:
    """How a node will run: what runs it, name and kind of every input, and its keywords."""

    node: ir.Node
    run: Callable[..., Any]
    wants: list[tuple[str, str]]
    keywords: Mapping[str, Any]


def _outputs(converter: _Converter) -> list[str]:
    return [value.name or "" for value in converter.graph.outputs]


def _is_whole(body: ir.Graph, name: str) -> bool:
    """Say whether an input of a body is of whole numbers or booleans, as sizes and conditions are."""
    dtype = next((value.dtype for value in body.inputs if value.name == name), None)
    return dtype in (None, ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL)


def _static_shape(value: ir.Value) -> list[int] | None:
    dims = [dim for dim in value.shape or () if isinstance(dim, int)]
    return dims if value.shape is not None and len(dims) == len(value.shape) else None


def _array(tensor: ir.TensorProtocol) -> Any:
    """Return a tensor's array; external data is mapped so that what is written to it stays in this process."""
    dtype = tensor.dtype.numpy()
    if not isinstance(tensor, ir.ExternalTensor) or tensor.size == 0 or dtype.isbuiltin != 1 or sys.byteorder == "big":
        return np.asarray(tensor.numpy())
    return np.memmap(tensor.path, dtype, "c", tensor.offset or 0, tuple(tensor.shape.numpy()))


def _with_last(step: Step, last: tuple[int, ...]) -> Step:
    return Step(step.node, step.op, step.run, step.arguments, step.keywords, step.outputs, last, step.names)


def find_unsupported(nodes: Sequence[ir.Node], opsets: Mapping[str, int]) -> list[UnsupportedNode]:
    """Return the nodes, those of subgraphs too, that the op table cannot run, and why."""
    return nodes_unsupported(nodes, opsets, OpTable("torch", find_op, _attributes))


def _attributes(node: ir.Node) -> dict[str, Any]:
    """Return the attributes of a node by ONNX's names."""
    return {name: _plain(attribute) for name, attribute in node.attributes.items()}


def _plain(attribute: ir.Attr) -> Any:
    """Return an attribute as Python has it."""
    if attribute.type is ir.AttributeType.TENSOR:
        return attribute.as_tensor().numpy()
    value = attribute.value
    return list(value) if isinstance(value, (tuple, list)) else value
