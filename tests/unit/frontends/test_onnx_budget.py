"""A small file that requests much is refused by the number that exceeds the budget, before anything is run or made."""

import resource
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from staged_onnx import parse

from heterps_compile.errors import GraphError, InputError
from heterps_compile.frontends import onnx_files, onnx_shapes, onnx_trial
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.onnx_budget import BUDGET, bounded_run
from heterps_compile.frontends.onnx_session import open_session

STEP = "(int64 i, bool c, float[N,4] v) => (bool co, float[N,4] vo) { co = Identity(c) vo = Relu(v) }"
INNER = "(int64 j, bool d, float[N,4] w) => (bool do, float[N,4] wo) { do = Identity(d) wo = Relu(w) }"
OUTER = (
    "(int64 i, bool c, float[N,4] v) => (bool co, float[N,4] vo) { co = Identity(c) vo = Loop(trips, c, v) <body = n "
)
SCAN = "(float[N,4] s, float e) => (float[N,4] so) { so = Add(s, e) }"
LOOP = f"y = Loop(trips, go, x) <body = b {STEP}>"
NESTED = f"y = Loop(trips, go, x) <body = b {OUTER}{INNER}> }}>"


def ending(value: str) -> str:
    return f"r = ReduceSum <keepdims = 0> ({value}) y = Add(x, r)"


def model(constants: str, nodes: str, **options: Any) -> onnx.ModelProto:
    held = f"<{constants}>" if constants else ""
    return parse(f"g (float[N,4] x) => (float[N,4] y) {held} {{ {nodes} }}", **options)


def calls(depth: int, called: int) -> onnx.ModelProto:
    """Return a model of functions of which each calls the one before twice, and a call of one of them."""
    of = '<domain: "f", opset_import: ["": 18, "f": 1]>'
    first = f"{of} f0 (a) => (b) {{ b = Relu(a) }}"
    more = [f"{of} f{i} (a) => (b) {{ t = f.f{i - 1}(a) b = f.f{i - 1}(t) }}" for i in range(1, depth + 1)]
    return model("", f"y = f.f{called}(x)", domains=["f"], functions="\n".join([first, *more]))


