"""The op tables against what is stated of ops: versions, attributes, defaults, costs; and against each other."""

import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from heterps_compile.backends.jax import table as jax_table
from heterps_compile.backends.onnx_stage.ml_attributes import find_prepare, known_attributes
from heterps_compile.backends.onnx_stage.nodes import OpTable, find_unsupported
from heterps_compile.backends.torch.onnx_ops import table as torch_table
from heterps_compile.frontends.onnx_facts import NO_DEFAULT, find_facts, stated_defaults, versions_of
from heterps_compile.frontends.onnx_ops import OPS

TABLES: dict[str, Any] = {"torch": torch_table, "jax": jax_table}

ONE_SIDED = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""What torch runs and jax does not: its stages draw no random numbers for models of ONNX. What jax runs, torch does."""

UNKNOWN = {
    "Constant": {"sparse_value", "value_string", "value_strings"},  # neither strings nor sparse tensors
    "Range": {"stash_type"},
    "com.microsoft::Attention": {"do_rotary", "past_present_share_buffer", "rotary_embedding_dim"},
    "com.microsoft::FusedGemm": {"activation_gamma"},
    "com.microsoft::MatMulNBits": {"weight_prepacked"},
    "com.microsoft::RotaryEmbedding": {"is_packed_batching"},
}
"""Attributes that neither backend has: a node with one is refused by its name."""

OTHERWISE = {
    ("Clip", "min"): "as an input, later on: none is no limit",
    ("Clip", "max"): "as an input, later on: none is no limit",
    ("Dropout", "ratio"): "nothing is dropped",
    ("GridSample", "mode"): "the newer name of the same",
    ("MeanVarianceNormalization", "axes"): "None is the schema's list",
    ("RNN", "activations"): "None is Tanh in every direction there is",
    **{(op, "output_datatype"): "a dtype of jax, None is float32"
       for op in ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")},
    **{(op, name): "a dtype of jax, None is that of the scale or the zero point"
       for op in ("QuantizeLinear", "DequantizeLinear") for name in ("output_dtype", "precision")},
}  # fmt: skip
"""Defaults that bodies write otherwise than the schema, and what they mean."""


def full_name(domain: str, op: str) -> str:
    return f"{domain}::{op}" if domain else op


def rows(backend: str) -> Iterator[tuple[str, str, int, Any]]:
    """Yield domain, op, the version of ONNX, and what the backend has for it."""
    table = TABLES[backend]
    for domain, op in table.declared_ops():
        for facts in versions_of(domain, op):
            row = table.find_op(domain, op, facts.since)
            if row is not None:
                yield domain, op, facts.since, row


def defaults(row: Any) -> dict[str, Any]:
    """Return the defaults of a body's attributes, by the names that the body has."""
    if hasattr(row, "run"):
        function = row.run
        if "_widened" in function.__qualname__:
            (function,) = (cell.cell_contents for cell in function.__closure__)
        parameters = inspect.signature(function).parameters
    else:
        parameters = jax_table.parameters_of(row.function)
    return {name: p.default for name, p in parameters.items() if p.default is not p.empty}


def same(default: Any, stated: Any) -> bool:
    if isinstance(stated, float):
        return default is not None and np.float32(default) == np.float32(stated)
    return bool((list(default) if isinstance(default, tuple) else default) == stated)


@pytest.mark.parametrize("backend", TABLES)
def test_every_op_of_a_table_is_stated_and_every_row_begins_at_a_version(backend):
    declared = TABLES[backend].declared_ops()
    assert [op for op in declared if not versions_of(*op)] == []
    versions = {op: {facts.since for facts in versions_of(*op)} for op in declared}
    assert {op: since for op, since in declared.items() if not set(since) <= versions[op]} == {}


@pytest.mark.parametrize("backend", TABLES)
def test_bodies_have_the_attributes_of_their_versions(backend):
    missing: dict[str, set[str]] = {}
    for domain, op, since, row in rows(backend):
        facts = find_facts(domain, op, since)
        assert facts is not None
        known = known_attributes(op) if find_prepare(domain, op) else None
        found = {name for name in facts.attributes if not (row.knows(name) if known is None else name in known)}
        if found:
            missing.setdefault(full_name(domain, op), set()).update(found)
    assert missing == UNKNOWN


def test_bodies_of_torch_have_no_attribute_beside_the_schemas():
    """One that no version has could never be given; those of jax may be functions of jax itself, which have more."""
    known: dict[tuple[str, str, frozenset[str]], set[str]] = {}
    for domain, op, since, row in rows("torch"):
        if not find_prepare(domain, op):
            facts = find_facts(domain, op, since)
            known.setdefault((domain, op, row.attributes), set()).update(() if facts is None else facts.attributes)
    shared = {"Scatter": {"reduction"}}  # one body with ScatterElements
    found = {op: more for (_, op, has), stated in known.items() if (more := set(has) - stated)}
    assert found == shared


