"""The whole model, annotated so that ONNX Runtime itself puts every node where the plan has it, without splitting.

Every node has ``metadata_props["layer_ann"]``, the name of its stage; the session option
``session.layer_assignment_settings`` maps these names to devices. docs/onnxruntime-annotation.md says what ONNX
Runtime makes of it.

Left out: which of several devices of one kind (a session has one provider of a kind), and replicas.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from heterps_compile.backends.contract import StageDevice
from heterps_compile.backends.onnx_stage.stage_models import stage_models
from heterps_compile.frontends.onnx_session import format_version
from heterps_compile.frontends.onnx_structure import reads
from heterps_compile.ir.graph import ONNX, Graph
from heterps_compile.ir.partition import Partition

from .write_stage import write_model

ANNOTATION = "layer_ann"
OPTION = "session.layer_assignment_settings"


@dataclass(frozen=True, slots=True)
class AnnotatedModel:
    """A model and the session option that goes with it.

    Attributes:
        model: Every node with the stage it is in; the option is among its ``metadata_props`` too.
        settings: What the session option :data:`OPTION` is to be.
        notes: What of the plan the option cannot say.
    """

    model: ir.Model
    settings: str
    notes: tuple[str, ...] = ()

    def write(self, path: Path) -> list[str]:
        """Write the model, with its weights beside it where they are many; give the names of the files.

        Raises:
            BackendError: saying why it cannot be written.
        """
        return write_model(self.model, path.name, "the annotated model", path.parent)


def annotate(graph: Graph, partition: Partition, stages: Sequence[StageDevice]) -> AnnotatedModel:
    """Return the whole model with every node annotated.

    Args:
        graph: Of the family ``"onnx"`` (its model is copied, weights shared) or ``"torch"`` (it is exported).
        partition: How it is cut.
        stages: What each stage is planned for, in the same order.

    Raises:
        BackendError: naming stage, node and op of what ONNX does not have.
    """
    if graph.family == ONNX:
        model, stage_of = _copy(graph, partition)
    else:
        from heterps_compile.backends.onnx_stage.join_stages import join_stages  # noqa: PLC0415 - imports torch

        model, stage_of = join_stages(stage_models(graph, partition), graph)
    for node, stage in stage_of.items():
        node.metadata_props[ANNOTATION] = _label(stage)
    settings = _settings(stages)
    model.metadata_props[OPTION] = settings
    return AnnotatedModel(model, settings, _notes(stages))


def _label(stage: int) -> str:
    return f"stage_{stage}"


def _settings(stages: Sequence[StageDevice]) -> str:
    """Write ``cpu(=stage_0, =stage_2); gpu(=stage_1)``: = for the whole name, else stage_1 would take stage_10 too."""
    by_kind: dict[str, list[str]] = {}
    for stage in stages:
        by_kind.setdefault(stage.kind, []).append(f"={_label(stage.index)}")
    return "; ".join(f"{kind}({', '.join(labels)})" for kind, labels in by_kind.items())


def _notes(stages: Sequence[StageDevice]) -> tuple[str, ...]:
    devices: dict[str, dict[str, None]] = {}
    for stage in stages:
        devices.setdefault(stage.kind, {})[stage.device] = None
    return tuple(
        f"ONNX Runtime has one provider of {kind}s in a session: {' and '.join(names)} are the same device to it"
        for kind, names in devices.items()
        if len(names) > 1 and kind != "cpu"
    )


def _copy(graph: Graph, partition: Partition) -> tuple[ir.Model, dict[ir.Node, int]]:
    """Copy an ONNX model; give the stage of every node of the copy."""
    source: ir.Model = graph.source.model
    model = ir.Model(source.graph.clone(), ir_version=format_version(source), producer_name="heterps-compile")
    nodes = list(model.graph)
    stage_of = {nodes[graph.nodes[i].origin]: cut.index for cut in partition.stages for i in cut.nodes}
    first_reader: dict[ir.Node, int] = {}
    for node in reversed(nodes):  # what makes a constant goes with the first stage that reads it
        stage = stage_of.setdefault(node, first_reader.get(node, len(partition.stages) - 1))
        for value in reads(node, model.graph):
            maker = value.producer()
            if maker is not None:
                first_reader[maker] = min(stage, first_reader.get(maker, stage))
    return model, stage_of
