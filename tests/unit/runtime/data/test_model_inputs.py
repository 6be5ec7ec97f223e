"""What a model takes against what the data give."""

from dataclasses import replace

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from plans import PLAN

from heterps_compile.errors import InputError, PlanError
from heterps_compile.frontends.structures import Accepts, Structure
from heterps_compile.frontends.torch_call import CallStructure
from heterps_compile.plan.plan import Artifact
from heterps_compile.runtime.data.model_inputs import InputSpec, fit, inputs_of_plan, require_columns
from heterps_compile.runtime.data.open_source import random_columns
from heterps_compile.runtime.data.random_source import RandomColumn
from heterps_compile.runtime.data.sample_source import TensorSource
from heterps_compile.runtime.signature import ArraySignature

IDS = {"ids": InputSpec("int64", (3,))}


def test_a_torch_plan_says_what_its_inputs_are():
    accepts = {"ids": Accepts("int64", (None, 26)), "dense": Accepts("float32", (64, None)), "scale": Accepts()}
    star = Structure("leaf")
    takes = Structure("tuple", (star, star, star))
    call = CallStructure(takes, ("ids", "dense", "scale"), star, ("click",), ("ids", "dense", "scale"), accepts)
    wanted = inputs_of_plan(replace(PLAN, graph_inputs=tuple(accepts), signature=call.to_json()))
    assert wanted == {"ids": InputSpec("int64", (26,)), "dense": InputSpec("float32", (None,)), "scale": InputSpec()}
    assert [str(each) for each in wanted.values()] == ["int64[26]", "float32[any]", "any dtype[...]"]


def test_an_onnx_stage_says_what_its_inputs_are(tmp_path):
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["N", 26])
    dense = helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["N", "M"])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", "M"])
    nodes = [helper.make_node("Relu", ["dense"], ["out"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [ids, dense], [out])), tmp_path / "stage_0.onnx")
    plan = replace(
        PLAN, signature='{"kind": "arrays"}', artifacts=((Artifact("stage_0.onnx", "0" * 64),),), stages=PLAN.stages[:1]
    )
    assert inputs_of_plan(plan, tmp_path) == {"ids": InputSpec("int64", (26,)), "dense": InputSpec("float32", (None,))}
    assert inputs_of_plan(plan) == {"ids": InputSpec(), "dense": InputSpec()}


def test_a_plan_of_an_onnx_model_has_dtypes_and_shapes_of_random_data():
    """Without a stage's file: stages of torch and jax have none that is ONNX."""
    accepts = {
        "ids": Accepts("int64", ("N", "S")),
        "dense": Accepts("float32", ("N", 8)),
        "odd": Accepts("int32", ("N", "?")),
    }
    text = ArraySignature(tuple(accepts), (), accepts).to_json()
    plan = replace(PLAN, graph_inputs=tuple(accepts), signature=text, bindings={"N": 16, "S": 5}, id_tables={"ids": 50})
    wanted = inputs_of_plan(plan)
    assert wanted["ids"] == InputSpec("int64", (None,), 50, (5,))
    assert wanted["dense"] == InputSpec("float32", (8,))
    assert wanted["odd"] == InputSpec("int32", (None,))
    known = {name: wanted[name] for name in ("ids", "dense")}
    assert random_columns("", known) == [RandomColumn("ids", "int64", (5,), 50), RandomColumn("dense", "float32", (8,))]
    with pytest.raises(InputError, match="odd"):
        random_columns("", wanted)


@pytest.mark.parametrize(
    "accepts", ["[1]", '{"x": 3}', '{"x": [1, [2]]}', '{"x": ["float32", [[1]]]}', '{"x": ["float32", 3]}']
)
def test_a_signature_without_sound_dtypes_is_refused(accepts):
    with pytest.raises(PlanError, match="signature"):
        inputs_of_plan(replace(PLAN, signature=f'{{"kind": "arrays", "accepts": {accepts}}}'))


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [
        ("int64", torch.int32, torch.int64),
        ("int32", torch.int64, torch.int32),
        ("float32", torch.float64, torch.float32),
        ("float32", torch.int64, torch.float32),
        ("float16", torch.float32, torch.float16),
        (None, torch.int16, torch.int16),
    ],
)
def test_numbers_of_the_same_sort_are_converted(dtype, given, expected):
    fitted = fit({"x": torch.tensor([1, 2], dtype=given), "label": torch.zeros(2)}, {"x": InputSpec(dtype, ())})
    assert fitted["x"].dtype == expected
    assert fitted["x"].tolist() == [1, 2]
    assert "label" in fitted


def test_dimensions_that_vary_take_any_size():
    batch = {"x": torch.zeros(2, 7, 3)}
    assert fit(batch, {"x": InputSpec("float32", (None, 3))})["x"].shape == (2, 7, 3)


@pytest.mark.parametrize(
    ("tensor", "fault"),
    [
        (torch.zeros(2, 3), r"'ids'.*float32\[3\].*int64\[3\]"),
        (torch.zeros(2, 4, dtype=torch.int64), r"'ids'.*int64\[4\].*int64\[3\]"),
        (torch.zeros(2, dtype=torch.int64), r"'ids'.*int64\[\].*int64\[3\]"),
        (torch.zeros(2, 3, dtype=torch.bool), r"'ids'.*bool\[3\].*int64\[3\]"),
    ],
)
def test_what_does_not_fit_is_named(tensor, fault):
    with pytest.raises(InputError, match=fault):
        fit({"ids": tensor}, IDS)


def test_values_that_a_narrower_type_cannot_hold_are_named():
    with pytest.raises(InputError, match=r"5000000000.*int32"):
        fit({"ids": torch.tensor([5_000_000_000])}, {"ids": InputSpec("int32", ())})


def test_a_missing_input_is_named():
    with pytest.raises(InputError, match=r"batch.*'ids'.*'sparse'"):
        fit({"sparse": torch.zeros(1)}, IDS)
    with pytest.raises(InputError, match=r"model.*'ids'.*'sparse'"):
        require_columns(TensorSource({"sparse": torch.zeros(1)}), ["ids"], "the data")
