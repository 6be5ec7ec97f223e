"""Sessions of ONNX Runtime: on how many threads they compute, and which weights they are handed."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from heterps_compile.backends.onnxruntime.whole_model import WholeModel
from heterps_compile.frontends import onnx_session
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.frontends.onnx_session import open_session, session_threads


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
