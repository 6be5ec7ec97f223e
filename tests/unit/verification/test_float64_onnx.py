"""What differs of an ONNX model is compared again in float64: near-ties agree there, what is wrong does not."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from staged_onnx import parse

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.errors import VerificationError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.onnx_float64 import graph_in_float64
from heterps_compile.passes.drafts import Draft
from heterps_compile.verification.draft import verify_draft

BACKENDS = ("onnxruntime", "torch", "jax")
ONE = np.float32(1)
ROW = np.array([[1, 1], [0.001, np.nextafter(np.float32(0.001), ONE)]], np.float32)
"""The second column of a product with this is larger where the second input is, by one part in ten million."""

TIE = f"""g (float[N, 2] x) => (float[N, 4] y, int64[N, 1] k)
<float[2, 2] w = {{{", ".join(repr(float(v)) for v in ROW.reshape(-1))}}}, int64[1] one = {{1}},
 float[2, 2] same = {{1, 0, 0, 1}}, float[2, 4] table = {{1, 2, 3, 4, -5, -6, -7, -8}}>
{{ a = MatMul(x, w) c = MatMul(a, same) i = ArgMax<axis = 1, keepdims = 0>(c) r = Gather(table, i)
   v, k = TopK<axis = 1>(c, one) y = Tanh(r) }}"""
FLOAT32_ONLY = """g (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] w = {1, 2, 3, 4}> { a = MatMul(x, w) b = Erf(a) c = MatMul(b, w) y = Erf(c) }"""


WRONG_ELSEWHERE = f"""g (float[N, 2] x) => (float[N, 3] y)
<float[2, 2] w = {{{", ".join(repr(float(v)) for v in ROW.reshape(-1))}}}, float[2, 2] same = {{1, 0, 0, 1}},
 float[2, 4] table = {{1, 2, 3, 4, -5, -6, -7, -8}}, float[4] s = {{1, 2, 1, 2}}, float[4] b = {{0, 1, 0, 1}},
 float[4] m = {{0.5, 0, 0.5, 0}}, float[4] v = {{1, 2, 3, 4}}, float[1, 1, 1] k = {{0.7}}, int64[3] many = {{1, 1, 80}},
 int64[2] flat = {{0, -1}}, int64[1] three = {{3}},
 int64 two = {{2}}, bool yes = {{1}}>
{{ a = MatMul(x, w) c = MatMul(a, same) i = ArgMax<axis = 1, keepdims = 0>(c) r = Gather(table, i)
   n = BatchNormalization<momentum = 0.9>(r, s, b, m, v)
   o, all = Loop(two, yes, n)
     <body = body (int64 trip, bool go, float[N, 4] c0) => (bool go1, float[N, 4] c1, float[N, 4] c2)
     {{ go1 = Identity(go) c1 = Erf(c0) c2 = Add(c1, n) }}>
   w1 = ReduceSum<axes = [0], keepdims = 0>(all) w2 = Add(o, w1) u = Unsqueeze<axes = [1]>(w2) q = Conv(u, k)
   p = GlobalMaxPool(q) t = Tile(q, many) f = Reshape(t, flat) h, j = TopK<axis = 1>(f, three)
   e = GatherElements<axis = 1>(f, j) z = Squeeze<axes = [2]>(p) y = Add(e, z) }}"""


class Steep(torch.nn.Module):
    """Multiply rounding by ten thousand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.same, self.last = (torch.nn.Linear(*sizes, bias=False) for sizes in ((4, 2), (2, 2), (2, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((1e4 * self.same(self.first(x))).sin())


class Changed:
    """A stage whose first output is changed."""

    def __init__(self, stage: Any, change: Any) -> None:
        self.stage, self.change, self.inputs, self.outputs = stage, change, stage.inputs, stage.outputs

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        first, *others = self.stage(*values)
        array = first.detach().numpy() if hasattr(first, "detach") else np.asarray(first)
        made = self.change(array)
        return (torch.from_numpy(made) if hasattr(first, "detach") else made, *others)


def compile_changed(
    monkeypatch: pytest.MonkeyPatch, backend: str, change: Any, model: Any = None, **options: Any
) -> Any:
    """Compile a model whose first stage of several gives something else."""
    kind = type(find_backend(backend))
    for name in ("build", "build_in_float64"):
        build = getattr(kind, name, None)

        def changed(self: Any, graph: Any, partition: Any, build: Any = build) -> Any:
            first, *others = build(self, graph, partition)
            return (Changed(first, change), *others) if others else (first,)

        if build is not None:
            monkeypatch.setattr(kind, name, changed)
    options = {"batch": 64, "min_stages": 2, "method": "greedy", **options}
    return heterps_compile.compile(model or parse(TIE), backend=backend, **options)


def nudged(values: Any) -> Any:
    """Round the second column otherwise, by the last bit."""
    return np.stack([values[..., 0], np.nextafter(values[..., 1], values.dtype.type(1e9))], -1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_that_hang_on_a_near_tie_agree_in_float64(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    plan = compile_changed(monkeypatch, backend, nudged).plan
    assert plan.verification.max_rel < 1e-12
    assert any("verified in float64" in note and "differs" in note for note in plan.notes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrong_stage_differs_in_float64_too(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    with pytest.raises(VerificationError, match="float64"):
        compile_changed(monkeypatch, backend, lambda values: values + np.array([0, 1], values.dtype))


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_ops_that_other_evaluators_get_wrong_are_verified_in_float64(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Since ``onnx.reference`` is wrong or limited there, ours agrees with ONNX Runtime in float32 or is not used."""
    compiled = compile_changed(monkeypatch, backend, nudged, parse(WRONG_ELSEWHERE, opset=12), min_stages=3)
    (note,) = [note for note in compiled.plan.notes if "verified in float64" in note]
    assert "Erf, Conv, GlobalMaxPool" in note
    assert compiled.plan.verification.max_rel < 1e-12


def test_what_does_not_run_in_float64_is_compared_with_perturbed_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(Steep(), (torch.randn(64, 4, generator=torch.Generator().manual_seed(0)),))
    plan = compile_changed(monkeypatch, "torch", nudged, program, batch=None, min_stages=3).plan
    assert any("perturbed inputs" in note and "data types" in note for note in plan.notes)
    monkeypatch.undo()
    with pytest.raises(VerificationError, match=r"float64.*data types"):
        compile_changed(monkeypatch, "torch", lambda values: values * 1.01, program, batch=None, min_stages=3)


@pytest.mark.parametrize("backend", ["onnxruntime", "torch"])
def test_a_wrong_stage_differs_where_onnx_runtime_has_no_float64_kernels(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    with pytest.raises(VerificationError, match="stages"):
        compile_changed(monkeypatch, backend, lambda values: values * 2, parse(FLOAT32_ONLY))


def test_the_copy_leaves_the_model_as_it_is() -> None:
    graph = import_onnx(parse(TIE), batch=8)
    before = ir.to_proto(graph.source.model).SerializeToString(deterministic=True)
    wide = graph_in_float64(graph)
    assert ir.to_proto(graph.source.model).SerializeToString(deterministic=True) == before
    assert {value.dtype for value in wide.values.values()} == {"float64", "int64"}


def test_a_stage_that_is_wrong_in_float32_alone_is_found() -> None:
    """Stages built anew in float64 are right, and nothing hangs on rounding."""
    smooth = FLOAT32_ONLY.replace("Erf", "Tanh")
    drafts: list[Draft] = []
    options: Any = {"batch": 8, "backend": "torch", "method": "greedy", "min_stages": 2, "verify": False}
    heterps_compile.compile(parse(smooth), observer=lambda _, draft: drafts.append(draft), **options)
    stages: Any = drafts[-1].runnable
    stages[-1].register_forward_hook(lambda _stage, _values, results: tuple(r * 1.01 for r in results))
    with pytest.raises(VerificationError):
        verify_draft(find_backend("torch"), drafts[-1])
