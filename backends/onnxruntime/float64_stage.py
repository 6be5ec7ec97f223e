"""Run an ONNX model or a stage of one in float64, node by node, for verification.

ONNX Runtime runs every node that it has a float64 kernel for. The op table of the backend torch computes the others
(convolutions, pools, ``Erf``, ...), and only if it agrees with ONNX Runtime's float32 kernel on the same inputs:
within 1e-4 of the scale of the result, or within four times what rounding the inputs otherwise changes. So every kernel
is compared, and none is blamed for a near-tie.

Left out: Scan, and values that are no tensors, which are refused.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from heterps_compile.backends.borders import as_array
from heterps_compile.errors import BackendError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.noise import ROUNDING
from heterps_compile.frontends.onnx_bodies import subgraphs
from heterps_compile.frontends.onnx_session import ORT_ERRORS, Array, open_session, reason
from heterps_compile.progress import check

_FAULTS: tuple[type[Exception], ...] = (BackendError, *ORT_ERRORS)
_ALLOWED = 1e-4
"""Of the scale of what a node gives: what verification in float32 allows."""
_DRAWS = 4
_MUCH = 4.0  # times what rounding changed in the draws


@dataclass(slots=True, eq=False)
class Float64Stage:
    """One stage, or the whole model.

    Attributes:
        inputs: Names of the input values, in order.
        outputs: Names of the output values, in order.
        model: The ONNX model; its floating tensors are in float64.
        what: Its name in messages: ``stage 2``.
        by_table: Types of the ops that the op table of the backend torch has computed, in the order of their first run.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: ir.Model
    what: str
    by_table: dict[str, None] = field(default_factory=dict)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """Run on arrays or tensors in the order of ``inputs``; give arrays in the order of ``outputs``.

        Raises:
            BackendError: naming the node that cannot be run, or whose float32 kernel gives something else.
        """
        live = {name: as_array(value, name) for name, value in zip(self.inputs, values, strict=True)}
        self._run_all(self.model.graph, live, self.outputs)
        return tuple(live[name] for name in self.outputs)

    def _run_all(self, graph: ir.Graph, live: dict[str, Array], kept: Iterable[str]) -> None:
        """Run the nodes of a graph on values by name; drop each value after its last reader, unless it is kept."""
        for name, value in graph.initializers.items():
            assert value.const_value is not None  # noqa: S101 - initializers of a stage have values
            live[name] = value.const_value.numpy()
        nodes = list(graph)
        read = [_read(node) for node in nodes]
        last_read = {name: place for place, names in enumerate(read) for name in names}
        staying = {*kept}
        for place, node in enumerate(nodes):
            live.update(self._run(node, live))
            for name in {*read[place], *_asked_for(node)} - staying:
                if last_read.get(name, place) == place:
                    live.pop(name, None)

    def _run(self, node: ir.Node, live: Mapping[str, Array]) -> dict[str, Array]:
        if node.domain == "" and node.op_type in ("If", "Loop"):
            results = self._run_if(node, live) if node.op_type == "If" else self._run_loop(node, live)
            return {value.name: array for value, array in zip(node.outputs, results, strict=True) if value.name}
        given = {value.name or "": live[value.name or ""] for value in node.inputs if value is not None}
        wide = [name for name, array in given.items() if array.dtype == np.float64]
        if any(True for _ in subgraphs(node)):
            self._refuse(node, "has a body")
        try:
            results = _run_here(self._alone(node, given, wide), given)
        except ORT_ERRORS as error:
            if not wide:
                self._refuse(node, reason(error))
            results = self._run_narrow(node, given, wide)
        return dict(zip(_asked_for(node), results, strict=True))

    def _run_if(self, node: ir.Node, live: Mapping[str, Array]) -> list[Array]:
        (condition,) = _values(node, live)
        name = "then_branch" if condition is not None and condition.item() else "else_branch"
        return self._run_body(node.attributes[name].as_graph(), live, ())

    def _run_loop(self, node: ir.Node, live: Mapping[str, Array]) -> list[Array]:
        trips, condition, *carried = _values(node, live)
        body = node.attributes["body"].as_graph()
        stacks: list[list[Array]] = [[] for _ in node.outputs[len(carried) :]]
        trip, goes_on = 0, condition is None or bool(condition.item())
        while goes_on and (trips is None or trip < trips.item()):
            check()
            told, *results = self._run_body(body, live, (np.array(trip), np.array(goes_on), *carried))
            goes_on, carried = bool(told.item()), [*results[: len(carried)]]
            for stack, array in zip(stacks, results[len(carried) :], strict=True):
                stack.append(array)
            trip += 1
        if any(value is None for value in carried) or not all(stacks):
            self._refuse(node, "carries or stacks a value that no trip makes")
        return [*(value for value in carried if value is not None), *(np.stack(stack) for stack in stacks)]

    def _run_body(self, body: ir.Graph, live: Mapping[str, Array], given: Sequence[Array | None]) -> list[Array]:
        """Run a body on its inputs, in order, and on the values around it."""
        inner = dict(live)
        inner.update({v.name or "": a for v, a in zip(body.inputs, given, strict=True) if a is not None})
        outputs = [value.name or "" for value in body.outputs]
        self._run_all(body, inner, (*outputs, *live))
        return [inner[name] for name in outputs]

    def _run_narrow(self, node: ir.Node, given: Mapping[str, Array], wide: Sequence[str]) -> list[Array]:
        """Compute a node that has no float64 kernel by the op table, if that agrees with the float32 kernel."""
        from heterps_compile.backends.torch.run_onnx import run_onnx  # noqa: PLC0415 - torch only where it is needed

        model = ir.to_proto(self._alone(node, given, wide))

        def by_table(factors: Mapping[str, Array]) -> list[Array]:
            return run_onnx(model, [narrow[n].astype(np.float64) * factors[n] for n in wide])

        narrow = {name: array.astype(np.float32) if name in wide else array for name, array in given.items()}
        try:
            theirs = run_onnx(model, [given[name] for name in wide])
            ours = _run_here(self._alone(node, narrow, wide), narrow)
            allowed = [_ALLOWED * _largest(array) for array in theirs]
            agrees = _agree(ours, theirs, allowed)
            if not agrees:
                same = by_table(dict.fromkeys(wide, np.array(1.0)))
                moved = _rounded(by_table, same, narrow, wide)
                agrees = _agree(
                    ours, same, [max(least, _MUCH * far) for least, far in zip(allowed, moved, strict=True)]
                )
        except _FAULTS as error:
            self._refuse(node, reason(error))
        if not agrees:
            self._refuse(node, f"gives other numbers in float32 than our own op table does for {node.op_type}")
        self.by_table[node.op_type] = None
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


