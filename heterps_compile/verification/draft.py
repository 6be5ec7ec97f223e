"""Verify the stages of a draft against the whole model, before anything is written.

1. Outputs agree on generated inputs.
2. Where the model keeps something from call to call, two calls in a row agree, and what is kept after them.
3. For training, the gradients of every parameter and of every floating input agree.
4. Where the batch was opened, outputs agree with those of the samples one by one.
5. What differs is compared once more in float64: results that hang on a near-tie differ by rounding alone.

Left out: how values are compared (``runtime/verify.py``), and what of a model can be (``backends/comparable.py``).
"""

from contextlib import AbstractContextManager, nullcontext

from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import own_backend
from heterps_compile.errors import VerificationError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import ONNX, Graph
from heterps_compile.passes.drafts import Emitted
from heterps_compile.plan.plan import Verification
from heterps_compile.plan.plan_notes import NOT_VERIFIED
from heterps_compile.plan.weights import weight_without_numbers

from .batch import MemoryLimits, choose_batch
from .calls import compare_calls
from .float64 import compare_in_float64
from .gradients import compare_training
from .large_weights import weights_where_they_lie
from .opened import compare_opened
from .pair import Pair, reason

_CALLS = 2
_ROUNDED_IN_PARTS = "DynamicQuantizeLSTM"


def verify_draft(
    backend: Backend, draft: Emitted, limits: MemoryLimits | None = None
) -> tuple[Verification | None, tuple[str, ...]]:
    """Compare the stages of a draft with the whole model on generated inputs.

    Args:
        backend: That built the stages, and knows their devices.
        draft: That every pass has run on.
        limits: Of the memory that this may take; by default those of the machine.

    Returns:
        What was found, None where nothing can be compared, and notes on it.

    Raises:
        VerificationError: naming what differs and by how much.
    """
    if unnumbered := weight_without_numbers(draft.graph):
        return None, (f"{NOT_VERIFIED}: {printable(unnumbered)!r} lies on torch's device 'meta', without numbers",)
    compared = find_comparable(draft.graph, backend.capabilities)
    if not compared.outputs:
        return None, compared.notes
    graph, seed = compared.graph, draft.request.seed
    is_trained = draft.request.mode == "training"
    calls = 1 if graph.family == ONNX else _CALLS  # an ONNX model keeps nothing
    with weights_where_they_lie(backend, graph):
        chosen = choose_batch(
            graph,
            limits or MemoryLimits.of_machine(),
            calls,
            is_trained=is_trained,
            why_not=lambda smaller: _why_not(backend, smaller, seed),
        )
    if chosen.graph is None:
        return None, (*compared.notes, chosen.note)
    stages = draft.runnable if graph is draft.graph else backend.build(graph, draft.partition)
    inputs = [backend.example_inputs(chosen.graph, seed + call) for call in range(calls)]
    pair = Pair(backend, compared, draft.partition.stages, stages, inputs, seed, is_trained)
    with weights_where_they_lie(backend, graph), _undivided(backend, graph):
        try:
            found, notes = _compare(pair)
        except VerificationError as error:
            if error.is_explained:
                raise
            (found, notes), note = compare_in_float64(pair, _compare, error)
            notes = (*notes, note)
        found, told = compare_opened(pair, found)
        notes = (*notes, *told)
    return found, (*compared.notes, *filter(None, (chosen.note,)), *notes)


def _undivided(backend: Backend, graph: Graph) -> AbstractContextManager[None]:
    """Let ONNX Runtime run the whole model on one thread if it rounds the batch in parts, one for each thread."""
    if not any(node.op.endswith(_ROUNDED_IN_PARTS) for node in graph.nodes):
        return nullcontext()
    own = own_backend(graph.family)
    return nullcontext() if backend.name == own.name else own.threads(1)  # its stages divide as the whole model does


def _why_not(backend: Backend, graph: Graph, seed: int) -> str:
    """Say why the whole model does not run at the batch of a graph, "" where it does; what it changes is put back."""
    try:
        with backend.reproducible(graph, seed):
            backend.reference(graph)(backend.example_inputs(graph, seed))
    except Exception as error:  # noqa: BLE001 - a runtime may raise anything
        return reason(error)
    return ""


def _compare(pair: Pair) -> tuple[Verification, tuple[str, ...]]:
    """Compare all there is to compare; return notes on it."""
    outputs, calls = compare_calls(pair)
    found = Verification(outputs.max_abs, outputs.max_rel, pair.tolerance, len(pair.compared.outputs), calls)
    if not pair.is_trained:
        return found, ()
    gradients, notes = compare_training(pair)
    found = Verification(
        found.max_abs, found.max_rel, found.tolerance, found.outputs, calls, gradients.values, gradients.max_rel
    )
    return found, notes
