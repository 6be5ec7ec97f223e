"""The ONNX model of every stage: cut out of an ONNX model, or exported from the PyTorch stage.

Left out: running them (``backends/onnxruntime/``, ``backends/jax/``).
"""

import onnx_ir as ir

from heterps_compile.backends.unsupported import UnsupportedNode
from heterps_compile.errors import BackendError
from heterps_compile.ir.graph import ONNX, TORCH, Graph
from heterps_compile.ir.partition import Partition
from heterps_compile.packages import need


def stage_models(graph: Graph, partition: Partition) -> tuple[ir.Model, ...]:
    """Return one ONNX model a stage, in order.

    Inputs and outputs bear the names the cut gives them, initialisers the names of the graph's parameters; weights
    share memory with the whole model's. A dimension that varies has its name.

    Raises:
        BackendError: naming stage, node and op of what ONNX does not have.
    """
    if graph.family == ONNX:
        from .cut_model import cut_model  # noqa: PLC0415 - one family at a time

        return tuple(cut_model(graph, partition))
    if graph.family == TORCH:
        _need_onnxscript(graph)
        from .export_stage import export_stage  # noqa: PLC0415 - torch only for torch models

        return tuple(export_stage(graph, cut) for cut in partition.stages)
    raise BackendError(f"{graph.name!r} is of the family {graph.family!r}; ONNX stages are made of {ONNX} and {TORCH}")


def training_models(graph: Graph, partition: Partition) -> tuple[tuple[ir.Model, dict[str, str]], ...]:
    """Return one model a stage as a model in training mode runs it, for a backend that has the ops of training.

    Returns:
        In order, every stage's model, and by the names of the buffers that it changes those of the outputs that are
        their new values; an ONNX model is what it says it is, and changes none.

    Raises:
        BackendError: naming stage, node and op of what has no translation.
    """
    if graph.family != TORCH:
        return tuple((model, {}) for model in stage_models(graph, partition))
    _need_onnxscript(graph)
    from .export_stage import export_training  # noqa: PLC0415 - torch only for torch models

    return tuple(export_training(graph, cut) for cut in partition.stages)


def unwritable_nodes(graph: Graph) -> list[UnsupportedNode]:
    """Return the nodes of a PyTorch model that no ONNX model can have; see ``unwritable.py``.

    Raises:
        MissingPackageError: where what writes ONNX is not installed.
    """
    if graph.family != TORCH:
        return []
    _need_onnxscript(graph)
    from .unwritable import find_unwritable  # noqa: PLC0415 - torch only for torch models

    return find_unwritable(graph)


def _need_onnxscript(graph: Graph) -> None:
    need(f"writing ONNX stages of the PyTorch model {graph.name!r}", "export")
