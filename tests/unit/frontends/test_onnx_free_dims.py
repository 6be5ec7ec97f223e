"""Free dimensions without a number get one that the model takes."""

import time

import numpy as np
import onnx
import pytest
from staged_onnx import BACKEND, parse, read
from wording import names

import heterps_compile
from heterps_compile.errors import InputError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.onnx_budget import limited_cpu
from heterps_compile.frontends.onnx_trial import Trials
from heterps_compile.ir.default_size import defaults_in_words, defaults_of
from heterps_compile.ir.graph import Graph


def chosen(graph: Graph) -> dict[str, tuple[int, str]]:
    """Return the numbers that were chosen, with the reason or the dimension that each equals; the model runs."""
    BACKEND.reference(graph)(BACKEND.example_inputs(graph, 0))
    return {name: (int(size), size.same_as or size.why) for name, size in defaults_of(graph.bindings).items()}


def renamed(model: onnx.ModelProto, name: str, other: str) -> onnx.ModelProto:
    """Give a dimension of the inputs a name that ONNX's text has no way to write."""
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == name:
                dim.dim_param = other
    return model


@pytest.mark.parametrize("name", ["N", "batch_size", "unk__123", "p2o.DynamicDimension.0", "batch-size"])
def test_the_batch_is_what_inputs_begin_with_under_any_name(name: str) -> None:
    model = renamed(parse("g (float[N, 3, T] x, float[N, 3, T] z) => (y) { y = Add(x, z) }"), "N", name)
    assert chosen(import_onnx(model)) == {name: (32, "default"), "T": (128, "default")}


@pytest.mark.parametrize("unknown", [None, "?", -1, "-1"])
def test_a_dimension_without_a_name_goes_by_its_input_and_its_place(unknown: str | int | None) -> None:
    model = parse("g (float[N, 8] x) => (float[N, 4] y) { w = Constant<value = float[1, 8] {1,1,1,1,1,1,1,1}>() "
                  "y = Add(x, w) }")  # fmt: skip
    for value in (*model.graph.input, *model.graph.output):
        dim = value.type.tensor_type.shape.dim[0]
        dim.Clear()
        if isinstance(unknown, int):
            dim.dim_value = unknown
        elif unknown is not None:
            dim.dim_param = unknown
    assert chosen(import_onnx(model)) == {"x_0": (32, "default")}
    assert import_onnx(model, batch=3).bindings == import_onnx(model, shapes={"x_0": 3}).bindings == {"x_0": 3}


@pytest.mark.parametrize(
    ("body", "taken"),
    [
        ("s = Constant<value = int64[3] {0, 7, 11}>() y = Reshape(x, s)", 77),
        ("s = Constant<value = int64[3] {0, 16, 3}>() y = Reshape(x, s)", 48),
        ("s = Constant<value = int64[3] {0, 40, 16}>() y = Reshape(x, s)", 640),
        ("i = Shape<start = 1>(x) o = Constant<value = int64[1] {-1}>() l = Add(i, o) "
         "t = ConstantOfShape(k) y = Gather(t, l)", 60),
    ],
)  # fmt: skip
def test_a_size_is_the_nearest_that_the_model_takes(body: str, taken: int) -> None:
    model = parse(f"g (float[N, T] x) => (y) <int64[1] k = {{60}}> {{ {body} }}")
    assert chosen(import_onnx(model))["T"] == (taken, "nearest")


def test_a_multiple_is_found() -> None:
    graph = read("g (float[N, T] x) => (y) { s = Constant<value = int64[3] {0, -1, 24}>() y = Reshape(x, s) }")
    assert (graph.bindings["T"] % 24, graph.bindings["N"]) == (0, 32)


def test_two_sizes_are_found_together_from_what_the_model_says_it_needs() -> None:
    text = """g (float[N, 2, H, W] x) => (y) {
        p = AveragePool<kernel_shape = [7, 7], strides = [7, 7]>(x)
        s = Constant<value = int64[2] {0, 2048}>()
        y = Reshape(p, s)
    }"""
    graph = read(text)
    assert (chosen(graph)["N"], graph.shape("y")) == ((32, "default"), (32, 2048))


