"""A stage as a file: the weights inside where they are few, beside it where they are many.

Protobuf holds a message about three times over while it writes it; weights beside the message are written as they
lie, one after the other.

Left out: reading (ONNX Runtime does).
"""

from pathlib import Path

import onnx_ir as ir

from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_session import in_memory

EXTERNAL_BEYOND_BYTES = 32 * 2**20


def write_model(model: ir.Model, name: str, what: str, directory: Path) -> list[str]:
    """Write a model into a directory; give the names of its files, ``name`` first.

    Args:
        model: The model; it stays as it is.
        name: Of the file.
        what: What the model is, for messages.
        directory: Where to.

    Raises:
        BackendError: saying why it cannot be written.
    """
    weights = {value: value.const_value for value in model.graph.initializers.values()}
    size_bytes = sum(tensor.nbytes for tensor in weights.values() if tensor is not None)
    try:
        if size_bytes > EXTERNAL_BEYOND_BYTES:
            ir.save(model, directory / name, external_data=f"{name}.data")
            return [name, f"{name}.data"]
        for value, tensor in weights.items():
            if tensor is not None:
                value.const_value = in_memory(tensor, value.name or "")
        ir.save(model, directory / name)
    except (ir.serde.SerdeError, ValueError) as error:
        raise BackendError(f"{what} cannot be written to {directory / name}: {error}") from error
    finally:
        for value, tensor in weights.items():
            value.const_value = tensor
    return [name]
