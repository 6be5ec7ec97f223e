"""Advice on small models: the lemmas' numbers, the steps beside them, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from test_tiny import tiny_onnx
from torch import nn

from heterps_compile.advice import advise
from heterps_compile.advice.model_work import model_work
from heterps_compile.cli.main import command
from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.cost.provisioners import parameter_servers
from heterps_compile.errors import InfeasibleError, InputError, UnknownNameError
from heterps_compile.offers.as_device import data_sheet


@pytest.fixture(scope="module")
def conv_onnx(tmp_path_factory) -> str:
    """A convolution of 3 to 8 channels, its transposed back, and a product; the batch is open."""
    path = tmp_path_factory.mktemp("advice") / "conv.onnx"

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.ones(shape, np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("ConvTranspose", ["c", "u"], ["t"], "up", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["t"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("MatMul", ["f", "v"], ["y"], "fc"),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4]),
    ]
    weights = [weight("w", 8, 3, 3, 3), weight("u", 8, 5, 2, 2), weight("v", 5, 4)]
    graph = helper.make_graph(nodes, "conv", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return str(path)


def pool(**changes) -> Cluster:
    device = replace(data_sheet("v100"), **changes)
    return Cluster("one", "", "USD", (device,), parameter_server=ParameterServer(0.04, "a page", "2026", 1e6))


def test_where_nothing_is_summed_the_lemma_and_the_simulated_step_agree(conv_onnx):
    free = pool(
        network_bytes_per_s=1e24, network_latency_s=1e-15, compute_parallel=0.9, input_bytes_per_s=1e24,
        memory_bytes_per_s=1e24,  # nor does the optimizer take time
    )  # fmt: skip
    advice = advise(conv_onnx, gpu="v100", speed_up=2, cluster=free, batch=4096)
    assert advice.work.again_s > 0
    assert advice.work.serial_s > 0
    assert advice.work.gradients_s < 1e-9 * advice.work.divided_s
    for gpus in (2, 4, 16):
        assert advice.fuller_speed_up(gpus) == pytest.approx(advice.lemma_speed_up(gpus), rel=1e-6)
    assert (advice.gpus, advice.fuller_gpus) == (5, 8)  # 5 have no equal parts of the batch


def test_the_parts_of_a_batch_are_those_of_the_cost_model(conv_onnx):
    advice = advise(conv_onnx, gpu="v100", speed_up=2, batch=64)
    work, problem = advice.work, advice.model.draft.problem
    assert work.divided_s + work.again_s + work.serial_s == pytest.approx(problem.compute_s.sum())
    assert work.gradients_s == pytest.approx(2 * advice.model.weights_bytes / (12.5e9 / 8))
    assert advice.model.weights_bytes == 4 * (8 * 27 + 8 * 20 + 20)
    assert work.workspaces_bytes == (27 * 64 * 256 * 4, 20 * 64 * 256 * 4)  # rows x columns of the matrix


@pytest.mark.parametrize("other", [16, 256])
def test_a_batch_in_proportion_is_the_batch_of_the_model_read_there(conv_onnx, other):
    read, there = (model_work(conv_onnx, (), pool(), batch=batch) for batch in (64, other))
    found, own = read.at(other), there.at(other)
    assert (found.divided_s, found.again_s) == pytest.approx((own.divided_s, own.again_s), rel=1e-9)
    assert (found.gradients_s, found.input_s) == pytest.approx((own.gradients_s, own.input_s))
    assert found.memory_bytes == pytest.approx(own.memory_bytes, rel=1e-6)
    assert found.workspaces_bytes == own.workspaces_bytes


def test_a_whole_gradient_is_that_of_any_batch_and_a_sparse_one_of_the_rows_that_it_looks_up(tmp_path):
    read, there = (model_work(tiny_onnx(tmp_path / "tiny.onnx"), (), pool(), batch=batch) for batch in (32, 256))
    for batch in (1, 8, 256, 10**6):
        assert read.at(batch).gradients_s == pytest.approx(there.at(1).gradients_s)
    net = nn.Sequential(nn.Embedding(1000, 8, sparse=True), nn.Linear(8, 2)).train()
    read, there = (model_work(net, (torch.zeros(batch, dtype=torch.int64),), pool()) for batch in (32, 256))
    for batch in (8, 256, 4096):
        assert read.at(batch).gradients_s == pytest.approx(there.at(batch).gradients_s)
        own = model_work(net, (torch.zeros(batch, dtype=torch.int64),), pool()).at(batch)
        assert read.at(batch).memory_bytes == pytest.approx(own.memory_bytes, rel=0.01)
    assert read.at(1).gradients_s < read.at(8).gradients_s < read.at(65536).gradients_s == read.at(10**6).gradients_s


def test_servers_are_those_of_the_lemma_and_of_the_plan(conv_onnx):
    advice = advise(conv_onnx, gpu="v100", speed_up=2, cluster=pool(network_bytes_per_s=1e12), batch=65536)
    servers, gpus = advice.servers, advice.gpus
    assert servers is not None
    assert gpus is not None
    assert servers.lemma == parameter_servers(advice.model.weights_bytes, gpus, 1e6, servers.round_s)
    assert servers.lemma == int(np.ceil(2 * advice.model.weights_bytes * gpus / (1e6 * servers.round_s)))
    assert servers.fuller >= 1


def test_the_fewest_gpus_of_the_step_are_the_fewest(conv_onnx):
    advice = advise(conv_onnx, gpu="v100", speed_up=1.5, batch=16384)
    found = advice.fuller_gpus
    assert found is not None
    assert advice.fuller_speed_up(found) >= 1.5
    assert all(advice.fuller_speed_up(gpus) < 1.5 for gpus in range(1, found))


def test_a_small_batch_says_what_the_ceiling_is_and_what_the_shortest_step_is(conv_onnx):
    advice = advise(conv_onnx, gpu="v100", speed_up=8, batch=2)
    assert advice.gpus is None
    assert advice.servers is None
    assert advice.ceiling < 8
    assert (advice.fuller_gpus, advice.fuller_best) == (None, 1)
    assert all(later.work.overhead <= earlier.work.overhead
               for earlier, later in zip(advice.batches, advice.batches[1:], strict=False))  # fmt: skip


def test_the_sweep_ends_where_memory_does_and_the_batch_is_the_smallest_that_is_as_good(conv_onnx):
    advice = advise(conv_onnx, gpu="v100", speed_up=2, cluster=pool(memory_bytes=2.0**24), batch=8)
    sizes, fits = [each.work.batch for each in advice.batches], [each.fits for each in advice.batches]
    assert sizes == [2**power for power in range(len(sizes))]
    assert fits == [True] * (len(fits) - 1) + [False]
    best = advice.best_batch
    assert best is not None
    most = max(each.samples_per_s for each in advice.batches if each.fits)
    assert best.samples_per_s >= 0.95 * most
    assert all(each.samples_per_s < 0.95 * most for each in advice.batches if each.work.batch < best.work.batch)
    assert best.with_workspace in (0, 1, 2)


@pytest.mark.parametrize("speed_up", ["1.5", "1000"])
def test_units_that_are_no_gpus_are_not_called_so(conv_onnx, speed_up):
    words = ["advise", conv_onnx, "--gpu", "cpu-core", "--cluster", "heterps-paper", "--batch", "256"]
    shown = CliRunner().invoke(command, [*words, "--speed-up", speed_up], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert "computing a batch on one unit, which more units divide" in shown.output
    assert "GPU" not in shown.output


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"gpu": "v10"}, UnknownNameError, "mean 'v100'"),
        ({"gpu": "v100", "cluster": "edge"}, UnknownNameError, "device.*'v100'"),
        ({"speed_up": 1}, InputError, r"\b1\b.*\b1\b"),
        ({"speed_up": float("nan")}, InputError, "nan"),
        ({"cluster": pool(memory_bytes=1000.0)}, InfeasibleError, r"batch.*\b1\b"),
    ],
)
def test_what_cannot_be_advised_is_refused(conv_onnx, asked, error, said):
    with pytest.raises(error, match=said):
        advise(conv_onnx, **{"gpu": "v100", "speed_up": 2, "batch": 8, **asked})


def test_a_model_that_fixes_its_batch_is_refused(tmp_path):
    path = tmp_path / "fixed.onnx"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.ones((8, 8), np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "fixed", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    with pytest.raises(InputError, match=r"'fixed'.*\b4\b"):
        advise(path, gpu="v100", speed_up=2)


def test_the_command_prints_every_formula_with_its_numbers_and_the_same_as_json(conv_onnx):
    words = ["advise", conv_onnx, "--gpu", "v100", "--speed-up", "1.5", "--batch", "16384"]
    shown = CliRunner().invoke(command, words, env={"COLUMNS": "100"})
    assert shown.exit_code == 0, shown.output
    document = json.loads(CliRunner().invoke(command, [*words, "--json"]).output)
    ratio = f"{document['overhead']:.3g}"
    assert f"GPUs      S / (1 + R - S R) = 1.5 / (1 + {ratio} - 1.5 x {ratio}) -> {document['gpus']}" in shown.output
    assert "fuller model: " in shown.output
    assert "units" not in shown.output
    assert document["fuller"]["gpus"] in [step["gpus"] for step in document["fuller"]["steps"]]
    assert [each["batch"] for each in document["batches"]][:3] == [1, 2, 4]
    for each in document["batches"]:
        assert each["ceiling"] == (1 if each["overhead"] is None else 1 + 1 / each["overhead"])
