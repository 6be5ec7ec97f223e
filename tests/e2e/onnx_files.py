"""Small ONNX files, sound and broken, as a user might hand them in."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def weight(name: str, *shape: int) -> onnx.TensorProto:
    values = np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def make_model(nodes: list[onnx.NodeProto], **opsets: int) -> onnx.ModelProto:
    """Make a model of nodes that read ``ids``, ``dense`` and weights and make ``click``."""
    graph = helper.make_graph(
        nodes,
        "click",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", 4]),
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["N", 16]),
        ],
        [helper.make_tensor_value_info("click", TensorProto.FLOAT, None)],
        [
            weight("table", 100, 8),
            weight("w1", 48, 32),
            weight("w2", 32, 1),
            numpy_helper.from_array(np.array([0, 32], np.int64), "flat"),
        ],
    )
    imports = [helper.make_opsetid("", 18), *(helper.make_opsetid(domain, v) for domain, v in opsets.items())]
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


CLICK_NODES = [
    helper.make_node("Gather", ["table", "ids"], ["rows"], "embedding"),
    helper.make_node("Reshape", ["rows", "flat"], ["wide"], "flatten"),
    helper.make_node("Concat", ["wide", "dense"], ["features"], "concat", axis=1),
    helper.make_node("MatMul", ["features", "w1"], ["hidden"], "fc1"),
    helper.make_node("Relu", ["hidden"], ["active"], "relu"),
    helper.make_node("MatMul", ["active", "w2"], ["logit"], "fc2"),
    helper.make_node("Sigmoid", ["logit"], ["click"], "sigmoid"),
]


def click_model() -> onnx.ModelProto:
    """Make a model that predicts clicks: an embedding, two dense layers, a batch ``N`` that is left open."""
    return make_model(CLICK_NODES)


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def with_external_weight(model: onnx.ModelProto, location: str) -> onnx.ModelProto:
    """Return the model with the bytes of its first weight said to be in another file."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    tensor = found.graph.initializer[0]
    size = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "0", "length": str(size)}.items():
        tensor.external_data.add(key=key, value=value)
    return found


def cyclic() -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["b"], ["a"], "one"), helper.make_node("Relu", ["a"], ["b"], "two")]
    return make_model([*nodes, helper.make_node("Identity", ["b"], ["click"], "three")])


def undefined_value() -> onnx.ModelProto:
    return make_model([*CLICK_NODES[:-1], helper.make_node("Add", ["logit", "ghost"], ["click"], "haunted")])


def unknown_op() -> onnx.ModelProto:
    return make_model([*CLICK_NODES[:-1], helper.make_node("Sigmoyd", ["logit"], ["click"], "typo")])


def unknown_domain() -> onnx.ModelProto:
    node = helper.make_node("Magic", ["logit"], ["click"], "spell", domain="com.nobody")
    return make_model([*CLICK_NODES[:-1], node], **{"com.nobody": 1})
