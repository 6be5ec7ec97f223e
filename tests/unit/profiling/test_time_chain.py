"""The chain computes what the model computes, and its corrected times add up to the whole."""

import itertools
from collections import UserDict

import pytest
import torch
from torch_models import bert, skip_net, small_ctrdnn

from heterps_compile.api import read_model
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.cost.precision import FULL
from heterps_compile.cost.profile import Timing
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.ir.partition import cut_graph
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.profiling.chain import Repeats, TimingSetup, call_time, correct, time_chain
from heterps_compile.profiling.clock import choose_clock, make_clock, timing
from heterps_compile.profiling.layer_passes import Passes
from heterps_compile.runtime.pipeline.autocast import Autocast

BACKEND = TorchBackend()


def ticking():
    """Return a clock that ticks once whenever it is read."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


@pytest.mark.parametrize("training", [True, False])
def test_in_a_precision_every_stage_runs_under_autocast(training):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    graph = read_model(model, (torch.ones(2, 4),), None, batch=None, shapes={}, dynamic_shapes=None)
    partition = cut_graph(graph, [[0, 1], [2]])
    made = []

    def seen(stage):
        def run(*values):
            made.append(stage(*values))
            return made[-1]

        return run

    stages = [seen(stage) for stage in BACKEND.build(graph, partition)]
    passes = Passes(graph, partition, stages, ticking(), Autocast("bf16", torch.device("cpu")))
    inputs = {graph.inputs[0]: torch.ones(2, 4)}
    if training:
        passes.train(inputs, grads_at_hand=False)
    else:
        passes.infer(inputs)
    assert [value.dtype for values in made for value in values] == [torch.bfloat16] * 2


def read(built):
    model, args, kwargs = built
    return read_model(model.train(), args, kwargs, batch=None, shapes={}, dynamic_shapes=None)


@pytest.mark.parametrize("build", [small_ctrdnn, bert])
def test_gradients_of_the_chain_are_those_of_the_whole(build):
    torch.manual_seed(0)
    graph = read(build())
    inputs = BACKEND.example_inputs(graph, 0)
    layers = group_nodes(graph)
    gradients = []
    for groups in ([layer.nodes for layer in layers.layers], [range(len(graph.nodes))]):
        partition = cut_graph(graph, groups)
        stages = BACKEND.build(graph, partition)
        for parameter in graph.source.tensors.values():
            parameter.grad = None
        with BACKEND.reproducible(graph, 0):
            Passes(graph, partition, stages, ticking(), Autocast(FULL, torch.device("cpu"))).train(
                inputs, grads_at_hand=False
            )
        gradients.append({n: p.grad.clone() for n, p in graph.source.tensors.items() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    assert gradients[0]
    for name, theirs in gradients[1].items():
        torch.testing.assert_close(gradients[0][name], theirs, rtol=1e-4, atol=1e-6)


def test_skips_ties_and_in_place_ops_are_timed_in_training_too():
    module, args = skip_net(training=True)
    graph = read_model(module, args, None, batch=None, shapes={}, dynamic_shapes=None)
    layers = group_nodes(graph)
    times = time_chain(
        layers, TimingSetup(BACKEND, [BACKEND.example_inputs(graph, 0)], ticking()), Repeats(2), training=True
    )
    assert len(times.layers) == len(layers.layers)
    assert times.whole.layers_forward_s == len(layers.layers)  # one tick each
    assert sum(t.forward.median_s for t in times.layers) == pytest.approx(times.whole.forward_s)
    assert sum(t.backward.median_s for t in times.layers) == pytest.approx(times.whole.backward_s)


class Given(UserDict):
    """Inputs that say when they are taken."""

    def __init__(self, values, number, taken):
        super().__init__(values)
        self.number, self.taken = number, taken

    def keys(self):
        self.taken.append(self.number)
        return super().keys()


def test_every_pass_reads_other_inputs_than_the_one_before():
    graph = read(small_ctrdnn())
    taken = []
    inputs = [Given(BACKEND.example_inputs(graph, seed), seed, taken) for seed in range(4)]
    time_chain(group_nodes(graph), TimingSetup(BACKEND, inputs, ticking()), Repeats(2), training=False)
    assert taken[::2] == [0, 1, 2, 3, 0]  # the chain
    assert taken[1::2] == [2, 3, 0, 1, 2]  # and the whole


def test_repeats_go_on_while_there_is_time():
    graph = read(small_ctrdnn())
    inputs = [BACKEND.example_inputs(graph, 0)]
    assert (
        time_chain(group_nodes(graph), TimingSetup(BACKEND, inputs, ticking()), Repeats(2), training=False).repeats == 2
    )
    longer = time_chain(
        group_nodes(graph), TimingSetup(BACKEND, inputs, ticking()), Repeats(2, least_s=60.0), training=False
    )
    assert longer.repeats == 500  # and not for ever


def test_what_calling_a_layer_costs_is_taken_off_each():
    # 11 seconds for a whole of 9: one call is in both, so two calls make the excess, one second each; then 9 / 8
    layers = [Timing(5.0, 0.1), Timing(3.0, 0.1), Timing(3.0, 0.1)]
    assert call_time(layers, 9.0) == 1.0
    assert [t.median_s for t in correct(layers, 9.0, 1.0)] == [4.5, 2.25, 2.25]


def test_noise_of_a_long_layer_is_not_taken_off_short_ones():
    layers = [Timing(100.0, 0.0), Timing(2.0, 0.0), Timing(2.0, 0.0)]
    assert call_time(layers, 84.0) == 2.0  # a call is in each of them
    assert call_time(layers, 84.0, at_most_s=0.5) == 0.5  # as it cost at a smaller batch
    assert [t.median_s for t in correct(layers, 82.0, 0.5)] == pytest.approx([79.6, 1.2, 1.2])


def test_a_short_layer_keeps_a_part_of_its_time():
    layers = [Timing(10.0, 0.0), Timing(1.0, 0.0), Timing(10.0, 0.0)]
    corrected = correct(layers, 15.0, call_time(layers, 15.0))
    assert corrected[1].median_s > 0
    assert sum(t.median_s for t in corrected) == pytest.approx(15.0)


def test_layers_that_are_quicker_one_by_one_get_a_factor():
    assert [t.median_s for t in correct([Timing(1.0, 0.0), Timing(3.0, 0.0)], 6.0, 0.0)] == [1.5, 4.5]


def test_the_median_is_what_counts():
    assert timing([1.0, 2.0, 3.0, 4.0, 100.0]) == Timing(3.0, 1.0)
    assert timing([7.0]) == Timing(7.0, 0.0)


def test_a_clock_that_cannot_measure_is_refused():
    assert (choose_clock("cpu", 1), choose_clock("cpu", 2), choose_clock("cuda:0", 1)) == ("cpu", "wall", "wall")
    with pytest.raises(InputError, match="calling"):
        make_clock("cpu", "cpu", 2)
    with pytest.raises(UnknownNameError, match="sun"):
        make_clock("sun", "cpu", 1)
