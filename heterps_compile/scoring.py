"""How a model that is compiled for training scores: the same stages once more, as they are in evaluation mode.

The model is read a second time in evaluation mode, cut where the training is cut (``ir/same_cut.py``), built by the
same backend, and compared with the model in evaluation mode::

    module            -> graph        -> place, cut -> stages               trains
    module.eval()     -> graph        ->        cut -> stages, same weights  scores

That way a model may do whatever it likes where ``self.training`` is false, return other things even. What cannot be
read, cut, built or made equal is told in a note, and such a folder refuses to score instead of scoring wrongly.

Left out: training in evaluation mode; whoever wants that compiles ``module.eval()`` for training.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from heterps_compile.backends.comparable import find_comparable
from heterps_compile.backends.contract import Backend, Capabilities
from heterps_compile.backends.ops import why_unwritable
from heterps_compile.errors import BackendError, HeterpsError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import ONNX, TORCH, Graph
from heterps_compile.ir.laws import verify_graph
from heterps_compile.ir.same_cut import cut_alike
from heterps_compile.passes.drafts import Emitted
from heterps_compile.plan.plan import Scoring, Verification
from heterps_compile.plan.plan_notes import NOT_SCORED, OTHER_MODE
from heterps_compile.runtime.signature import signature_of_graph
from heterps_compile.verification.draft import verify_draft

from .compiled_model import ScoringStages


@dataclass(frozen=True, slots=True)
class Scored:
    """How a model scores.

    Attributes:
        scoring: For the plan.
        stages: What runs; None where it cannot score.
        notes: What the user should know of it.
    """

    scoring: Scoring
    stages: ScoringStages | None = None
    notes: tuple[str, ...] = ()


def make_scoring(
    model: Any, draft: Emitted, backend: Backend, read: Callable[[Any], Graph], *, verify: bool
) -> Scored | None:
    """Make the stages with which a model compiled for training scores; None for one that is compiled for inference.

    Args:
        model: As its owner gave it.
        draft: Of the training, every pass run on it.
        backend: That built its stages, and knows their devices.
        read: Reads the model.
        verify: Whether the stages are compared with the model in evaluation mode.
    """
    if draft.request.mode != "training":
        return None
    try:
        with _in_evaluation(model, draft.graph, read) as graph:
            return _scored(draft, backend, graph, verify=verify)
    except HeterpsError as error:
        reason = f"{error}; score with a folder that was compiled in evaluation mode, and --weights CHECKPOINT"
        return Scored(Scoring(refused=reason), notes=(f"{NOT_SCORED}: {reason}",))


def mode_notes(model: Any, graph: Graph, mode: str) -> tuple[str, ...]:
    """Say where a PyTorch model was given in another mode than the one it is compiled for.

    Args:
        model: As its owner gave it.
        graph: What was read.
        mode: That it is compiled for.
    """
    if graph.family != TORCH:
        return ()
    from torch import nn  # noqa: PLC0415 - torch only for torch models

    from heterps_compile.frontends.torch_modes import has_modes, is_training, training_nodes  # noqa: PLC0415 - as above

    if mode != "training":
        found = training_nodes(graph)
        if not found:
            return ()
        if isinstance(model, nn.Module) and not is_training(model):
            return (
                f"{OTHER_MODE} evaluation mode, and {printable(found[0])!r} drops at random or moves statistics there "
                f"too; pass it training=self.training where that is not meant",
            )
        return (
            f"{OTHER_MODE} training mode: {printable(found[0])!r} and whatever else drops at random or "
            f"moves statistics does so in inference; call model.eval() before compiling where that is not meant",
        )
    if isinstance(model, nn.Module) and not is_training(model) and has_modes(model):
        return (
            f"{OTHER_MODE} evaluation mode: it trains without dropout, and its batch norms keep their "
            "statistics; call model.train() before compiling where that is not meant",
        )
    return ()


def _scored(draft: Emitted, backend: Backend, graph: Graph, *, verify: bool) -> Scored:
    partition, stages = draft.partition, draft.runnable
    if graph is not draft.graph:
        verify_graph(graph)
        unwritable = why_unwritable(backend, graph)
        if unwritable and not why_unwritable(backend, draft.graph):  # what trains can be saved, and stays so
            raise BackendError(unwritable)
        is_cut_alike = graph.nodes == draft.graph.nodes
        partition = draft.partition if is_cut_alike else cut_alike(graph, draft.graph, draft.partition)
        stages = backend.build(graph, partition)
    verification: Verification | None = None
    notes: tuple[str, ...] = ()
    if verify and graph is not draft.graph:
        asked = replace(draft.request, mode="inference")
        scoring = replace(draft, graph=graph, partition=partition, runnable=stages, request=asked)
        verification, found = verify_draft(backend, scoring)
        notes = tuple(f"in evaluation mode: {note}" for note in found)
    signature = signature_of_graph(graph)
    return Scored(
        Scoring(
            graph_inputs=graph.inputs,
            graph_outputs=graph.outputs,
            signature=signature.to_json(),
            boundaries=tuple((cut.inputs, cut.outputs) for cut in partition.stages),
            verification=verification,
        ),
        ScoringStages(stages, signature, graph, partition),
        notes,
    )


@contextmanager
def _in_evaluation(model: Any, graph: Graph, read: Callable[[Any], Graph]) -> Iterator[Graph]:
    """Yield the graph of a model in evaluation mode, itself in that mode meanwhile; the same where it has no other."""
    if graph.family == ONNX:
        yield _onnx_in_evaluation(graph)
        return
    from torch import fx, nn  # noqa: PLC0415 - torch only for torch models

    from heterps_compile.frontends.torch_modes import (  # noqa: PLC0415 - as above
        evaluated,
        is_training,
        same_nodes,
        training_nodes,
    )

    if not isinstance(model, nn.Module):
        found = training_nodes(graph)
        if found:
            raise BackendError(
                f"{graph.name!r} was exported in training mode (node {printable(found[0])!r}), and what it does in "
                f"evaluation mode is not in it"
            )
        yield graph
    elif not is_training(model):
        yield graph
    else:
        with evaluated(model) as other:
            made = read(other)
            yield graph if not isinstance(model, fx.GraphModule) and same_nodes(made, graph) else made


def _onnx_in_evaluation(graph: Graph) -> Graph:
    """Return an ONNX model with every Dropout in inference mode; batch norms in training mode are refused."""
    from heterps_compile.frontends.onnx_bodies import every_node  # noqa: PLC0415 - onnx only for ONNX models

    for node in every_node(graph.source.model.graph):
        mode = node.attributes.get("training_mode")
        if node.op_type == "BatchNormalization" and mode is not None and mode.as_int():
            raise BackendError(
                f"the ONNX model {graph.name!r} has batch norms in training mode (node {printable(str(node.name))!r}), "
                f"and ONNX does not say what they are otherwise"
            )
    return find_comparable(graph, Capabilities()).graph
