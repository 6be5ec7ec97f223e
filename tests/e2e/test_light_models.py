"""Nine real models with random weights, each cut in two or more: the logits are the whole model's."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from light_models import NAMES, randomized
from staged_onnx import by_rounding

import heterps_compile

QUICK = ("shufflenet", "squeezenet")


def logits_of(model: onnx.ModelProto) -> str:
    """Return the value before the softmax: a saturated softmax hides differences."""
    output = model.graph.output[0].name
    last = next(node for node in model.graph.node if output in node.output)
    return last.input[0] if last.op_type == "Softmax" else output


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_the_stages_give_the_logits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = randomized(name, seed=0)
    logits = logits_of(model)
    if logits != model.graph.output[0].name:
        model.graph.output.append(onnx.helper.make_tensor_value_info(logits, onnx.TensorProto.FLOAT, None))
    path = tmp_path / f"{name}.onnx"
    onnx.save(model, path)
    compiled = heterps_compile.compile(path, min_stages=2, method="exact")
    assert len(compiled.stages) >= 2

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {
        value.name: np.random.default_rng(1).standard_normal(value.shape, np.float32) for value in session.get_inputs()
    }
    expected = session.run([logits], feeds)[0]
    found = compiled.run(**feeds)[list(compiled.plan.graph_outputs).index(logits)]
    scale = np.abs(expected).max()
    assert scale > 1e-3
    assert expected.std() > 1e-3 * scale  # uniform logits would prove nothing
    near = by_rounding(model, feeds, session.run(None, feeds))
    assert np.abs(found - expected).max() <= near * scale
