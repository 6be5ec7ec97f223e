"""Nodes of ``com.microsoft`` and ``ai.onnx.ml`` on the torch and jax backends, beside ONNX Runtime's own run."""

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx_contrib_cases import ML, Case, contrib_cases, fault, ml_cases
from staged_onnx import cut_evenly, largest_difference, parse, run_whole

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.backends.ops import refuse_unsupported
from heterps_compile.errors import UnsupportedOpError
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.runtime.in_process import run_stages

CASES = (*contrib_cases(), *ml_cases())
OPS = sorted({(case.domain, case.op) for case in CASES})


QUICK_IN_JAX = {"FusedGemm", "FusedMatMul", "LabelEncoder", "QGemm", "RotaryEmbedding", "SkipLayerNormalization"}


def is_slow(backend: str, op: str) -> bool:
    return "Tree" in op or (backend == "jax" and op not in QUICK_IN_JAX)


@pytest.mark.parametrize(
    ("op", "backend"),
    [
        pytest.param(
            op,
            backend,
            id="-".join(["::".join(filter(None, op)), backend]),
            marks=pytest.mark.slow if is_slow(backend, op[1]) else (),
        )
        for op in OPS
        for backend in ("torch", "jax")
    ],
)
def test_an_op_computes_what_onnx_runtime_does(backend: str, op: tuple[str, str]) -> None:
    run = import_module(f"heterps_compile.backends.{backend}.run_onnx").run_onnx
    faults = [fault(case, run) for case in CASES if (case.domain, case.op) == op]
    assert [wrong for wrong in faults if wrong] == []


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_every_op_of_onnx_runtimes_domains_in_the_table_has_a_case(backend: str) -> None:
    older = {"ArrayFeatureExtractor", "Binarizer", "TreeEnsemble"}  # which ONNX has node tests of
    declared = find_backend(backend).declared_ops()
    ours = {op for domain, op in declared if domain in (ML, "com.microsoft")}
    assert ours - older == {op for domain, op in OPS if domain}


def _chain() -> onnx.ModelProto:
    """Return a model as an exporter of classic models writes it: scaled, a forest, its scores used further."""
    forest = next(c for c in ml_cases() if c.op == "TreeEnsembleClassifier" and len(c.attributes["class_ids"]) > 20)
    helper = onnx.helper
    nodes = [
        helper.make_node("Scaler", ["x"], ["s"], "import os\n'\"", domain=ML, offset=[0.1] * 4, scale=[2.0] * 4),
        helper.make_node("TreeEnsembleClassifier", ["s"], ["label", "p"], "@@STAGE@@", domain=ML),
        helper.make_node("FusedMatMul", ["p", "w"], ["y"], "last", domain="com.microsoft", alpha=0.5),
    ]
    nodes[1].attribute.extend(helper.make_attribute(name, value) for name, value in forest.attributes.items())
    classes = len(forest.attributes["classlabels_int64s"])
    weights = np.linspace(-1, 1, 2 * classes, dtype=np.float32).reshape(classes, 2)
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", 1, ["batch", 4])],
        [helper.make_tensor_value_info("label", 7, ["batch"]), helper.make_tensor_value_info("y", 1, ["batch", 2])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid(*opset) for opset in (("", 18), (ML, 3), ("com.microsoft", 1))]
    return helper.make_model(graph, ir_version=9, opset_imports=opsets)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_written_stages_carry_forests_under_names_that_are_data(backend: str, tmp_path: Path) -> None:
    model = _chain()
    graph = import_onnx(model, batch=5)
    own: Any = find_backend(backend)
    partition = cut_evenly(graph, 2)
    stages = own.build(graph, partition)
    names = own.write(graph, stages, partition.stages, tmp_path)
    inputs = own.example_inputs(graph, seed=3)
    values = run_stages(partition.stages, own.read(tmp_path, names, partition.stages), inputs, graph.outputs)
    found = [np.asarray(v.detach() if hasattr(v, "detach") else v) for v in (values[n] for n in graph.outputs)]
    assert largest_difference(found, run_whole(model, inputs)) < 1e-5


def _ml(op: str, **attributes: Any) -> Case:
    return Case(op, ML, (np.zeros((2, 4), np.float32),), attributes, ("label", "scores"))


NODES: dict[str, Any] = {
    "nodes_treeids": [0, 0], "nodes_nodeids": [0, 1], "nodes_featureids": [0, 0], "nodes_values": [0.0, 0.0],
    "nodes_truenodeids": [1, 0], "class_treeids": [0], "class_nodeids": [1], "class_ids": [0], "class_weights": [1.0],
    "classlabels_int64s": [0, 1],
}  # fmt: skip
REFUSED = (
    (
        _ml("LinearClassifier", coefficients=[1.0] * 8, intercepts=[0.0, 1.0], classlabels_strings=["no", "yes"]),
        "strings",
    ),
    (
        _ml("TreeEnsembleClassifier", nodes_modes=["BRANCH_LEQ"] * 2, nodes_falsenodeids=[1, 1], **NODES),
        "themselves|root",
    ),
    (
        _ml("TreeEnsembleClassifier", nodes_modes=["BRANCH_LEQ", "LEAF"], nodes_falsenodeids=[7, 0], **NODES),
        "node 0.*tree 0",
    ),
)


@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.parametrize(("case", "reason"), REFUSED)
def test_what_a_backend_has_not_is_refused_by_name_before_the_search(backend: str, case: Case, reason: str) -> None:
    node = onnx.helper.make_node(case.op, ["x"], list(case.outputs), "the one", domain=ML, **case.attributes)
    is_text = "classlabels_strings" in case.attributes
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [2, 4])],
        [onnx.helper.make_tensor_value_info("label", 8 if is_text else 7, [2]),
         onnx.helper.make_tensor_value_info("scores", 1, [2, 2])],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid(ML, 3)]
    read = import_onnx(onnx.helper.make_model(graph, ir_version=9, opset_imports=opsets))
    with pytest.raises(UnsupportedOpError, match=rf"'the one'.*{case.op}.*ai.onnx.ml, opset 3\b.*({reason})"):
        refuse_unsupported(find_backend(backend), read)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_an_lstm_that_rounds_by_the_range_of_its_batch_is_compared_with_one_thread(backend: str) -> None:
    """ONNX Runtime gives every thread a part of the batch, which it rounds by a range of its own."""
    model = parse(
        "g (float[N, 3, 5] x) => (float[N, 3, 1, 4] y) <float[1] s = {0.01}, int8[1] z = {0}> "
        "{ t = Transpose<perm = [1, 0, 2]>(x)  u = com.microsoft.DynamicQuantizeLSTM<hidden_size = 4>"
        "(t, w, r, , , , , , s, z, s, z)  y = Transpose<perm = [2, 0, 1, 3]>(u) }",
        domains=["com.microsoft"],
    )
    generator = np.random.default_rng(0)
    for name, size in (("w", 5), ("r", 4)):
        whole = generator.integers(-64, 64, (1, size, 16), np.int8)  # 8 bits may saturate in ONNX Runtime
        model.graph.initializer.append(onnx.numpy_helper.from_array(whole, name))
    plan = heterps_compile.compile(model, batch=32, backend=backend, method="greedy").plan
    assert plan.verification is not None
    assert plan.verification.max_rel < 1e-5
