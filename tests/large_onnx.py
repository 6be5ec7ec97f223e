"""ONNX models of many weights in external data, written piece by piece so that making one needs little memory.

A table is read by index, then matrices follow each other in the form that an exporter gives them::

    ids -- Gather(table) -- MatMul(form(weight)) -- Tanh -- MatMul(form(weight)) -- Tanh -- ... -- y
"""

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

DATA = "weights.bin"
PAGE = 4096
_SHARE_OF_TABLE = 8
_ROWS_AT_ONCE = 1024
_FLOAT = TensorProto.FLOAT

FORMS: Mapping[str, Any] = MappingProxyType(
    {
        "plain": np.float32,  # as matrices, and transposed in every other layer, as linear layers are
        "transposed": np.float32,  # a Transpose of every weight
        "float16": np.float16,  # a Cast to float32
        "bfloat16": ml_dtypes.bfloat16,  # the same
        "int8": np.int8,  # a DequantizeLinear
        "convolutions": np.float32,  # of 3 x 3, each with a BatchNormalization
    }
)
"""What the weights are stored as, by the name of the form."""


def write_large_model(
    folder: Path, weight_bytes: int, *, layers: int = 16, form: str = "plain", alignment: int = PAGE
) -> Path:
    """Write ``model.onnx`` and its data into a folder; give the path of the model.

    Args:
        folder: That exists.
        weight_bytes: How large all weights are together, about: a table of an eighth of it, and matrices of one size.
        layers: How many matrices.
        form: One of :data:`FORMS`.
        alignment: Bytes; each weight begins at a multiple of it, and one element behind where it is below 64.
    """
    dtype = np.dtype(FORMS[form])
    table_bytes = weight_bytes // _SHARE_OF_TABLE
    window = (3, 3) if form == "convolutions" else ()
    channels = math.isqrt((weight_bytes - table_bytes) // (layers * math.prod(window) * dtype.itemsize))
    shape, rows = (channels, channels, *window), table_bytes // (4 * channels)
    held = [
        numpy_helper.from_array(np.array(0.01, np.float32), "scale"),
        numpy_helper.from_array(np.array(0, np.int8), "zero"),
    ]
    held += [numpy_helper.from_array(np.full(channels, v, np.float32), n) for n, v in (("one", 1), ("nought", 0))]
    held.append(numpy_helper.from_array(np.array([-1, channels, 1, 1]), "image"))
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"], name="table_rows")]
    x = "rows"
    if form == "convolutions":
        nodes.append(helper.make_node("Reshape", [x, "image"], ["pixels"], name="pixels"))
        x = "pixels"
    with (folder / DATA).open("wb") as file:
        held.append(_write(file, "table", (rows, channels), np.dtype(np.float32), alignment))
        for i in range(layers):
            held.append(_write(file, f"weight{i}", shape, dtype, alignment))
            nodes += _layer(form, i, x)
            x = f"y{i}"
    read = {name for node in nodes for name in node.input}
    held = [tensor for tensor in held if tensor.name in read]
    dims = ["batch", channels, 1, 1] if form == "convolutions" else ["batch", channels]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info(x, _FLOAT, dims)],
        held,
    )
    path = folder / "model.onnx"
    model: Any = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path.write_bytes(model.SerializeToString())
    return path


def _layer(form: str, i: int, x: str) -> list[NodeProto]:
    weight, product = f"weight{i}", f"product{i}"
    nodes = []
    if form == "convolutions":
        nodes.append(helper.make_node("Conv", [x, weight], [f"conv{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]))
        read = [f"conv{i}", "one", "nought", "nought", "one"]
        nodes.append(helper.make_node("BatchNormalization", read, [product], name=f"norm{i}"))
    elif form == "plain" and i % 2:
        nodes.append(helper.make_node("Gemm", [x, weight], [product], name=f"fc{i}", transB=1))
    else:
        made = f"made{i}" if form != "plain" else weight
        if form == "transposed":
            nodes.append(helper.make_node("Transpose", [weight], [made], name=made, perm=[1, 0]))
        elif form == "int8":
            nodes.append(helper.make_node("DequantizeLinear", [weight, "scale", "zero"], [made], name=made))
        elif form != "plain":
            nodes.append(helper.make_node("Cast", [weight], [made], name=made, to=_FLOAT))
        nodes.append(helper.make_node("MatMul", [x, made], [product], name=f"fc{i}"))
    return [*nodes, helper.make_node("Tanh", [product], [f"y{i}"], name=f"tanh{i}")]


def _write(file: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], alignment: int) -> TensorProto:
    """Write one weight, some rows at a time; give the tensor that says where it lies."""
    random = np.random.default_rng(len(name))
    offset = -(-file.tell() // alignment) * alignment + (dtype.itemsize if alignment < 64 else 0)
    file.seek(offset)
    scale = math.prod(shape[1:]) ** -0.5 / (0.01 if dtype == np.int8 else 1)
    for start in range(0, shape[0], _ROWS_AT_ONCE):
        piece = random.standard_normal((min(_ROWS_AT_ONCE, shape[0] - start), *shape[1:]), np.float32) * scale
        file.write(np.clip(piece, -127, 127).astype(dtype).tobytes())
    number = onnx.helper.np_dtype_to_tensor_dtype(dtype)
    tensor: Any = TensorProto(name=name, dims=shape, data_type=number, data_location=TensorProto.EXTERNAL)
    place = {"location": DATA, "offset": offset, "length": math.prod(shape) * dtype.itemsize}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return cast(TensorProto, tensor)