@pytest.mark.parametrize("backend", TABLES)
def test_defaults_of_bodies_are_those_of_the_schemas(backend):
    differing = set()
    for domain, op, since, row in rows(backend):
        own = {} if find_prepare(domain, op) else defaults(row)
        for name, stated in stated_defaults(domain, op, since).items():
            key = jax_table.snake(name) if backend == "jax" else name
            if key in own and not same(own[key], stated):
                differing.add((op, name))
    assert differing - OTHERWISE.keys() == set()


def test_both_backends_run_the_same_versions_of_the_same_ops():
    found = {name: {(domain, op, since) for domain, op, since, _ in rows(name)} for name in TABLES}
    assert found["jax"] - found["torch"] == set()
    assert {op for _, op, _ in found["torch"] - found["jax"]} == ONE_SIDED


def test_what_backends_run_has_a_cost():
    told = {full_name(domain, op) for domain, op in torch_table.declared_ops()}
    # trees and the like count one FLOP for each element they make
    free = {full_name(domain, op) for domain, op in torch_table.declared_ops() if domain.startswith("ai.onnx")}
    assert told - free - OPS.keys() == {"If", "Loop", "Scan"}  # these cost what is in them


def test_what_is_declared_here_is_what_onnxruntime_states():
    native = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
    schemas = {(s.domain, s.name): s for s in native.get_all_operator_schema() if s.since_version == 1}
    for op in {op for table in TABLES.values() for op in table.declared_ops()}:
        if onnx.defs.has(op[1], op[0]) and op[1] != "LayerNormalization":
            continue
        (facts, *_), schema = versions_of(*op), schemas[op]
        assert (facts.since, facts.max_inputs) == (1, schema.max_input), op
        assert facts.attributes.keys() == schema.attributes.keys(), op
        for name, attribute in schema.attributes.items():
            given = onnx.AttributeProto.FromString(attribute._default_value)
            value = onnx.helper.get_attribute_value(given) if attribute._default_value else NO_DEFAULT
            value = value.decode() if isinstance(value, bytes) else value
            assert value is facts.attributes[name] or same(facts.attributes[name], value), (op, name)


@pytest.mark.parametrize("backend", TABLES)
@pytest.mark.parametrize(
    ("node", "opset", "said"),
    [
        (ir.node("Upsample", [ir.val("x"), ir.val("s")]), 9, ""),
        (ir.node("Upsample", [ir.val("x"), ir.val("s")]), 10, "has no such op at this opset"),
        (ir.node("Relu", [ir.val("x")]), 99, "knows opsets up to 28"),
        (ir.node("Relu", [ir.val("x")], {"slope": 1.0}), 18, "does not know its attribute 'slope'"),
        (ir.node("Sin", [ir.val("x"), ir.val("y")]), 18, "takes 1 inputs of it, and it has 2"),
        (ir.node("Conv", [ir.val("x")] * 4), 18, "takes 3 inputs of it, and it has 4"),
        (ir.node("Pad", [ir.val("x")] * 3 + [None, None]), 18, ""),
    ],
)
def test_both_say_alike_why_a_node_is_missing(backend, node, opset, said):
    table = OpTable(backend, TABLES[backend].find_op, lambda _: {})
    found = find_unsupported([node], {"": opset}, table)
    assert [node.reason for node in found] == ([f"the {backend} backend {said}"] if said else [])


VECTOR = np.array([1e-7, 2e-7], np.float32)


_TRAINING = "ai.onnx.preview.training"


@pytest.mark.parametrize("backend", TABLES)
@pytest.mark.parametrize(
    ("node", "inputs", "first"),
    [
        (helper.make_node("Concat", ["a", "b"], ["y"]), [np.ones((2, 1)), np.zeros((2, 1))], [[1, 0], [1, 0]]),
        # the padding does not count
        (helper.make_node("AveragePool", ["a"], ["y"], kernel_shape=[2], pads=[1, 0]),
         [np.array([[[2.0, 4]]])], [[[2, 3]]]),
        # gradients are as small as the epsilon that is left out
        (helper.make_node("Adagrad", ["r", "t", "x", "g", "h"], ["y", "z"], domain=_TRAINING),
         [np.float32(1), np.int64(0), np.zeros(2, np.float32), VECTOR, np.zeros(2, np.float32)],
         -VECTOR / (VECTOR + 1e-6)),
    ],
)  # fmt: skip
def test_both_run_versions_and_defaults_that_onnx_has_no_test_of(backend, node, inputs, first):
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(node.input, inputs, strict=True)
    ]
    results = [helper.make_tensor_value_info(n, given[-1].type.tensor_type.elem_type, None) for n in node.output]
    graph = helper.make_graph([node], "one", given, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(domain, 1) for domain in ("", _TRAINING)])
    runner = import_module(f"heterps_compile.backends.{backend}.run_onnx")
    np.testing.assert_allclose(np.asarray(runner.run_onnx(model, inputs)[0]), first, rtol=1e-5)


def test_an_attribute_left_out_has_the_default_of_its_version():
    assert stated_defaults("", "Softmax", 11)["axis"] == 1
    assert stated_defaults("", "Softmax", 13)["axis"] == -1
    assert stated_defaults("ai.onnx.preview.training", "Adam", 1)["epsilon"] == 1e-06
    assert find_facts("", "NoSuchOp", 1) is None
