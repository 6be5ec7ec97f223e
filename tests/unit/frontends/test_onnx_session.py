"""Sessions of ONNX Runtime: on how many threads they compute, and which weights they are handed."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from heterps_compile.backends.onnxruntime.whole_model import WholeModel
from heterps_compile.frontends import onnx_session
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.onnx_session import open_session, session_threads
from heterps_compile.frontends.onnx_shapes import infer


@pytest.fixture
def asked(monkeypatch):
    """Return the list of thread counts that sessions are opened with."""
    counts = []
    plain = onnx_session._session_options

    def watched():
        options = plain()
        counts.append(options.intra_op_num_threads)
        return options

    monkeypatch.setattr(onnx_session, "_session_options", watched)
    return counts


def test_a_session_computes_on_the_threads_that_were_asked_for_when_it_was_opened(asked):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "neg", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 20)]
    model = ir.from_proto(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))
    open_session(model)  # the first one tries sessions of its own, to find the newest format
    asked.clear()
    with session_threads(1):
        session = open_session(model)
    open_session(model)
    assert asked == [1, 0]  # 0 is ONNX Runtime's own number
    np.testing.assert_array_equal(session.run(["y"], {"x": np.ones(2, np.float32)})[0], [-1, -1])


@pytest.mark.parametrize("has_dead_reader", [False, True])
def test_large_initializers_that_nobody_reads_are_not_handed_over(has_dead_reader):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    nodes = [helper.make_node("Neg", ["x"], ["y"], name="neg")]
    if has_dead_reader:
        nodes.append(helper.make_node("Neg", ["unread"], ["dead"], name="dead"))
    unread = onnx.numpy_helper.from_array(np.ones(2048, np.float32), "unread")
    graph = helper.make_graph(nodes, "neg", ends[:1], ends[1:], [unread])
    model = onnx.helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    whole = WholeModel.of(import_onnx(model), "CPUExecutionProvider")
    np.testing.assert_array_equal(whole({"x": np.ones(2, np.float32)})[0], [-1, -1])


def test_long_attributes_are_serialised_once_and_trees_compute_what_they_did(monkeypatch):
    trees, written = 2000, []
    ids, rng = np.repeat(np.arange(trees), 3), np.random.default_rng(0)
    branch = np.tile([True, False, False], trees)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, n]) for name, n in (("x", 5), ("y", 1))]
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=ids.tolist(), nodes_nodeids=np.tile([0, 1, 2], trees).tolist(),
        nodes_featureids=(rng.integers(0, 5, 3 * trees) * branch).tolist(),
        nodes_truenodeids=np.tile([1, 0, 0], trees).tolist(), nodes_falsenodeids=np.tile([2, 0, 0], trees).tolist(),
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * trees, nodes_values=rng.standard_normal(3 * trees).tolist(),
        target_treeids=ids[~branch].tolist(), target_nodeids=[1, 2] * trees, target_ids=[0, 0] * trees,
        target_weights=rng.standard_normal(2 * trees).tolist(),
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(
        helper.make_graph([node], "trees", ends[:1], ends[1:]), opset_imports=opsets, ir_version=8
    )
    plain = ir.serde.serialize_attribute
    monkeypatch.setattr(ir.serde, "serialize_attribute", lambda each: written.append(each.name) or plain(each))
    model, x = ir.from_proto(proto), rng.standard_normal((4, 5)).astype(np.float32)
    sessions = [open_session(model) for _ in range(2)]
    assert [infer(model, {}).values["y"].shape for _ in range(2)] == [(4, 1)] * 2
    assert len(written) == len(set(written))
    assert {"nodes_modes", "nodes_values", "nodes_treeids"} <= set(written)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]
    for session in sessions:
        assert np.array_equal(session.run(["y"], {"x": x})[0], theirs)