def test_a_state_whose_second_dimension_is_the_batch_shares_its_number() -> None:
    text = """g (float[N, T] x, float[2, M, 4] state) => (y) {
        i = Constant<value = int64[1] {0}>() first = Gather(state, i) two = Concat<axis = 0>(first, first)
        s = Squeeze(first, i) m = ReduceMean<keepdims = 1>(x, a) y = Concat<axis = 1>(s, m)
    }"""
    model = parse(text.replace("{\n", "<int64[1] a = {1}> {\n", 1))
    graph = import_onnx(model)
    assert chosen(graph) == {"N": (32, "default"), "T": (128, "default"), "M": (32, "N")}
    assert graph.values["state"].shape == (2, "N", 4)
    again = import_onnx(model, batch=32, shapes=graph.bindings)
    assert (again.bindings, again.values["state"]) == (graph.bindings, graph.values["state"])
    assert chosen(import_onnx(model, batch=5))["M"] == (5, "N")


def test_inputs_whose_batches_have_different_names_share_one() -> None:
    graph = read("g (float[A, T] x, float[B, T] z) => (y) { c = Concat<axis = 1>(x, z) y = Relu(c) }")
    assert chosen(graph) == {"A": (32, "default"), "T": (128, "default"), "B": (32, "A")}


def test_a_dimension_named_by_others_has_their_number() -> None:
    text = "g (float[N, past] c, float[N, seq] x, float[N, all] m) => (y) { a = Concat<axis = 1>(c, x) y = Add(a, m) }"
    graph = import_onnx(renamed(parse(text), "all", "past + seq"), shapes={"past": 100})
    assert (graph.shape("m"), graph.bindings["past + seq"]) == ((32, 228), 228)


def test_a_batch_that_a_node_fixes_is_one() -> None:
    text = "g (float[N, 3, T] x, float[1, 3, 1] h) => (y) { y = Concat<axis = 2>(x, h) }"
    assert chosen(read(text)) == {"N": (1, "nearest"), "T": (128, "default")}


def test_where_none_is_found_one_message_has_all_and_a_command() -> None:
    text = """g (float[N, T] x, float[N, 2, L] z) => (y) {
        s = Constant<value = int64[2] {0, 77}>() a = Reshape(x, s)
        r = Constant<value = int64[3] {0, 10, 13}>() b = Reshape(x, r) f = Flatten(b)
        m = Flatten(z) y = Concat<axis = 1>(a, f, m)
    }"""
    with pytest.raises(InputError, match=r"'N', 'T', 'L'.*--batch N --shape T=N --shape L=N"):
        read(text)


def test_a_long_run_is_ended_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_compile.frontends.onnx_trial._LIMIT_S", 0.2)
    graph = read(
        """g (float[N] x) => (float y) <int64 trips = {3000000}, bool go = {1}> {
        s = ReduceSum<keepdims = 0>(x)
        y = Loop(trips, go, s) <body = b (int64 i, bool c, float a) => (bool d, float e) { d = Identity(c) e = Neg(a) }>
    }"""
    )
    (note,) = graph.source.notes
    assert names(note, "trial run", "0.2 s of CPU time", "N = 32 (--batch)")


def test_only_cpu_time_ends_a_run() -> None:
    with limited_cpu(0.01, lambda: None) as is_ended:
        time.sleep(0.15)  # as on a busy machine: no CPU time passes
    assert not is_ended.is_set()


def test_numbers_are_bounded_in_count_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    trial = Trials.__call__
    monkeypatch.setattr(Trials, "__call__", lambda self, bound: counted.append(bound) or trial(self, bound))
    graph = read("g (float[A, B, C, D, E, F] x) => (y) { y = Relu(x) }")
    assert (graph.size_bytes("x") <= 2**30, len(counted) < 48) == (True, True)


def test_stages_keep_the_dimensions_free() -> None:
    model = parse("g (float[N, T] x) => (y) { a = Relu(x) y = Neg(a) }")
    made = heterps_compile.compile(model, method="greedy")
    assert defaults_in_words(made.plan.bindings) == "N = 32 (--batch), T = 128 (--shape T=...)"
    x = np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5)
    assert np.array_equal(made.run(x)[0], -np.maximum(x, 0))
