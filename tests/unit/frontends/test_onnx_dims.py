"""Free dimensions of inputs get the numbers that a user gives."""

import onnx
import pytest
from staged_onnx import parse, read

from heterps_compile.errors import HeterpsError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import Graph

TWO = "g (int64[N, seq] ids, float[N, 3] x) => (float[N, 3] y) { y = Relu(x) n = Neg(ids) }"


def bound(graph: Graph) -> object:
    return dict(graph.bindings), graph.batch_symbol, graph.batch


def nameless(text: str, *places: tuple[int, int]) -> onnx.ModelProto:
    """Take the names from dimensions, given as pairs of input and place."""
    model = parse(text)
    for index, place in places:
        model.graph.input[index].type.tensor_type.shape.dim[place].ClearField("dim_param")
    return model


def message(model: object, **options: object) -> str:
    with pytest.raises(HeterpsError) as caught:
        import_onnx(model, **options)  # type: ignore[arg-type]
    return f"{type(caught.value).__name__}: {caught.value}"


def test_batch_binds_what_the_inputs_begin_with() -> None:
    graph = read(TWO, batch=4, shapes={"seq": 7})
    assert bound(graph) == ({"seq": 7, "N": 4}, "N", 4)
    assert (graph.values["ids"].shape, graph.shape("ids"), graph.values["y"].shape) == (("N", "seq"), (4, 7), (4, 3))


def test_the_batch_may_be_given_by_its_name() -> None:
    assert bound(read(TWO, shapes={"N": 4, "seq": 7})) == ({"N": 4, "seq": 7}, "N", 4)


def test_a_fixed_batch_is_the_graphs() -> None:
    assert bound(read("g (float[5, 3] x) => (float[5, 3] y) { y = Relu(x) }")) == ({}, None, 5)


def test_a_fixed_batch_may_be_said_again() -> None:
    assert bound(read("g (float[5, 3] x) => (float[5, 3] y) { y = Relu(x) }", batch=5)) == ({}, None, 5)


def test_another_batch_than_the_fixed_one_is_opened() -> None:
    graph = read("g (float[1, 3] x) => (float[1, 3] y) { y = Relu(x) }", batch=32)
    assert bound(graph) == ({"batch": 32}, "batch", 32)


def test_a_batch_that_is_fixed_at_nothing_stays() -> None:
    assert message(parse("g (float[0, 3] x) => (float[0, 3] y) { y = Relu(x) }"), batch=32) == (
        "InputError: the batch is to be 32, and the model fixes its batch at 0; export it with a dynamic batch or "
        "leave out --batch"
    )


def test_a_scalar_has_no_batch() -> None:
    assert bound(read("g (float x) => (float y) { y = Relu(x) }")) == ({}, None, 1)
    found = message(parse("g (float x) => (float y) { y = Relu(x) }"), batch=2)
    assert found == "InputError: no input has a batch dimension to be 2; leave out --batch"


def test_a_dimension_without_a_name_goes_by_its_input_and_place() -> None:
    model = nameless("g (float[N, 3, L] x) => (float[N, 3, L] y) { y = Relu(x) }", (0, 2))
    assert import_onnx(model, batch=2, shapes={"x_2": 9}).shape("y") == (2, 3, 9)


def test_batch_binds_every_nameless_first_dimension() -> None:
    text = "g (float[N, 3] x, float[N, 3] z) => (float[N, 3] y) { y = Add(x, z) }"
    graph = import_onnx(nameless(text, (0, 0), (1, 0)), batch=6)
    assert bound(graph) == ({"x_0": 6}, "x_0", 6)
    assert graph.values["z"].shape == ("x_0", 3)


def test_a_nameless_first_dimension_may_have_a_number_of_its_own() -> None:
    model = nameless("g (float[N, 3] x, float[N, 3] z) => (float[N, 3] y) { y = Add(x, z) }", (0, 0), (1, 0))
    graph = import_onnx(model, batch=6, shapes={"z_0": 1})
    assert (graph.shape("x"), graph.shape("z"), graph.shape("y")) == ((6, 3), (1, 3), (6, 3))


def test_a_made_up_name_gives_way_to_one_in_the_model() -> None:
    model = nameless("g (float[N, x_0] x) => (float[N, x_0] y) { y = Relu(x) }", (0, 0))
    assert dict(import_onnx(model, batch=3, shapes={"x_0": 5}).bindings) == {"x_0": 5, "x_0_2": 3}


def test_an_unknown_dimension_is_told_with_the_nearest() -> None:
    found = message(parse(TWO), batch=2, shapes={"sec": 7})
    assert found.startswith("UnknownNameError: unknown dimension 'sec'; did you mean 'seq'?")


def test_two_numbers_for_the_batch_are_refused() -> None:
    assert "both 2 (--batch) and 3 (--shape N=3)" in message(parse(TWO), batch=2, shapes={"N": 3, "seq": 7})


@pytest.mark.parametrize("options", [{"batch": 0}, {"batch": -1}, {"shapes": {"N": -1}}, {"shapes": {"N": 1.5}}])
def test_numbers_are_whole_and_not_negative(options: dict[str, object]) -> None:
    assert "it must be a whole number" in message(parse(TWO), **options)


def test_a_cache_may_begin_empty() -> None:
    text = "g (float[N, past] c, float[N, 3] x) => (float[N, all] y) { y = Concat<axis = 1>(c, x) }"
    assert read(text, batch=2, shapes={"past": 0}).shape("y") == (2, 3)


def test_an_input_without_a_shape_is_refused() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    assert "input 'x' has no number of dimensions" in message(model)


def test_an_input_that_is_no_tensor_is_refused() -> None:
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    element = onnx.TypeProto()
    element.CopyFrom(model.graph.input[0].type)
    model.graph.input[0].type.sequence_type.elem_type.CopyFrom(element)
    assert message(model).startswith("UnsupportedOpError: input 'x' is no tensor but SequenceType")
