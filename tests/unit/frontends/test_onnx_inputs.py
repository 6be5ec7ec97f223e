"""Generated inputs are ones the model accepts, and the same for the same seed."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from staged_onnx import BACKEND, parse

from heterps_compile.errors import InputError
from heterps_compile.frontends.onnx import import_onnx


def drawn(text: str, seed: int = 0, **tables: np.ndarray) -> dict[str, np.ndarray]:
    """Import the model, draw inputs, and see that it runs on them."""
    model = parse(text)
    model.graph.initializer.extend(numpy_helper.from_array(table, name) for name, table in tables.items())
    graph = import_onnx(model, batch=64)
    inputs = BACKEND.example_inputs(graph, seed)
    BACKEND.reference(graph)(inputs)
    return inputs


def rows(count: int) -> np.ndarray:
    return np.zeros((count, 2), np.float32)


def test_floats_are_standard_normal() -> None:
    x = drawn("g (float[N, 100] x) => (y) { y = Relu(x) }")["x"]
    assert (x.dtype, x.shape) == (np.float32, (64, 100))
    assert (abs(x.mean()) < 0.05, abs(x.std() - 1) < 0.05) == (True, True)


def test_a_seed_gives_the_same_inputs_and_another_gives_others() -> None:
    text = "g (float[N, 3] x) => (y) { y = Relu(x) }"
    assert np.array_equal(drawn(text, 1)["x"], drawn(text, 1)["x"])
    assert not np.array_equal(drawn(text, 1)["x"], drawn(text, 2)["x"])


def test_indices_stay_below_the_smallest_table() -> None:
    text = """g (int64[N] i) => (y) {
        a = Gather(large, i)
        one = Constant<value = int64[1] {1}>()
        column = Unsqueeze(i, one)
        narrow = Cast<to = 6>(column)
        b = Gather(small, narrow)
        y = Identity(b)
        unused = Identity(a)
    }"""
    i = drawn(text, large=rows(1000), small=rows(7))["i"]
    assert (i.min(), i.max()) == (0, 6)


def test_an_offset_into_one_table_for_all_fields_is_subtracted() -> None:
    text = """g (int64[N, 3] i) => (y) {
        offsets = Constant<value = int64[3] {0, 10, 20}>()
        shifted = Add(i, offsets)
        y = Gather(table, shifted)
    }"""
    assert drawn(text, table=rows(25))["i"].max() == 4


def test_floats_that_become_indices_are_whole_and_small() -> None:
    text = """g (float[N, 2] x) => (y) {
        i = Cast<to = 7>(x)
        y = Gather(table, i)
    }"""
    x = drawn(text, table=rows(5))["x"]
    assert (x.dtype, sorted(set(x.ravel().tolist()))) == (np.float32, [0.0, 1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    ("node", "top"),
    [
        ("y = GatherElements<axis = 1>(t, i)", 2),
        ("y = GatherND(t, i)", 2),
        ("d = Constant<value = int64 {4}>() v = Constant<value = float[2] {0.0, 1.0}>() y = OneHot(i, d, v)", 3),
    ],
)
def test_other_ops_that_index_are_known(node: str, top: int) -> None:
    i = drawn(f"g (int64[N, 2] i) => (y) {{ {node} }}", t=np.zeros((64, 3), np.float32))["i"]
    assert i.max() == top


def test_other_whole_numbers_are_masks_of_padded_sequences() -> None:
    mask = drawn("g (int64[N, 9] m) => (y) { y = Cast<to = 1>(m) }")["m"]
    assert set(mask.ravel().tolist()) == {0, 1}
    assert (mask[:, 0] == 1).all()
    assert (np.diff(mask, axis=1) <= 0).all()  # ones, then zeros


def test_lengths_are_ones() -> None:
    assert set(drawn("g (int32[N] n) => (y) { y = Cast<to = 1>(n) }")["n"].tolist()) == {1}


def test_images_take_all_values() -> None:
    image = drawn("g (uint8[N, 100] p) => (y) { y = Cast<to = 1>(p) }")["p"]
    assert (image.dtype, image.min(), image.max()) == (np.uint8, 0, 255)


def test_booleans_are_coins_that_mask_no_row_whole() -> None:
    coins = drawn("g (bool[N, 100] b) => (y) { y = Not(b) }")["b"]
    assert coins[:, 0].all()
    assert 0.4 < coins[:, 1:].mean() < 0.6


def test_a_scalar_is_drawn_as_one() -> None:
    text = "g (float[N] x, float s, bool b, int64 n) => (y) { t = Where(b, s, x) c = Cast<to = 1>(n) y = Add(t, c) }"
    inputs = drawn(text)
    assert all(isinstance(array, np.ndarray) for array in inputs.values())
    assert {name: array.shape for name, array in inputs.items()} == {"x": (64,), "s": (), "b": (), "n": ()}


def test_strings_are_numerals() -> None:
    words = drawn("g (string[N] w) => (y) { y = Identity(w) }")["w"]
    assert all(word.isdigit() for word in words)


def test_a_dtype_that_numpy_lacks_is_refused() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Cast<to = 1>(x) }")
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [2]))
    graph = import_onnx(model)
    with pytest.raises(InputError, match=r"'x'.*bfloat16.*ONNX Runtime"):
        BACKEND.example_inputs(graph, 0)
