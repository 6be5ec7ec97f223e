"""An If that sizes of the model decide is its branch, and the batch of the model can be opened."""

import numpy as np
import onnx
import pytest
from staged_onnx import parse
from wording import names

from heterps_compile import compile as compile_model

INNER = "<then_branch = c () => (float[N,T,4] r) {r = Abs(x)}, else_branch = d () => (float[N,T,4] s) {s = Exp(x)}>"
BRANCHES = (
    "<then_branch = a () => (float[N,T,4] p) {p = Neg(x)}, "
    f"else_branch = b () => (float[N,T,4] q) {{n = Greater(t, few) u = If(n) {INNER} q = Relu(u)}}>"
)
TAKEN = {100: np.negative, 10: np.abs, 3: np.exp}  # all but the first are not negative


def model(sizes: str) -> onnx.ModelProto:
    text = (
        f"g (float[N,T,4] x) => (float[N,T,4] y) <int64 one = {{1}}, int64 many = {{64}}, int64 few = {{8}}> "
        f"{{ s = Shape(x) t = Gather(s, one) c = Greater(t, many) y = If(c) {BRANCHES} }}"
    )
    return parse(text.replace("[N,T", f"[{sizes}"))


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_branch_that_the_models_sizes_decide_opens_its_batch(backend: str) -> None:
    for tokens, taken in TAKEN.items():
        compiled = compile_model(model(f"2,{tokens}"), batch=8, backend=backend, method="greedy")
        x = np.random.default_rng(0).standard_normal((8, tokens, 4), np.float32)
        assert np.allclose(compiled.run(x)[0], taken(x), atol=1e-6)
        assert not any(node.op == "If" for node in compiled.graph.nodes)
        folded = next(note for note in compiled.plan.notes if names(note, "If_0"))
        assert names(folded, "then_branch" if tokens == 100 else "else_branch")


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_branch_that_free_sizes_decide_stays_and_holds_for_others(backend: str) -> None:
    compiled = compile_model(model("N,T"), batch=2, shapes={"T": 10}, backend=backend, method="greedy")
    for tokens, taken in TAKEN.items():
        x = np.random.default_rng(0).standard_normal((2, tokens, 4), np.float32)
        assert np.allclose(compiled.run(x)[0], taken(x), atol=1e-6)


def test_a_size_that_a_file_states_wrongly_decides_nothing() -> None:
    proto = parse(
        "g (float[8] x) => (float[N] y) <int64 four = {4}> { k = Greater(x, x) b = Not(k) z = Compress(x, b) "
        "s = Size(z) c = Greater(s, four) y = If(c) <then_branch = a () => (float[N] p) {p = Neg(x)}, "
        "else_branch = b () => (float[N] q) {q = Exp(x)}> }"
    )
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [2]))
    compiled = compile_model(proto, method="greedy")
    x = np.arange(8, dtype=np.float32)
    assert np.array_equal(compiled.run(x)[0], -x)