def _read(node: ir.Node) -> set[str]:
    """Name the values that a node or its bodies read."""
    found = {value.name for value in node.inputs if value is not None and value.name}
    for body in subgraphs(node):
        found.update(value.name for value in body.outputs if value.name)
        for inner in body:
            found |= _read(inner)
    return found


def _values(node: ir.Node, live: Mapping[str, Array]) -> list[Array | None]:
    return [None if value is None else live[value.name or ""] for value in node.inputs]


def _rounded(
    run: Callable[[Mapping[str, Array]], list[Array]],
    same: Sequence[Array],
    given: Mapping[str, Array],
    wide: Sequence[str],
) -> list[float]:
    """Measure by how much results change if inputs are off by their rounding to float32."""
    generator, most = np.random.default_rng(0), [0.0] * len(same)
    for _ in range(_DRAWS):
        factors = {name: 1 + ROUNDING * generator.standard_normal(given[name].shape) for name in wide}
        for place, (array, other) in enumerate(zip(run(factors), same, strict=True)):
            if array.shape == other.shape and np.issubdtype(array.dtype, np.floating):
                most[place] = max(most[place], _largest(array - other))
    return most


def _largest(array: Array) -> float:
    """Return the largest finite magnitude, at least 1e-30; 1 for whole numbers."""
    if not np.issubdtype(array.dtype, np.floating):
        return 1.0
    return float(np.abs(array[np.isfinite(array)]).max(initial=1e-30))


def _agree(ours: Sequence[Array], theirs: Sequence[Array], allowed: Sequence[float]) -> bool:
    return all(map(_are_near, ours, theirs, allowed))


def _are_near(ours: Array, theirs: Array, allowed: float) -> bool:
    if ours.shape != theirs.shape:
        return False
    if not np.issubdtype(ours.dtype, np.floating):
        return bool(np.array_equal(ours, theirs))
    odd = ~np.isfinite(theirs)
    if not np.array_equal(ours[odd], theirs[odd].astype(ours.dtype), equal_nan=True):
        return False
    return float(np.abs(ours[~odd] - theirs[~odd]).max(initial=0.0)) <= allowed
