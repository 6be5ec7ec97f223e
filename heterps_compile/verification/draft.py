"""Verify the stages of a draft against the whole model, before anything is written.

1. Outputs agree on generated inputs.
2. Where the model keeps something from call to call, two calls in a row agree, and what is kept after them.
3. For training, the gradients of every parameter and of every floating input agree.
4. What differs is compared once more in float64: results that hang on a near-tie differ by rounding alone.

Left out: how values are compared (``runtime/verify.py``), and what of a model can be (``backends/comparable.py``).
"""

from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.contract import Backend
from heterps_compile.errors import VerificationError
from heterps_compile.passes.contract import Draft
from heterps_compile.plan.plan import Verification

from .calls import compare_calls
from .float64 import compare_in_float64
from .gradients import compare_training
from .memory import too_large_to_run, weights_where_they_lie
from .pair import Pair

_CALLS = 2


def verify_draft(backend: Backend, draft: Draft) -> tuple[Verification | None, tuple[str, ...]]:
    """Compare the stages of a draft with the whole model on generated inputs.

    Args:
        backend: That built the stages, and knows their devices.
        draft: That every pass has run on.

    Returns:
        What was found, None where nothing can be compared, and notes on it.

    Raises:
        VerificationError: naming what differs and by how much.
    """
    assert draft.partition is not None  # noqa: S101 - EmitStages ensures both; this tells the type checker
    assert draft.runnable is not None  # noqa: S101
    compared = find_comparable(draft.graph, backend.name)
    if not compared.outputs:
        return None, compared.notes
    too_large = too_large_to_run(compared.graph)
    if too_large:
        return None, (*compared.notes, too_large)
    graph, seed = compared.graph, draft.request.seed
    stages = draft.runnable if graph is draft.graph else backend.build(graph, draft.partition)
    calls = 1 if graph.family == "onnx" else _CALLS  # an ONNX model keeps nothing
    inputs = [backend.example_inputs(graph, seed + call) for call in range(calls)]
    is_trained = draft.request.mode == "training"
    pair = Pair(backend, compared, draft.partition.stages, stages, inputs, seed, is_trained)
    with weights_where_they_lie(backend, graph):
        try:
            found, notes = _compare(pair)
        except VerificationError as error:
            (found, notes), note = compare_in_float64(pair, _compare, error)
            notes = (*notes, note)
    return found, (*compared.notes, *notes)


def _compare(pair: Pair) -> tuple[Verification, tuple[str, ...]]:
    """Compare all there is to compare; give notes on it."""
    outputs, calls = compare_calls(pair)
    found = Verification(outputs.max_abs, outputs.max_rel, pair.tolerance, len(pair.compared.outputs), calls)
    if not pair.is_trained:
        return found, ()
    gradients, notes = compare_training(pair)
    found = Verification(
        found.max_abs, found.max_rel, found.tolerance, found.outputs, calls, gradients.values, gradients.max_rel
    )
    return found, notes
