"""Try numbers for the free dimensions of an ONNX model: shape inference, then a run of the whole model.

A run takes bounded time and memory: its inputs and every value whose shape inference knows are counted first, the run
is ended after some seconds of CPU time, and it has no more memory than the budget where values of unknown size remain.

Not covered: which numbers are tried (:mod:`.onnx_free_dims`).
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from heterps_compile.errors import GraphError
from heterps_compile.host_memory import available_bytes
from heterps_compile.ir.graph import Value
from heterps_compile.units import format_bytes

from .onnx_bodies import every_node
from .onnx_budget import BUDGET, running_loops
from .onnx_dims import BoundInputs
from .onnx_inputs import Array, fit_array, generate_inputs
from .onnx_names import describe, quote
from .onnx_session import ORT_ERRORS, Session, lean_sessions, open_session, reason
from .onnx_shapes import DTYPES, Inference, Partial, infer, refuse_long_vector, size_bytes
from .onnx_structure import find_roles
from .onnx_trips import Trips, refuse_long_runs
from .open_batch.known_values import KnownValues

_MOST_INPUT_BYTES = 2**28
_SHARE_OF_FREE = 4
_LIMIT_S = 5.0
_FAILED_NODE = re.compile(r"while running \S+ node\. Name:'(.*?)' Status Message", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a model does not take some numbers.

    Attributes:
        reason: Its own error.
        place: Index of the node that failed among the nodes of :func:`every_node`; -1 where none was run.
        is_unfinished: Whether a limit ended the run, so that nothing else is known of the numbers.
    """

    reason: str
    place: int = -1
    is_unfinished: bool = False


@dataclass(slots=True)
class Trials:
    """Trial runs of one model, in one session.

    Attributes:
        model: The model, normalised; it is not changed.
        given: Arrays that the user gave, by input.
        count: How many runs there were.
        run_s: CPU seconds of the last one, in this thread.
    """

    model: ir.Model
    given: Mapping[str, Array]
    count: int = 0
    run_s: float = 0.0
    _session: Session | None = None
    _most_bytes: int = 0  # of the next run
    _began_s: float = field(default_factory=time.thread_time)

    @property
    def spent_s(self) -> float:
        """Compute the CPU seconds of this thread since the first trial was prepared."""
        return time.thread_time() - self._began_s

    def __call__(self, bound: BoundInputs) -> Refusal | None:
        """Run the model with all its dimensions bound; return why it refuses, or None."""
        self.count += 1
        graph = self.model.graph
        shapes = {value.name or "": bound.numbers(value.name or "") for value in graph.inputs}
        inputs = {
            value.name or "": Value(value.name or "", DTYPES[value.dtype.value], shapes[value.name or ""])
            for value in graph.inputs
            if value.dtype is not None
        }
        for value in inputs.values():
            if size_bytes(value) > _MOST_INPUT_BYTES:
                return Refusal(f"input {quote(value.name)} of shape {list(value.shape)} takes too much memory")
        try:
            given = {name: fit_array(array, shapes[name]) for name, array in self.given.items()}
            inference = infer(self.model, shapes, given)
            return self._impossible(inference) or self._run(inputs, inference)
        except GraphError as e:
            return Refusal(str(e))

    def _impossible(self, inference: Inference) -> Refusal | None:
        """Explain why shape inference refuses the numbers; None if it does not. Find the memory of the run.

        Raises:
            GraphError: a vector is over the budget.
        """
        most, known_bytes, is_known = available_bytes() // _SHARE_OF_FREE, 0, True
        known = None
        if inference.is_partial or running_loops(self.model.graph):
            known = KnownValues(self.model, find_roles(self.model.graph), inference.values)
            try:
                refuse_long_runs(Trips(known))
            except GraphError as e:
                return Refusal(str(e), is_unfinished=True)
        for place, node in enumerate(every_node(self.model.graph)):
            if node.graph is not self.model.graph:
                continue
            for out in node.outputs:
                partial = known.type_of(out) if known else inference.values.get(out.name or "", Partial())
                shape = partial.shape or ()
                if any(isinstance(dim, int) and dim < 0 for dim in shape):
                    return Refusal(f"{describe(node)} makes a value of shape {list(shape)}", place)
                value = partial.value(out.name or "")
                if known and value is not None:
                    refuse_long_vector(out, value)
                taken = 0 if value is None else size_bytes(value)
                if taken > most:
                    return Refusal(f"{describe(node)} makes a value of {format_bytes(taken)}", place)
                known_bytes += taken
                is_known = is_known and (value is not None or not (out.uses() or out.is_graph_output()))
        self._most_bytes = 0 if is_known else BUDGET.run_bytes + 2 * known_bytes
        return None

    def _run(self, inputs: Mapping[str, Value], inference: Inference) -> Refusal | None:
        graph = self.model.graph
        outputs = list(dict.fromkeys(value for value in graph.outputs if value.producer() is not None))
        if not outputs:
            return None
        known = {
            name: value for name, partial in inference.values.items() if (value := partial.value(name)) is not None
        }
        feeds = generate_inputs(graph, inputs, known, 0, self.given)
        try:
            if self._session is None or self._session.most_bytes != self._most_bytes:
                part = ir.Model(ir.convenience.extract(graph, graph.inputs, outputs), ir_version=self.model.ir_version)
                with lean_sessions():
                    self._session = open_session(part, most_bytes=self._most_bytes)
        except ORT_ERRORS:
            return None  # ONNX Runtime has no kernel for the model: nothing can be tried
        began_s = time.thread_time()
        try:
            self._session.run([value.name or "" for value in outputs], feeds, _LIMIT_S)
        except (TimeoutError, GraphError) as e:
            return Refusal(str(e), is_unfinished=True)
        except ORT_ERRORS as e:
            return Refusal(reason(e), self._place(str(e)))
        finally:
            self.run_s = time.thread_time() - began_s
        return None

    def _place(self, message: str) -> int:
        """Compute the index of the node that failed: the innermost that the message names."""
        places = {node.name: place for place, node in enumerate(every_node(self.model.graph)) if node.name}
        named = [places[name] for name in _FAILED_NODE.findall(message) if name in places]
        return named[-1] if named else -1
