"""Nine real models that nobody here wrote, with random weights, each cut in two or more: the logits are the whole model's."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from light_models import NAMES, logits_name, randomized

import heterps_compile


@pytest.mark.parametrize("name", NAMES)
def test_the_stages_give_the_logits_of_the_whole_model(name: str, tmp_path: Path) -> None:
    model = randomized(name, seed=0)
    logits = logits_name(model)
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info(logits))
    path = tmp_path / f"{name}.onnx"
    onnx.save(model, path)
    compiled = heterps_compile.compile(path, min_stages=2, method="exact")
    assert len(compiled.stages) >= 2

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {
        value.name: np.random.default_rng(1).standard_normal(value.shape).astype(np.float32)
        for value in session.get_inputs()
    }
    expected = session.run([logits], feeds)[0]
    found = compiled.run(**feeds)[list(compiled.plan.graph_outputs).index(logits)]
    scale = np.abs(expected).max()
    assert scale > 1e-3
    assert expected.std() > 1e-3 * scale  # uniform logits would prove nothing
    assert np.abs(found - expected).max() <= 1e-4 * scale
