"""Check that a model gives for the parts of a batch what it gives for the whole batch.

::

    samples      0  1                    0  1  2  3
    whole       [a  b]   if that        [a  b  c  d]
    parts       [a][b]   differs, also  [a  b][c  d]
                                           [b  c]        each equals these samples of the whole

1. Of each output with a dimension for samples, every part equals its samples of the whole.
2. Another output is the same for every part, or is one number, the mean of those of the parts, as a loss is.
3. Random draws, batch norms in training and dynamic quantisation get their samples of the whole; what enters them is
   compared instead.
4. What differs is compared once more in float64: near-ties differ by rounding alone.
5. The first node before a difference whose values differ is the node that mixes samples.

The batch of the model is run if it takes neither 2 samples nor 4. A batch that is 1 or fixed is not checked, nor is one
whose samples the ONNX front end has proven not to mix.

Not covered: inputs whose sizes are computed from the batch; how many outputs there are at random.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import own_backend
from heterps_compile.errors import BackendError, HeterpsError, InfeasibleError, VerificationError
from heterps_compile.escape import printable, shorten
from heterps_compile.frontends.sizes import of_shapes_alone
from heterps_compile.ir.graph import ONNX, OPAQUE, TORCH, Graph, Node, OpKind
from heterps_compile.plan.weights import weight_without_numbers
from heterps_compile.process_state import alone
from heterps_compile.runtime.verify import compare_value, is_inexact
from heterps_compile.units import format_bytes

from .batch import MemoryLimits, has_computed_sizes, with_batch, working_set_bytes
from .large_weights import weights_where_they_lie
from .opened import take_rows
from .pair import reason

_PARTS = ([[0], [1]], [[0, 1], [2, 3], [1, 2]])
_MOST_FLOPS = 10**12
_RUNS = 2.5  # of the whole: it and its parts, at most
_NAME_SHOWN = 80
_SHOWN = 3  # names in a note
_SEED = 0
_NODE_OF_ORT = re.compile(r"Name:'([^']+)'")

Values = Mapping[str, Any]


@contextmanager
def naming_what_mixes(graph: Graph) -> Iterator[None]:
    """Add to a refusal which node keeps the batch whole.

    Raises:
        InfeasibleError: as raised inside, with the node.
    """
    try:
        yield
    except InfeasibleError as error:
        if not graph.mixes:
            raise
        raise InfeasibleError(f"{error}; {graph.undivided}: replicas and micro-batches cannot divide it") from error


@alone()
def check_batch(graph: Graph, limits: MemoryLimits | None = None) -> Graph:
    """Find the node that mixes samples.

    Args:
        graph: As read.
        limits: Of the memory that the check may take; by default those of the machine.

    Returns:
        The graph, with ``mixes`` if samples are not independent, and with ``unchecked`` if the check could not run or
        excuses dynamic quantisation.
    """
    is_known = graph.family not in {ONNX, TORCH} or (graph.family == ONNX and graph.opened is not None)
    if is_known or graph.batch_symbol is None or graph.batch < 2:
        return graph
    if graph.source is None:
        return replace(graph, unchecked="the graph has no model to run")
    if unnumbered := weight_without_numbers(graph):
        return replace(graph, unchecked=f"{printable(unnumbered)!r} has no numbers")
    if has_computed_sizes(graph):
        return replace(graph, unchecked="sizes of its inputs are computed from the batch")
    backend = own_backend(graph.family)
    tolerance = max(backend.tolerance(graph.family), find_comparable(graph, backend.capabilities).rounding)
    limits = limits or MemoryLimits.of_machine()
    why = mixes = ""
    with weights_where_they_lie(backend, graph):
        for parts in (*_PARTS, _thirds(graph.batch)):
            count = max(part[-1] for part in parts) + 1
            costly = _too_costly(graph, count, limits)
            if costly:
                why = why or costly
                break
            is_final = parts is not _PARTS[0]  # a part of 1 sample is a special case of many ops
            check = _Check(with_batch(graph, count), backend, graph.outputs, tolerance, parts, limits, is_final)
            try:
                mixes = check.find_mixing()
            except _WholeError as error:
                why = why or str(error)
                continue
            if not mixes:
                return replace(graph, unchecked=check.left_out())
            if is_final:
                break
    return replace(graph, mixes=mixes) if mixes else replace(graph, unchecked=why)


def _thirds(batch: int) -> list[range]:
    """List two halves of a batch, and a part across both."""
    half = batch // 2
    return [range(at, at + half) for at in dict.fromkeys((0, half, half // 2))]


class _WholeError(Exception):
    """The whole batch does not run, or not so that parts could be compared with it."""


def _too_costly(graph: Graph, count: int, limits: MemoryLimits) -> str:
    """Explain why a run takes too much; "" if not."""
    flops = int(sum(node.flops for node in graph.nodes) * count / graph.batch * _RUNS)
    if flops > _MOST_FLOPS:
        return f"it takes {flops:.2g} FLOPs at a batch of {count}; the check takes at most {_MOST_FLOPS:.0g}"
    needed = working_set_bytes(graph, count, 1)
    if needed > limits.free_bytes:
        return f"it takes {format_bytes(needed)} at a batch of {count}; {format_bytes(limits.free_bytes)} are free"
    return ""


@dataclass(frozen=True)
class _Check:
    """Runs of a graph on a batch and on its parts.

    Attributes:
        graph: At the batch to run.
        backend: Of its family.
        outputs: Names of the outputs to compare.
        tolerance: Largest difference, relative to a value's scale.
        parts: Samples of each; the first two are disjoint and have all.
        limits: Of the memory that a run may take.
        is_final: Whether a difference is looked into; else its output is returned.
        is_wide: Whether it is in float64, which decides.
    """

    graph: Graph
    backend: Backend
    outputs: Sequence[str]
    tolerance: float
    parts: Sequence[Sequence[int]]
    limits: MemoryLimits
    is_final: bool
    is_wide: bool = False

    def find_mixing(self) -> str:
        """Find the node, else the output, that mixes samples.

        Returns:
            Its name; "" if none does.

        Raises:
            _WholeError: if the whole batch does not run.
        """
        runs, names = self._runs(), self._compared
        if not names:
            raise _WholeError("none of its outputs is a tensor")
        try:
            whole = self._whole(runs)
        except Exception as error:  # a runtime may raise anything
            raise _WholeError(reason(error.__cause__ if isinstance(error.__cause__, Exception) else error)) from error
        try:
            parts = [self._part(runs, whole, samples) for samples in self.parts]
        except BackendError as error:
            raise _WholeError(str(error)) from error
        except Exception as error:  # noqa: BLE001 - as above
            return self._failing(error)
        differing = [name for name in names if not self._agrees(name, whole, parts)]
        if not differing:
            return ""
        wide = self._in_float64() if self.is_final else None
        if wide is not None:
            with suppress(_WholeError):  # not every model runs in float64: float32 decides
                return wide.find_mixing()
        return (self._first_node(differing[0]) if self.is_final else "") or f"output {_shown(differing[0])}"

    def left_out(self) -> str:
        """Name a node that rounds by the batch's range, or one with a branch that no input took."""
        nodes = [node for node in self._excused.values() if "quant" in node.op.lower()]
        branching = self._values_of().branching_nodes(self.graph)
        if nodes or not branching:
            return f"{_named(nodes[0])} rounds by the range of its batch" if nodes else ""
        return f"of {', '.join(map(_shown, branching[:_SHOWN]))} only the branch that generated inputs take ran"

    @cached_property
    def _excused(self) -> dict[str, Node]:
        """Map values to excused nodes that make them."""
        return {name: node for node in self._values_of().excused_nodes(self.graph) for name in node.outputs}

    @cached_property
    def _compared(self) -> list[str]:
        """List outputs and values that enter excused nodes."""
        values = self.graph.values
        entering = [name for node in self._excused.values() for name in node.inputs if name in values]
        names = dict.fromkeys(name for name in (*self.outputs, *entering) if name in self.graph.producer)
        return [name for name in names if values[name].dtype != OPAQUE]

    def _values_of(self) -> Any:
        """Import the module that runs nodes of the family."""
        if self.graph.family == ONNX:
            from heterps_compile.frontends import onnx_values  # noqa: PLC0415 - onnx for its own

            return onnx_values
        from heterps_compile.frontends import torch_values  # noqa: PLC0415 - torch for its own

        return torch_values

    def _runs(self, keep: Collection[str] = ()) -> Any:
        """Open runs that keep the compared values and others."""
        excused = list(self._excused)
        return self._values_of().NodeRuns(self.graph, {*self._compared, *excused, *keep}, excused)

    def _whole(self, runs: Any) -> Values:
        """Run the whole batch; keep inputs and values."""
        inputs = self.backend.example_inputs(self.graph, _SEED)
        if self.is_wide and self.graph.family == ONNX:
            from heterps_compile.frontends.onnx_float64 import arrays_in_float64  # noqa: PLC0415 - onnx for its own

            inputs = arrays_in_float64(inputs)
        with self.backend.reproducible(self.graph, _SEED):
            return {**inputs, **runs.whole(inputs)}

    def _part(self, runs: Any, whole: Values, samples: Sequence[int]) -> Values:
        """Run some samples of the whole batch."""
        graph, inputs, symbol = self.graph, {}, self.graph.batch_symbol
        recurrent = graph.family == ONNX and OpKind.RECURRENT
        stepping = {name for name, node in self._excused.items() if node.kind is recurrent}
        for name in graph.inputs:
            shape, value = graph.values[name].shape, whole[name]
            inputs[name] = take_rows(value, samples, shape.index(symbol)) if symbol in shape else value

        def stand_in(name: str, result: Any) -> Any:
            if name in stepping and _shape(result)[:1] != _shape(whole[name])[:1]:
                return result  # samples are steps of a sequence
            return _zip_map(lambda ours, all_: self._of_whole(all_, ours, samples), result, whole[name])

        with self.backend.reproducible(graph, _SEED):
            values: Values = runs.part(inputs, stand_in)
        return values

    def _of_whole(self, whole: Any, part: Any, samples: Sequence[int]) -> Any:
        found = self._samples_of(whole, part, samples)
        return part if found is None else found

    def _failing(self, error: Exception) -> str:
        """Name the node that does not run on a part."""
        found = _NODE_OF_ORT.search(str(error))
        name = getattr(error, "node", "") or (found[1] if found else "")
        node = next((node for node in self.graph.nodes if node.name == name), None)
        return _named(node) if node else f"output {_shown(self.outputs[0])}"

    def _agrees(self, name: str, whole: Values, parts: Sequence[Values]) -> bool:
        """Compare the parts of a value with the whole."""
        found = [self._part_agrees(whole[name], part[name], s) for part, s in zip(parts, self.parts, strict=True)]
        if all(found):
            return True
        if any(prod(_shape(each[name])) != 1 for each in (whole, *parts)) or not is_inexact(whole[name]):
            return False
        first, second = (len(samples) * part[name] for samples, part in zip(self.parts[:2], parts[:2], strict=True))
        return self._equal((first + second) / (len(self.parts[0]) + len(self.parts[1])), whole[name])

    def _part_agrees(self, whole: Any, part: Any, samples: Sequence[int]) -> bool:
        if not hasattr(whole, "shape") or not hasattr(part, "shape"):
            return True  # a number that is no tensor
        expected = self._samples_of(whole, part, samples)
        return expected is not None and self._equal(part, expected)

    def _equal(self, ours: Any, theirs: Any) -> bool:
        try:
            compare_value("", ours, theirs, self.tolerance)
        except VerificationError:
            return False
        return True

    def _samples_of(self, whole: Any, part: Any, samples: Sequence[int], *, inner: bool = False) -> Any:
        """Take samples of a value; None without their dimension.

        Args:
            whole: The value for the whole batch.
            part: The value for the samples: the dimension in which the two differ has them.
            samples: Places in the batch.
            inner: Take samples as the inner, not the outer of what a dimension is flattened from.
        """
        theirs, ours, count = _shape(whole), _shape(part), self.graph.batch
        axes = [axis for axis, sizes in enumerate(zip(theirs, ours, strict=False)) if sizes[0] != sizes[1]]
        if not axes and len(theirs) == len(ours):
            return whole
        if len(axes) != 1 or len(theirs) != len(ours):
            return None
        each, rest = divmod(theirs[axes[0]], count)
        if rest or ours[axes[0]] != each * len(samples):
            return None
        outer = [sample * each + i for sample in samples for i in range(each)]
        return take_rows(whole, [i * count + s for i in range(each) for s in samples] if inner else outer, axes[0])

    def _first_node(self, differing: str) -> str:
        """Find the first node whose values differ."""
        graph = self.graph
        before = _before(graph, differing)
        if working_set_bytes(graph, graph.batch, 1, is_trained=True) > self.limits.free_bytes:
            return ""
        made = of_shapes_alone(graph)
        names = {out for i in before for out in graph.nodes[i].outputs if graph.values[out].dtype != OPAQUE}
        names -= made | set(self._excused)
        try:
            runs = self._runs(names)
            whole = self._whole(runs)
            parts = [(self._part(runs, whole, samples), samples) for samples in self.parts]
        except Exception:  # noqa: BLE001 - values inside may be what a session does not return
            return ""
        for index in before:
            node = graph.nodes[index]
            for out in names.intersection(node.outputs):
                if not all(self._is_of_samples(whole[out], part[out], samples) for part, samples in parts):
                    made_of = [n for n in node.inputs if n in graph.producer and graph.values[n].dtype == OPAQUE]
                    return _named(graph.nodes[graph.producer[made_of[0]]] if made_of else node)
        return ""

    def _is_of_samples(self, whole: Any, part: Any, samples: Sequence[int]) -> bool:
        if self._part_agrees(whole, part, samples):
            return True
        inner = self._samples_of(whole, part, samples, inner=True)
        return inner is not None and self._equal(part, inner)

    def _in_float64(self) -> "_Check | None":
        """Copy the check in float64; None if impossible."""
        graph = self.graph
        if self.is_wide:
            return None
        try:
            if graph.family == ONNX:
                from heterps_compile.frontends.onnx_float64 import graph_in_float64  # noqa: PLC0415 - onnx for its own

                wide = graph_in_float64(graph)
            elif graph.source.in_float64 is None:
                return None
            else:
                wide = graph.source.in_float64(None)
                wide = with_batch(wide, graph.batch) if wide.batch_symbol else wide
        except HeterpsError:
            return None
        if wide.batch_symbol is None or len(wide.outputs) != len(graph.outputs):
            return None
        outputs = [wide.outputs[graph.outputs.index(name)] for name in self.outputs]
        return replace(self, graph=wide, outputs=outputs, is_wide=True)


def _before(graph: Graph, name: str) -> list[int]:
    """List the nodes before a value, ascending."""
    found: set[int] = set()
    open_ = [graph.producer[name]] if name in graph.producer else []
    while open_:
        index = open_.pop()
        if index not in found:
            found.add(index)
            open_ += [graph.producer[n] for n in graph.nodes[index].inputs if n in graph.producer]
    return sorted(found)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))


def _zip_map(function: Any, ours: Any, theirs: Any) -> Any:
    """Apply a function to the tensors of two results of one structure."""
    if isinstance(ours, (tuple, list)):
        return type(ours)(_zip_map(function, a, b) for a, b in zip(ours, theirs, strict=True))
    return function(ours, theirs) if hasattr(ours, "shape") else ours


def _named(node: Node) -> str:
    return f"node {_shown(node.name)} ({node.op})"


def _shown(name: str) -> str:
    return f"'{printable(shorten(name, _NAME_SHOWN))}'"
