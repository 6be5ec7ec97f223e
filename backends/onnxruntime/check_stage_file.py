"""What a written ONNX stage may point to: files of its own stage, and nothing else on the disk.

ONNX Runtime would map whatever file a tensor names as its data. Libraries with operators of their own it loads only
where it is told to, which happens nowhere here.

Left out: the hashes of these files (``plan/folder.py``).
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable


def check_stage_file(path: Path, names: Sequence[str], index: int) -> None:
    """Check where the tensors of a stage say that their data lie; reads none of them.

    Args:
        path: Of the ONNX file.
        names: Of the stage's files, whose hashes the plan has.
        index: Of the stage.

    Raises:
        BackendError: naming stage, tensor and place.
    """
    try:
        model: Any = onnx.load_model(str(path), format="protobuf", load_external_data=False)
    except OSError as error:
        raise BackendError(
            f"cannot open stage {index} ({printable(str(path))}): {error.strerror}; compile again"
        ) from error
    except DecodeError as error:
        raise BackendError(
            f"cannot open stage {index} ({printable(str(path))}): it is no ONNX model; compile again"
        ) from error
    for tensor in _tensors(model):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        if place not in names[1:]:
            raise BackendError(
                f"stage {index}: the tensor {printable(tensor.name)!r} of {str(path)!r} says that its data lie in "
                f"{printable(place)!r}, which is no file of this stage; nothing was read: compile again"
            )


def _tensors(model: Any) -> Iterator[Any]:
    """Yield every tensor of a model: in its graphs, in those inside nodes, in functions and in training information."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    for training in model.training_info:
        graphs += [training.initialization, training.algorithm]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield sparse.values
                yield sparse.indices
            nodes += graph.node
        else:
            for attribute in nodes.pop().attribute:
                yield attribute.t
                yield from attribute.tensors
                for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                    yield sparse.values
                    yield sparse.indices
                graphs += [attribute.g, *attribute.graphs]
