"""ONNX's own backend tests that were exported from PyTorch: every node a stage of its own, the outputs it expects."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, version_converter
from onnx.backend.test.loader import load_model_tests
from staged_onnx import cut_evenly, largest_difference, run_staged

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.graph import OPAQUE
from heterps_compile.ir.laws import verify_graph

FOLDERS = {
    case.name: Path(case.model_dir)
    for kind in ("pytorch-converted", "pytorch-operator")
    for case in load_model_tests(kind=kind)
    # the converter to a newer opset forgets that the slope of a PRelu is broadcast in another way there
    if "PReLU" not in case.name or "multiparam" not in case.name
}


def arrays(folder: Path, kind: str) -> list[np.ndarray]:
    paths = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


@pytest.mark.parametrize("name", sorted(FOLDERS))
def test_every_node_as_a_stage_gives_the_expected_outputs(name: str) -> None:
    # of opset 6, of which ONNX Runtime has few kernels
    graph = import_onnx(version_converter.convert_version(onnx.load(FOLDERS[name] / "model.onnx"), 13))
    verify_graph(graph)
    assert OPAQUE not in {value.dtype for value in graph.values.values()}
    inputs = dict(zip(graph.inputs, arrays(FOLDERS[name], "input"), strict=True))
    staged = run_staged(graph, cut_evenly(graph, len(graph.nodes)), inputs)
    assert largest_difference(staged, arrays(FOLDERS[name], "output")) < 1e-4
