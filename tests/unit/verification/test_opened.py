"""An opened batch is compared with the samples one by one, and a proof that were wrong would be found."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from staged_onnx import parse

from heterps_compile.api import compile as compile_model
from heterps_compile.errors import VerificationError
from heterps_compile.frontends.open_batch import open_model
from heterps_compile.frontends.open_batch.node_view import NodeView
from heterps_compile.frontends.open_batch.samples import Samples
from heterps_compile.plan.plan import Verification
from heterps_compile.runtime.verify import Difference
from heterps_compile.verification import opened
from heterps_compile.verification.pair import Pair


def model(text: str) -> onnx.ModelProto:
    made = parse(text)
    made.graph.initializer.append(numpy_helper.from_array(np.eye(6, 4, dtype=np.float32), "w"))
    return made


def verification(made: onnx.ModelProto, batch: int) -> Verification:
    found = compile_model(made, batch=batch, method="greedy").plan.verification
    assert found is not None
    return found


def test_the_plan_says_how_many_samples_were_compared() -> None:
    text = "g (float[1, 6] x) => (float[1, 4] y) { y = MatMul(x, w) }"
    assert (verification(model(text), 8).samples, verification(model(text), 8).samples_max_rel < 1e-6) == (8, True)
    assert verification(model(text), 100).samples == 16
    assert verification(model(text), 1).samples == 0


def test_a_batch_of_several_samples_is_compared_in_parts() -> None:
    text = "g (float[4, 6] x) => (float[4, 4] y) { y = MatMul(x, w) }"
    assert verification(model(text), 6).samples == 6
    assert verification(model(text), 2).samples == 2


def test_a_wrong_proof_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(node: NodeView) -> Samples | None:
        return node.samples(0)

    monkeypatch.setattr(open_model, "RULES", {**open_model.RULES, "Softmax": wrong})
    text = "g (float[1, 6] x) => (float[1, 4] y) { p = Softmax <axis = 0> (x) y = MatMul(p, w) }"
    with pytest.raises(VerificationError, match="'y'"):
        compile_model(model(text), batch=8, method="greedy")


def test_what_differs_by_rounding_agrees_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    compare, precisions = opened._compare, []

    def differs_in_float32(pair: Pair, *rest: Any) -> Difference:
        precisions.append(str(pair.inputs[0]["x"].dtype))
        if precisions[-1] == "float32":
            raise VerificationError("output 'y' differs")
        return compare(pair, *rest)

    monkeypatch.setattr(opened, "_compare", differs_in_float32)
    text = "g (float[1, 6] x) => (float[1, 4] y) { h = Softmax(x) y = MatMul(h, w) }"
    plan = compile_model(model(text), batch=8, method="greedy").plan
    assert precisions == ["float32", "float64"]
    note = "the opened batch was verified in float64; in the model's own precision output 'y' differs: rounding alone"
    assert note in plan.notes
