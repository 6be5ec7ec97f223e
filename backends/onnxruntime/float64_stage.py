"""A stage in float64, run node by node: for verification alone, where rounding in float32 hides what is compared.

ONNX Runtime runs every node that it has a float64 kernel for. For the others (convolutions, pools, ``Erf``, ...) the
op table of the backend torch says what they give, and ONNX Runtime's float32 kernel, on the same inputs rounded, is
held against that. So every kernel that the stage uses is compared, and none is blamed for a near-tie.

Left out: control flow, and values that are no tensors, which are refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from heterps_compile.backends.borders import as_array
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.onnx_session import ORT_ERRORS, Array, open_session, reason

_FAULTS: tuple[type[Exception], ...] = (BackendError, *ORT_ERRORS)
_ALLOWED = 1e-4
"""Of the scale of what a node gives: what verification in float32 allows."""


@dataclass(slots=True, eq=False)
class Float64Stage:
    """One stage.

    Attributes:
        inputs: Names of the values it takes, in order.
        outputs: Names of the values it gives, in order.
        model: What it computes; its floating tensors are in float64.
        what: What to call it in messages: ``stage 2``.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: ir.Model
    what: str

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run on arrays or tensors in the order of ``inputs``; give arrays in the order of ``outputs``.

        Raises:
            BackendError: naming the node that cannot be run, or whose float32 kernel gives something else.
        """
        live = {name: as_array(value, name) for name, value in zip(self.inputs, values, strict=True)}
        for name, value in self.model.graph.initializers.items():
            assert value.const_value is not None  # noqa: S101 - of a stage they have values
            live[name] = value.const_value.numpy()
        nodes = list(self.model.graph)
        last_read = {
            value.name: place for place, node in enumerate(nodes) for value in node.inputs if value is not None
        }
        for place, node in enumerate(nodes):
            live.update(self._run(node, live))
            done = {value.name or "" for value in (*node.inputs, *node.outputs) if value is not None}
            for name in done - set(self.outputs):
                if last_read.get(name, place) == place:
                    live.pop(name, None)
        return tuple(live[name] for name in self.outputs)

    def _run(self, node: ir.Node, live: Mapping[str, Array]) -> dict[str, Array]:
        given = {value.name or "": live[value.name or ""] for value in node.inputs if value is not None}
        wide = [name for name, array in given.items() if array.dtype == np.float64]
        if any(attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in _own(node)):
            self._refuse(node, "has a body of its own")
        try:
            results = _run_here(self._alone(node, given, wide), given)
        except ORT_ERRORS as error:
            if not wide:
                self._refuse(node, reason(error))
            results = self._run_narrow(node, given, wide)
        return dict(zip(_asked_for(node), results, strict=True))

    def _run_narrow(self, node: ir.Node, given: Mapping[str, Array], wide: Sequence[str]) -> list[Array]:
        """Return what a node without a float64 kernel is to give, its float32 kernel held against it."""
        from heterps_compile.backends.torch.run_onnx import run_onnx  # noqa: PLC0415 - torch only where it is needed

        narrow = {name: array.astype(np.float32) if name in wide else array for name, array in given.items()}
        try:
            theirs = run_onnx(ir.to_proto(self._alone(node, given, wide)), [given[name] for name in wide])
            ours = _run_here(self._alone(node, narrow, wide), narrow)
        except _FAULTS as error:
            self._refuse(node, reason(error))
        for array, wanted in zip(ours, theirs, strict=True):
            if not _agree(array, wanted):
                self._refuse(node, f"gives something else in float32 than {node.op_type} is to give")
        return theirs

    def _alone(self, node: ir.Node, given: Mapping[str, Array], taken: Sequence[str]) -> ir.Model:
        """Return the model of one node: it takes the named inputs, and holds the others."""
        held = []
        values: dict[str, ir.Value] = {}
        for name, array in given.items():
            shape, dtype = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
            values[name] = ir.Value(name=name, type=dtype, shape=shape)
            if name not in taken:
                values[name].const_value = ir.tensor(array, name=name)
                held.append(values[name])
        inputs = [None if value is None else values[value.name or ""] for value in node.inputs]
        made = ir.Node(node.domain, node.op_type, inputs, _own(node), num_outputs=len(node.outputs))
        for own, value in zip(made.outputs, node.outputs, strict=True):
            own.name = value.name
        outputs = [value for value in made.outputs if value.name]
        opsets = dict(self.model.graph.opset_imports)
        graph = ir.Graph(
            [values[name] for name in taken],
            outputs,
            nodes=[made],
            initializers=held,
            opset_imports=opsets,
            name="node",
        )
        return ir.Model(graph, ir_version=self.model.ir_version)

    def _refuse(self, node: ir.Node, fault: str) -> NoReturn:
        name = printable(shorten(node.name or "", 80))
        raise BackendError(f"{self.what} cannot be run in float64: node {name!r} ({node.op_type}) {fault}")


def _asked_for(node: ir.Node) -> list[str]:
    return [value.name for value in node.outputs if value.name]


def _own(node: ir.Node) -> Sequence[ir.Attr]:
    return list(node.attributes.values())


def _run_here(model: ir.Model, given: Mapping[str, Array]) -> list[Array]:
    """Run the model of one node in ONNX Runtime."""
    outputs = [value.name or "" for value in model.graph.outputs]
    feeds = {value.name or "": given[value.name or ""] for value in model.graph.inputs}
    results = open_session(model).run(outputs, feeds)
    if not all(isinstance(array, np.ndarray) for array in results):
        raise TypeError("it gives no tensors")
    return results


def _agree(ours: Array, theirs: Array) -> bool:
    if ours.shape != theirs.shape:
        return False
    if not ours.size:
        return True
    if not np.issubdtype(ours.dtype, np.floating):
        return bool(np.array_equal(ours, theirs))
    odd = ~np.isfinite(theirs)
    if not np.array_equal(ours[odd], theirs[odd].astype(ours.dtype), equal_nan=True):
        return False
    rest = theirs[~odd]
    return not rest.size or float(np.abs(ours[~odd] - rest).max()) <= _ALLOWED * max(float(np.abs(rest).max()), 1e-30)
