"""The nine real models that ship inside the ``onnx`` package, with random weights of a sane scale.

As they ship, every weight is the constant 0.02, so that every output is uniform and equality proves nothing. Here the
weights are drawn by what they are for, so that activations neither die out nor explode from layer to layer; and the
input of the final softmax is an output too, since a saturated softmax would hide differences.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)

Array = NDArray[np.float32]


def path(name: str) -> Path:
    """Return the file of a model as it ships."""
    return FOLDER / f"light_{name}.onnx"


def randomized(name: str, seed: int) -> onnx.ModelProto:
    """Return a model with seeded random weights as initializers, its opset and format version kept.

    Its outputs are those it ships with and, where that is a softmax, its input.
    """
    model = onnx.load(path(name))
    graph, rng = model.graph, np.random.default_rng(seed)
    shapes = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    made = {node.output[0]: shapes[node.input[0]] for node in graph.node if node.op_type == "ConstantOfShape"}
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    read = {value for node in kept for value in node.input}
    for field in (graph.initializer, graph.input):
        left = [item for item in field if item.name in read]
        del field[:]
        field.extend(left)
    roles = _roles(kept)
    for weight, shape in made.items():
        array = _draw(rng, roles[weight], tuple(int(dim) for dim in shape))
        graph.initializer.append(numpy_helper.from_array(array, weight))
        # format version 3 wants every initializer among the inputs
        graph.input.append(helper.make_tensor_value_info(weight, onnx.TensorProto.FLOAT, array.shape))
    del graph.node[:]
    graph.node.extend(kept)
    _calibrate(model, rng)
    if kept[-1].op_type == "Softmax":
        logits = graph.output.add(name=kept[-1].input[0])
        logits.type.CopyFrom(graph.output[0].type)
    return model


def _roles(nodes: Sequence[onnx.NodeProto]) -> Mapping[str, tuple[onnx.NodeProto, int]]:
    """Give, for every value, its first reader and the position it is read at, looking through Unsqueeze."""
    reader = {}
    for node in reversed(nodes):
        for position, value in enumerate(node.input):
            through = node.op_type == "Unsqueeze" and node.output[0] in reader
            reader[value] = reader[node.output[0]] if through else (node, position)
    return reader


def _draw(rng: np.random.Generator, role: tuple[onnx.NodeProto, int], shape: tuple[int, ...]) -> Array:
    node, position = role
    if (node.op_type, position) in (("BatchNormalization", 1), ("Mul", 1)):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    spread = 0.1
    if position == 1 and node.op_type in ("Conv", "Gemm"):
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        fan_in = shape[0] if node.op_type == "Gemm" and not transposed else int(np.prod(shape[1:]))
        spread = np.sqrt(2 / fan_in)
    # a large matrix repeats a pool of numbers, of a prime length so that no two rows are the same
    drawn = rng.standard_normal(min(int(np.prod(shape)), 1_000_003), dtype=np.float32)
    return np.resize(drawn * np.float32(spread), shape)


def _calibrate(model: onnx.ModelProto, rng: np.random.Generator) -> None:
    """Set the statistics of every BatchNormalization to those of its input in one run, as training would.

    Else activations grow from layer to layer and forget the input. With one sample, an InstanceNormalization is a
    BatchNormalization that takes its statistics from the data: one run of a copy with these tells them all.
    """
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    if not norms:
        return
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    for node in probe.graph.node:
        if node.op_type == "BatchNormalization":
            node.op_type = "InstanceNormalization"
            del node.input[3:]
            del node.attribute[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=node.input[0]) for node in norms)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns of initializers among the inputs
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options)
    feeds = {value.name: rng.standard_normal(value.shape, dtype=np.float32) for value in session.get_inputs()}
    seen = session.run([node.input[0] for node in norms], feeds)
    weights = {item.name: item for item in model.graph.initializer}
    for node, array in zip(norms, seen, strict=True):
        for statistic, name in ((array.mean((0, 2, 3)), node.input[3]), (array.var((0, 2, 3)) + 1e-3, node.input[4])):
            weights[name].CopyFrom(numpy_helper.from_array(statistic.astype(np.float32), name))