GO = "bool go = {1}"
REFUSED = {
    "trips": (model(f"{GO}, int64 trips = {{1000000000}}", LOOP), "3,000,000,001.*1,000,000,000 trips.*10,000,000"),
    "trips that constants make": (
        model(f"{GO}, int64 k = {{100000}}", f"trips = Mul(k, k) {LOOP}"),
        "10,000,000,000 trips",
    ),
    "trips that shapes make": (
        model(f"{GO}, int64 k = {{1000000000}}", f"s = Size(x) trips = Mul(s, k) {LOOP}"),
        "8,000,000,000 trips",
    ),
    "no end": (model(GO, LOOP.replace("trips", "")), "without end"),
    "nested trips": (model(f"{GO}, int64 trips = {{100000}}", NESTED), "30,000,300,001.*100,000 trips"),
    "slices of a scan": (
        model(
            "int64[1] n = {100000000}, float[1] e = {1}",
            f"q = Expand(e, n) y = Scan <num_scan_inputs = 1, body = b {SCAN}> (x, q)",
        ),
        "100,000,000 trips",
    ),
    "expanded functions": (calls(24, 24), "50,331,646.*262,144"),
    "equal names": (calls(16, 16), "14,316,361,046.*200,000,000"),
    "outputs of a split": (
        model("", "a, b = Split <axis = 1, num_outputs = 1000000000> (x) y = Concat <axis = 1> (a, b)"),
        "num_outputs.*1,000,000,000.*1,048,576",
    ),
    "tensors of a sequence": (
        model(
            "int64[2] n = {1, 10000000}, int64 one = {1}",
            f"t = Tile(x, n) q = SplitToSequence <axis = 1> (t, one) h = SequenceAt(q, one) {ending('h')}",
        ),
        "40,000,000.*1,048,576",
    ),
    "a made constant": (
        model("int64 o = {0}, int64 n = {1000000000}, int64 d = {1}", f"t = Range(o, n, d) {ending('t')}"),
        "7.45 GiB",
    ),
    "inputs that a run needs": (
        parse(
            f"g (float[N,4] x, float[1099511627776] z) => (float[N,4] y) "
            f"{{ n = NonZero(z) f = Cast <to = 1> (n) {ending('f')} }}"
        ),
        "4 TiB",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_file_requests_is_refused_by_its_number(name: str) -> None:
    proto, numbers = REFUSED[name]
    with pytest.raises(GraphError, match=numbers):
        import_onnx(proto, batch=2)


def test_a_loop_over_the_budget_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_trial.Trials, "_run", lambda *_: pytest.fail("run"))
    proto, numbers = REFUSED["trips"]
    with pytest.raises(GraphError, match=numbers):
        import_onnx(proto)


def test_a_huge_fixed_batch_is_not_opened() -> None:
    proto = parse(f"g (float[{2**62},4] x) => (float[{2**62},4] y) {{ y = Relu(x) }}")
    with pytest.raises(GraphError, match=rf"{2**62:,}.*{2**20:,}"):
        import_onnx(proto, batch=4)


def doubling(times: int) -> onnx.ModelProto:
    """Return a model of a vector that doubles, from a length that inference of values alone finds."""
    doubled = " ".join(f"t{i + 1} = Concat <axis = 0> (t{i}, t{i})" for i in range(times))
    start = "s = Shape(x) l = Shape(s) t0 = Slice(s, zero, l)"
    return model("int64[1] zero = {0}", f"{start} {doubled} f = Cast <to = 1> (t{times}) {ending('f')}")


def test_vectors_that_double_are_neither_inferred_by_element_nor_run() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert import_onnx(doubling(22), batch=2).values["f"].shape == (2**23,)
    with pytest.raises(GraphError, match=r"'t25'.*512 MiB.*256 MiB"):
        import_onnx(doubling(60), batch=2)
    with pytest.raises(InputError, match=r"'t25'.*512 MiB.*256 MiB"):
        import_onnx(doubling(60))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB; an object an element takes more


@pytest.mark.parametrize("batch", [2, None])
def test_a_run_that_only_shows_its_sizes_has_bounded_memory(batch: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(BUDGET, run_bytes=2**20)
    monkeypatch.setattr(onnx_shapes, "BUDGET", small)
    monkeypatch.setattr(onnx_trial, "BUDGET", small)
    doubled = " ".join(f"t{i + 1} = Concat <axis = 0> (t{i}, t{i})" for i in range(40))
    start = "n = NonZero(x) l = Reshape(n, all) t0 = Cast <to = 1> (l)"
    with pytest.raises(GraphError, match=r"'Concat_\d+'.*512 KiB.*1 MiB"):
        import_onnx(model("int64[1] all = {-1}", f"{start} {doubled} {ending('t40')}"), batch=batch)
    read = import_onnx(model("int64[1] all = {-1}", f"{start} t40 = Concat <axis = 0> (t0, t0) {ending('t40')}"))
    assert read.batch == 32


def test_a_file_of_very_many_nodes_or_functions_is_not_deserialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_files.ir.serde, "deserialize_model", lambda _: pytest.fail("read"))
    with pytest.raises(GraphError, match=r"3,001.*2,048"):
        import_onnx(calls(3000, 3000), batch=2)
    many = model("", "y = Relu(x)")
    many.graph.node.extend([onnx.NodeProto()] * 2**18)
    with pytest.raises(GraphError, match=r"262,145.*262,144"):
        import_onnx(many, batch=2)


def test_what_is_within_the_budget_is_read_and_functions_without_a_call_cost_nothing() -> None:
    short = import_onnx(model(f"{GO}, int64 trips = {{1000}}", LOOP), batch=2)
    assert short.nodes[0].flops == 1000 * 8
    assert [node.op for node in import_onnx(calls(24, 3), batch=2).nodes] == ["Relu"] * 8


def test_a_run_whose_trips_the_data_decide_is_stopped() -> None:
    body = STEP.replace("Identity(c)", "Less(i, last)")
    graph = import_onnx(model(f"{GO}, int64 last = {{{2**62}}}", f"y = Loop(, go, x) <body = b {body}>"), batch=2)
    session, options = open_session(graph.source.model), onnxruntime.RunOptions()
    with (
        pytest.raises(GraphError, match=r"'Loop_0' \(Loop\).*0\.1 s"),
        bounded_run(session.loops, lambda: setattr(options, "terminate", True), replace(BUDGET, run_s=0.1)),
    ):
        session.session.run(["y"], {"x": np.ones((2, 4), np.float32)}, options)
