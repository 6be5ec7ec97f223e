"""Verify the stages of a draft against the whole model, before anything is written.

Left out: how outputs are compared (``runtime/verify.py``), and what of a model can be (``backends/comparable.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.backends.comparable import Comparable, find_comparable
from heterps_compile.backends.contract import Backend, Stage
from heterps_compile.ir.partition import StageCut
from heterps_compile.passes.contract import Draft
from heterps_compile.plan.plan import Verification
from heterps_compile.runtime.in_process import run_stages
from heterps_compile.runtime.verify import compare_outputs


@dataclass(frozen=True, slots=True)
class _Pair:
    """The whole model and its stages, and what of them is compared."""

    backend: Backend
    compared: Comparable
    cuts: Sequence[StageCut]
    stages: Sequence[Stage]
    seed: int


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
    stages = draft.runnable if compared.graph is draft.graph else backend.build(compared.graph, draft.partition)
    pair = _Pair(backend, compared, draft.partition.stages, stages, draft.request.seed)
    return _compare_outputs(pair, backend.example_inputs(compared.graph, pair.seed)), compared.notes


def _compare_outputs(pair: _Pair, inputs: Mapping[str, Any]) -> Verification:
    backend, graph = pair.backend, pair.compared.graph
    with backend.reproducible(graph, pair.seed):
        whole = dict(zip(graph.outputs, backend.reference(graph)(inputs), strict=True))
    with backend.reproducible(graph, pair.seed):
        staged = run_stages(pair.cuts, pair.stages, inputs, graph.outputs)
    names = pair.compared.outputs
    allowed = max(backend.tolerance(graph.family), pair.compared.rounding)
    return compare_outputs(names, [staged[name] for name in names], [whole[name] for name in names], allowed)
