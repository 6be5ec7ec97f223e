"""Nine real models, cut into stages, give what ONNX Runtime gives for the whole file."""

import pytest
from light_models import NAMES, path, randomized
from staged_onnx import BACKEND, by_rounding, cut_evenly, largest_difference, run_staged, run_whole

from heterps_compile.frontends.onnx import import_onnx
from heterps_compile.ir.laws import verify_graph

_LARGE = (
    "bvlc_alexnet",
    "vgg19",
    "zfnet512",
    "resnet50",
    "densenet121",
    "inception_v2",
)  # the most weights, and the most nodes


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in _LARGE else n for n in NAMES])
def test_two_and_three_stages_give_the_whole_models_logits(name: str) -> None:
    model = randomized(name, seed=3)
    graph = import_onnx(model)
    verify_graph(graph)
    inputs = BACKEND.example_inputs(graph, seed=1)
    whole = run_whole(model, inputs)
    near = by_rounding(model, inputs, whole)
    assert whole[-1].std() > 0.1  # the logits differ, so that equality says something
    for count in (2, 3):
        assert largest_difference(run_staged(graph, cut_evenly(graph, count), inputs), whole) < near


# GFLOPs of one image as the papers give them, 2 a multiply-add, and megabytes of weights
PUBLISHED = {
    "resnet50": (8.2, 102),  # 3.8 to 4.1 G multiply-adds, 25.6 M parameters
    "vgg19": (39.3, 575),  # 19.6 G, 143.7 M
    "squeezenet": (0.7, 4.9),  # 0.35 G, 1.24 M
    "bvlc_alexnet": (1.4, 244),  # 0.72 G, 61 M
    "densenet121": (5.7, 32),  # 2.87 G, 8.0 M
}


@pytest.mark.parametrize(("name", "expected"), PUBLISHED.items())
def test_work_and_weights_are_the_published_ones(name: str, expected: tuple[float, float]) -> None:
    graph = import_onnx(path(name))
    gflops = sum(node.flops for node in graph.nodes) / 1e9
    megabytes = sum(parameter.size_bytes for parameter in graph.parameters.values()) / 1e6
    assert (gflops, megabytes) == pytest.approx(expected, rel=0.07)
