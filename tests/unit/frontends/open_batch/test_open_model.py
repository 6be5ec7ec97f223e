"""A batch that the model fixes is opened where no node mixes samples; else the node that does is named."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from staged_onnx import BACKEND, parse

from heterps_compile.errors import InputError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.laws import verify_graph

BATCH = 3


def with_weights(text: str, *, opset: int = 18, **weights: Any) -> onnx.ModelProto:
    """Return a model in text whose undefined values are weights, drawn by their shape or as they are given."""
    model, rng = parse(text, opset=opset), np.random.default_rng(0)
    for name, given in weights.items():
        array = given if isinstance(given, np.ndarray) else rng.standard_normal(given).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def take(graph: Graph, values: Mapping[str, Any], part: list[int]) -> dict[str, Any]:
    assert graph.opened is not None
    axes = graph.opened.axes
    return {name: np.take(v, part, axes[name]) if name in axes else v for name, v in values.items()}


def opened(model: onnx.ModelProto, batch: int = BATCH, **options: Any) -> Graph:
    """Open a model; its outputs are those of the samples one by one."""
    graph = import_onnx(model, batch=batch, **options)
    verify_graph(graph)
    assert graph.opened is not None
    fixed, original = graph.opened.fixed, graph.opened.original()
    inputs = BACKEND.example_inputs(graph, 0)
    whole = dict(zip(graph.outputs, BACKEND.reference(graph)(inputs), strict=True))
    alone = BACKEND.reference(original)
    for first in range(0, batch, fixed):
        part = list(range(first, first + fixed))
        results = dict(zip(graph.outputs, alone(take(graph, inputs, part)), strict=True))
        for name, ours in take(graph, whole, part).items():
            assert ours.shape == results[name].shape
            np.testing.assert_allclose(ours, results[name], rtol=1e-4, atol=1e-5)
    return graph


def axes(model: onnx.ModelProto, **options: Any) -> dict[str, int]:
    found = opened(model, **options).opened
    assert found is not None
    return dict(found.axes)


def refusal(model: onnx.ModelProto, batch: int = BATCH, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        import_onnx(model, batch=batch, **options)
    return str(caught.value).split("cannot be opened: ")[1].split("; export the model")[0]


def test_a_constant_shape_that_says_the_batch_is_rewritten() -> None:
    text = "g (float[1, 2, 3] x) => (float[1, 4] y) { flat = Reshape(x, to) y = MatMul(flat, w) }"
    graph = opened(with_weights(text, to=ints(1, 6), w=(6, 4)))
    assert (graph.bindings, graph.batch_symbol, graph.batch) == ({"batch": 3}, "batch", 3)
    assert graph.values["x"].shape == ("batch", 2, 3)
    assert graph.source.notes == (
        "the batch, which the model fixes at 1, was opened: no node mixes samples (1 constant that said the batch "
        "rewritten)",
    )


def test_a_shape_that_leaves_the_batch_open_stays() -> None:
    text = "g (float[1, 2, 3] x) => (float[1, 6] y) { y = Reshape(x, to) }"
    assert "rewritten" not in opened(with_weights(text, to=ints(0, 6))).source.notes[0]
    assert "rewritten" not in opened(with_weights(text, to=ints(-1, 6))).source.notes[0]
    assert "1 constant" in opened(with_weights(text, to=ints(1, -1))).source.notes[0]


def test_attention_of_a_static_export_is_opened() -> None:
    text = """g (float[1, 4, 6] x) => (float[1, 4, 6] y) {
        two = Reshape(x, flat) q = MatMul(two, wq) k = MatMul(two, wk)
        qh = Reshape(q, heads) kh = Reshape(k, heads)
        qt = Transpose <perm = [0, 2, 1, 3]> (qh) kt = Transpose <perm = [0, 2, 3, 1]> (kh)
        s = MatMul(qt, kt) m = Add(s, mask) p = Softmax <axis = -1> (m) c = MatMul(p, qt)
        ct = Transpose <perm = [0, 2, 1, 3]> (c) y = Reshape(ct, back) }"""
    opened(
        with_weights(
            text, flat=ints(4, 6), heads=ints(1, 4, 2, 3), back=ints(1, 4, 6), wq=(6, 6), wk=(6, 6), mask=(1, 1, 4, 4)
        )
    )


def test_a_token_that_is_the_same_for_all_samples_is_repeated_for_each() -> None:
    text = "g (float[1, 4, 6] x) => (float[1, 5, 6] y) { y = Concat <axis = 1> (token, x) }"
    assert "1 constant" in opened(with_weights(text, token=(1, 1, 6))).source.notes[0]
    opened(with_weights(text, opset=13, token=(1, 1, 6)))


def test_shapes_computed_from_the_input_are_those_of_one_sample() -> None:
    text = """g (float[1, 2, 3] x) => (float[1, 6] y) {
        s = Shape(x) n = Gather <axis = 0> (s, zero) rest = Mul(n, six) to = Concat <axis = 0> (n, rest)
        flat = Reshape(x, to) state = ConstantOfShape(to) y = Add(flat, state) }"""
    opened(with_weights(text, zero=ints(0), six=ints(6)))


def test_a_batch_dropped_and_added_again_is_kept() -> None:
    text = """g (float[1, 4, 6] x) => (float[1, 4, 5] y) {
        one = Squeeze(x, first) h = MatMul(one, w) y = Unsqueeze(h, first) }"""
    opened(with_weights(text, first=ints(0), w=(6, 5)))
    picked = text.replace("Squeeze(x, first)", "Gather <axis = 0> (x, place)")
    opened(with_weights(picked, first=ints(0), place=np.array(0, np.int64), w=(6, 5)))


def test_recurrent_states_that_are_constant_are_repeated() -> None:
    text = """g (float[1, 5, 4] x) => (float[5, 1, 1, 3] y, float[1, 1, 3] last) {
        t = Transpose <perm = [1, 0, 2]> (x) y, last = GRU <hidden_size = 3> (t, w, r, , , h) }"""
    assert axes(with_weights(text, w=(1, 9, 4), r=(1, 9, 3), h=(1, 1, 3))) == {"x": 0, "y": 2, "last": 1}


def test_a_state_that_is_an_input_has_its_samples_where_the_layer_wants_them() -> None:
    text = """g (float[1, 5, 4] x, float[1, 1, 3] h) => (float[1, 1, 3] last) {
        t = Transpose <perm = [1, 0, 2]> (x) y, last = GRU <hidden_size = 3> (t, w, r, , , h) }"""
    model = with_weights(text, w=(1, 9, 4), r=(1, 9, 3))
    assert axes(model) == {"x": 0, "h": 1, "last": 1}
    assert "'h' has it along axis 1" in opened(model).source.notes[0]


def test_time_along_the_first_axis_is_no_batch() -> None:
    text = "g (float[5, 1, 4] x) => (float[5, 1, 1, 3] y) { y = GRU <hidden_size = 3> (x, w, r) }"
    model = with_weights(text, w=(1, 9, 4), r=(1, 9, 3))
    assert refusal(model) == "node 'GRU_0' (GRU): it goes through axis 0, where the batch lies, step by step"


def test_an_input_that_cannot_be_of_samples_is_the_same_for_all() -> None:
    text = "g (float[1, 3] x, float[1] scale, float bias) => (float[1, 3] y) { a = Mul(x, scale) y = Add(a, bias) }"
    graph = opened(parse(text))
    assert graph.opened is not None
    assert dict(graph.opened.axes) == {"x": 0, "y": 0}
    assert graph.source.notes[0].endswith("; 'scale' is the same for all samples; 'bias' is the same for all samples")


def test_a_batch_of_several_samples_is_opened_to_more() -> None:
    text = "g (float[2, 3, 4] x) => (float[2, 12] y) { a = Relu(x) y = Reshape(a, to) }"
    opened(with_weights(text, to=ints(2, 12)), batch=6)


def test_other_dynamic_dimensions_stay_dynamic() -> None:
    text = "g (float[1, seq, 6] x) => (float[1, seq, 2, 3] y) { y = Reshape(x, to) }"
    graph = opened(with_weights(text, to=ints(1, -1, 2, 3)), shapes={"seq": 4})
    assert graph.values["x"].shape == ("batch", "seq", 6)
    assert graph.shape("y") == (3, 4, 2, 3)


def test_a_batch_that_is_fixed_at_what_is_asked_is_left_alone() -> None:
    graph = import_onnx(parse("g (float[5, 3] x) => (float[5, 3] y) { y = Relu(x) }"), batch=5)
    assert (graph.opened, graph.batch_symbol) == (None, None)


def test_a_mask_looked_up_at_constant_places_is_that_of_each_sample() -> None:
    places = np.stack(np.broadcast_arrays(np.zeros((1, 1, 1, 4), np.int64), ints(3, 1, 0, 1)), -1)
    text = "g (float[1, 4] x) => (float[1, 1, 1, 4] y) { y = GatherND(x, places) }"
    opened(with_weights(text, places=places))
    text = "g (float[1, 4, 5] x) => (float[3, 1] y) { t = Transpose <perm = [1, 2, 0]> (x) y = GatherND(t, places) }"
    opened(with_weights(text, places=ints(3, 1, 0, 1, 2, 4).reshape(3, 2)))
    text = """g (float[1, 4] x) => (float[1, 1, 1, 3] y) { rows = Flatten <axis = 2> (x)
        found = Gather <axis = 0> (rows, places) y = Reshape(found, to) }"""
    opened(with_weights(text, places=ints(3, 1, 0).reshape(1, 1, 1, 3), to=ints(1, 1, 1, 3)))
    text = """g (float[1, 4, 2] x) => (float[1, 3, 2] y) { rows = Reshape(x, flat)
        found = Gather <axis = 0> (rows, places) twice = Add(found, found) y = Reshape(twice, to) }"""
    opened(with_weights(text, flat=ints(4, 2), places=ints(3, 1, 0), to=ints(1, 3, 2)))


def test_the_last_token_of_each_sample_is_looked_up() -> None:
    text = """g (float[1, 4, 2] x, int64[1, 4] ids) => (float[1, 2] y) {
        last = ArgMax <axis = 1, keepdims = 0> (ids) column = Unsqueeze(last, end)
        places = Concat <axis = -1> (zero, column) y = GatherND(x, places) }"""
    opened(with_weights(text, end=ints(-1), zero=ints(0).reshape(1, 1)))
    text = """g (float[1, 4, 2] x, int64[1, 4] ids) => (float[1, 2] y) { rows = Reshape(x, flat)
        last = ArgMax <axis = 1, keepdims = 0> (ids) y = Gather <axis = 0> (rows, last) }"""
    opened(with_weights(text, flat=ints(4, 2)))
    text = "g (float[1, 4, 2] x, int64[1, 2] at) => (float[1, 2] y) { y = GatherND(x, at) }"
    assert "it looks up entries along the batch" in refusal(parse(text))


def test_rows_that_are_the_same_in_each_sample_are_repeated() -> None:
    text = """g (float[1, 4, 6] x) => (float[1, 4, 6] y) {
        rows = Reshape(x, flat) both = Concat <axis = 1> (rows, bias) z = Add(rows, bias)
        w = Concat <axis = 1> (z, both) v = ReduceSum(w, last) u = Mul(z, v) y = Reshape(u, back) }"""
    opened(with_weights(text, flat=ints(4, 6), bias=(4, 6), back=ints(1, 4, 6), last=ints(1)))


def test_samples_may_come_round_several_times_along_an_axis() -> None:
    text = """g (float[1, 4, 6] x) => (float[1, 4, 5] y) { t = Transpose <perm = [1, 0, 2]> (x) rows = Reshape(t, flat)
        h = MatMul(rows, w) z = Add(h, h) back = Reshape(z, apart) y = Transpose <perm = [1, 0, 2]> (back) }"""
    opened(with_weights(text, flat=ints(4, 6), w=(6, 5), apart=ints(4, 1, 5)))
    opened(with_weights(text.replace("Reshape(t, flat)", "Flatten <axis = 2> (t)"), w=(6, 5), apart=ints(4, 1, 5)))


def test_entries_are_written_in_each_sample() -> None:
    text = "g (float[1, 3] x) => (float[1, 4] y) { y = ScatterND(zeros, places, x) }"
    places = np.stack(np.broadcast_arrays(np.zeros((1, 3), np.int64), ints(3, 1, 0)), -1)
    opened(with_weights(text, zeros=(1, 4), places=places))
    text = """g (float[1, 3] x) => (float[1, 4] y) { columns = Transpose <perm = [1, 0]> (x)
        all = ScatterND(zeros, places, columns) y = Transpose <perm = [1, 0]> (all) }"""
    opened(with_weights(text, zeros=(4, 1), places=ints(3, 1, 0).reshape(3, 1)))
    text = "g (float[2, 4] x) => (float[2, 4] y) { y = ScatterND(x, places, w) }"
    assert "it writes along the batch" in refusal(with_weights(text, places=ints(0).reshape(1, 1), w=(1, 4)))


def test_a_shape_that_many_ops_compute_is_known() -> None:
    text = """g (float[1, 4] x) => (float[1, 4] y) {
        s = Shape(x) ones = ConstantOfShape <value = int64[1] {1}> (two) minus = Mul(ones, less) e = Equal(s, minus)
        to = Where(e, ones, s) ge = GreaterOrEqual(to, ones) n = Cast <to = 7> (ge) t = Mul(n, to)
        wide = Expand(row, t) token = GatherElements <axis = 1> (wide, places) y = Add(x, token) }"""
    model = with_weights(text, opset=14, two=ints(2), less=ints(-1), row=(1, 4), places=ints(3, 1, 0, 0).reshape(1, 4))
    opened(model)


X = "g (float[1, 4, 6] x) => (float y)"
MIXED = [
    ("y = ReduceMean(x, a)", {"a": ints(0)}, "(ReduceMean): it brings the samples of the batch together"),
    ("y = ReduceMean(x)", {}, "'ReduceMean_0' (ReduceMean): it brings all axes together, the batch too"),
    ("y = Softmax <axis = 0> (x)", {}, "'Softmax_0' (Softmax): it normalises over the batch"),
    ("y = Add(x, w)", {"w": (3, 1, 1)}, "(Add): its input 'w' of shape [3, 1, 1] has 3 rows where the batch lies"),
    ("y = Concat <axis = 0> (x, x)", {}, "'Concat_0' (Concat): it joins values along the batch"),
    ("y = Expand(x, to)", {"to": ints(5, 4, 6)}, "'Expand_0' (Expand): it repeats the samples of the batch"),
    ("y = Tile(x, to)", {"to": ints(2, 1, 1)}, "'Tile_0' (Tile): it repeats the samples of the batch"),
    ("y = CumSum(x, a)", {"a": ints(0)}, "'CumSum_0' (CumSum): it sums up along the batch"),
    ("t = Transpose <perm = [1, 2, 0]> (x) y = MatMul(t, w)", {"w": (1, 5)}, "(MatMul): it sums over the batch"),
    ("t = Transpose <perm = [1, 0, 2]> (x) y = Add(t, x)", {}, "it pairs each with each"),
    ("t = Transpose <perm = [1, 0, 2]> (x) y = Reshape(t, to)", {"to": ints(3, 8)}, "it tears samples apart: [4, 1,"),
    ("y = NonZero(x)", {}, "'NonZero_0' (NonZero): nobody here knows that this op leaves samples apart"),
    ("y = Dropout(x, r, on)", {"r": np.array(0.5, np.float32), "on": np.array(True)}, "it draws random numbers"),
    ("a, y, z = DynamicQuantizeLinear(x)", {}, "it takes one scale from the elements of all samples"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "weights", "expected"), MIXED, ids=[case[2] for case in MIXED])
def test_the_node_that_mixes_samples_is_named(body: str, weights: dict[str, Any], expected: str) -> None:
    assert expected in refusal(with_weights(f"{X} {{ {body} }}", **weights))


def test_a_batch_norm_in_training_mode_is_named() -> None:
    text = """g (float[1, 2, 3, 3] x) => (float[1, 2, 3, 3] y) {
        y, m, v = BatchNormalization <training_mode = 1> (x, s, b, mean, var) }"""
    model = with_weights(text, s=(2,), b=(2,), mean=(2,), var=(2,))
    assert "it is in training mode and takes the mean over all samples" in refusal(model)


def test_what_no_output_needs_may_say_the_batch() -> None:
    text = "g (float[1, 6] x) => (float[1, 6] y) { unused = Reshape(x, to) y = Relu(x) }"
    assert "; left out, since no output needs them: 1 node" in opened(with_weights(text, to=ints(1, 6))).source.notes[0]


def test_control_flow_that_hangs_on_samples_is_named() -> None:
    text = """g (float[1, 3] x) => (float[1, 3] y) { s = ReduceSum <keepdims = 0> (x, a) c = Cast <to = 9> (s)
        y = If (c) <then_branch = t () => (float[1, 3] p) { p = Neg(x) },
                    else_branch = e () => (float[1, 3] q) { q = Relu(x) }> }"""
    assert "it decides for the whole batch what runs" in refusal(with_weights(text, a=ints(1)))


def test_an_output_without_a_batch_of_its_own_is_named() -> None:
    text = "g (float[1, 3] x) => (float[3] y) { y = Squeeze(x, a) }"
    assert refusal(with_weights(text, a=ints(0))) == (
        "output 'y': it has no dimension that is the batch alone, but 3 rows for each sample along axis 0"
    )
    text = "g (float[1, 3] x) => (int64[2] y) { y = Shape(x) }"
    assert "it makes an output of the model out of the size of the batch" in refusal(parse(text))


def test_a_shape_that_is_an_input_is_named() -> None:
    text = "g (float[1, 6] x, int64[2] to) => (float[1, 6] y) { y = Reshape(x, to) }"
    assert refusal(parse(text)) == "node 'Reshape_0' (Reshape): its shape is no constant"
