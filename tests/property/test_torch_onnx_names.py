"""Names of an ONNX model are data: whatever they are, the written stage is right and nothing leaves its folder."""

import keyword
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from staged_onnx import cut_evenly, largest_difference

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.runtime.in_process import run_stages

BACKEND = TorchBackend()
PLACES = 9  # names that the model below has

HOSTILE = [
    "\"; import os; os.system('touch pwned') #",
    "'''\nimport os\nos.abort()\n'''",
    "../../etc/passwd",
    "/etc/passwd",
    "line\nbreak\r\u2028\x00\x1b[2J",
    "\u202ename",
    "forward",
    "self",
    "torch",
    "__class__",
    "a.b",
    "a_b",
    "a b",
    "a/b",
    "..",
    ".",
    "0",
    "x" * 10_000,
    "@@TENSORS@@",
    "{name}",
    "%s",
    "\\",
    "na\u00efve",
    *keyword.kwlist[:6],
]
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))


def named_model(names: list[str]) -> onnx.ModelProto:
    """Return a small network all of whose names are given ones."""
    x, w, b, product, hidden, v, y, one, other = names
    nodes = [
        helper.make_node("MatMul", [x, w], [product], one),
        helper.make_node("Add", [product, b], [hidden], other),
        helper.make_node("MatMul", [hidden, v], [y], ""),
    ]
    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        names[0],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, [2, 2])],
        [
            numpy_helper.from_array(rng.standard_normal(shape, dtype=np.float32), name)
            for name, shape in ((w, (3, 4)), (b, (4,)), (v, (4, 2)))
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.slow  # hostile names by the hundred
@settings(max_examples=40, deadline=None)
@given(st.lists(NAMES, min_size=PLACES, max_size=PLACES, unique=True))
@example(HOSTILE[:PLACES])
@example(HOSTILE[PLACES : 2 * PLACES])
@example(HOSTILE[-PLACES:])
@example(["a.b", "a_b", "a b", "a/b", "a-b", "a\nb", "a", "A_B", "a.b.c"])
def test_any_names_give_stages_that_run_and_stay_in_their_folder(names: list[str]) -> None:
    graph = import_onnx(named_model(names))
    partition = cut_evenly(graph, 2)
    inputs = BACKEND.example_inputs(graph, seed=0)
    whole = BACKEND.reference(graph)(inputs)
    stages = BACKEND.build(graph, partition)
    with TemporaryDirectory() as parent:
        folder = Path(parent) / "out"
        folder.mkdir()
        files = BACKEND.write(graph, stages, partition.stages, folder)
        assert sorted(path.name for path in folder.iterdir()) == sorted(name for each in files for name in each)
        assert list(Path(parent).iterdir()) == [folder]
        sources = [(folder / f"stage_{i}.py").read_text(encoding="ascii") for i in range(2)]
        read = BACKEND.read(folder, files, partition.stages)
        for made in (stages, read):
            with torch.no_grad():
                values = run_stages(partition.stages, made, inputs, graph.outputs)
            assert largest_difference([values[name].numpy() for name in graph.outputs], whole) < 1e-5
        assert {key for stage in read for key in stage.state_dict()} == {names[1], names[2], names[5]}
    assert not Path("pwned").exists()
    assert all("os.system('touch" not in line.partition('"')[0] for s in sources for line in s.splitlines())
