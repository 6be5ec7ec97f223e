"""Layers whose tables are served compute what they compute with them, and a profile has what they take."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch_models import small_ctrdnn

from heterps_compile.api import read_model
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.cost.precision import FULL
from heterps_compile.cost.profile_file import from_json, to_json
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.profiling.cache import Cache
from heterps_compile.profiling.layer_passes import Passes
from heterps_compile.profiling.profile_model import Settings, profile_model
from heterps_compile.profiling.served_chain import ServedPasses
from heterps_compile.runtime.pipeline.autocast import Autocast

BACKEND = TorchBackend()
QUICK = Settings(batches=(6,), repeats=2, least_s=0.0, with_replicas=False, with_link=False, with_crowding=False)


class Bags(nn.Module):
    """A table with padding that is looked up twice, bags of another, and a table that is also multiplied with."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bags = nn.Embedding(20, 4, padding_idx=3), nn.EmbeddingBag(30, 4, mode="mean")
        self.tied = nn.Embedding(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids).sum(1) + self.words(ids.flip(0)).mean(1) + self.bags(ids)
        return (x + self.tied(ids % 10).sum(1)) @ self.tied.weight.T


def read(model: nn.Module, *inputs: Tensor) -> Graph:
    return read_model(model.train(), inputs, None, batch=None, shapes={}, dynamic_shapes=None)


def passes(graph: Graph) -> Passes:
    partition = cut_graph(graph, [layer.nodes for layer in group_nodes(graph).layers])
    ticks = itertools.count()
    return Passes(
        graph,
        partition,
        BACKEND.build(graph, partition),
        lambda: float(next(ticks)),
        Autocast(FULL, torch.device("cpu")),
    )


def bags() -> tuple[Graph, list[str]]:
    torch.manual_seed(0)
    return read(Bags(), torch.randint(0, 20, (6, 5))), ["words.weight", "bags.weight"]


def ctrdnn() -> tuple[Graph, list[str]]:
    model, inputs, _ = small_ctrdnn()
    return read(model, *inputs), [f"tables.{i}.weight" for i in range(5)]


@pytest.mark.parametrize("build", [bags, ctrdnn])
def test_gradients_of_rows_are_the_rows_of_the_gradients_and_no_table_has_one(build):
    graph, tables = build()
    tensors = graph.source.tensors
    inputs = [BACKEND.example_inputs(graph, seed) for seed in (0, 1)]
    held, served = passes(graph), ServedPasses(passes(graph), tables)
    for given in (inputs[0], inputs[1], inputs[0]):  # first rows are put together when they are looked up, then ahead
        of_whole = {}
        for chain in (held, served):
            for parameter in tensors.values():
                parameter.grad = None
            chain.train(given, grads_at_hand=False)
            of_whole[chain] = {name: tensor.grad for name, tensor in tensors.items() if tensor.grad is not None}
        rows = served.row_gradients()
        assert rows.keys() == set(tables)
        for name in tables:
            assert name not in of_whole[served]
            gradient = torch.zeros_like(tensors[name])
            for index, part in rows[name]:
                gradient.index_add_(0, index, part)
            torch.testing.assert_close(gradient, of_whole[held].pop(name))
        assert of_whole[served].keys() == of_whole[held].keys()
        for name, gradient in of_whole[held].items():
            torch.testing.assert_close(of_whole[served][name], gradient)


def test_the_model_has_its_tables_again_after_a_pass_that_fails_too():
    graph, tables = bags()
    served = ServedPasses(passes(graph), tables)
    before = {name: id(tensor) for name, tensor in graph.source.tensors.items()}
    wrong = {name: torch.full_like(ids, 999) for name, ids in BACKEND.example_inputs(graph, 0).items()}
    with pytest.raises(IndexError):
        served.infer(wrong)
    found = {name: id(tensor) for stage in served.stages for name, tensor in stage.named_parameters()}
    assert found == {name: before[name] for name in found}
    assert set(tables) <= found.keys()


def test_the_clock_stands_still_while_it_is_found_which_rows_are_needed():
    graph, tables = ctrdnn()
    served, held = ServedPasses(passes(graph), tables), passes(graph)
    given = BACKEND.example_inputs(graph, 0)
    for chain in (held, served, served):
        chain.infer(given)
    # a tick for the call of a layer, in the look-up one for its function and one for what is around it
    assert {times[0] for times in held.forward_s} == {1.0}
    assert [times[-1] for times in served.forward_s][:1] == [3.0]
    assert {times[-1] for place, times in enumerate(served.forward_s) if place not in served.looking_up} == {1.0}


def test_a_profile_has_both_times_of_layers_that_look_rows_up_in_tables_that_servers_could_hold():
    model, inputs, _ = small_ctrdnn()
    profile = profile_model(lambda _: read(model, *inputs), replace(QUICK, mode="training"))
    assert [bool(layer.served) for layer in profile.devices[0].layers] == [
        layer.kind == "embedding" for layer in profile.devices[0].layers
    ]
    assert all(point.backward is not None for layer in profile.devices[0].layers for point in layer.served)
    assert from_json(to_json(profile), "the file") == profile
    text = to_json(profile)
    assert from_json(text, "the file").devices[0].layers[0].served == profile.devices[0].layers[0].served != ()


def test_what_was_measured_served_is_not_measured_again(tmp_path):
    model, inputs, _ = small_ctrdnn()
    first = profile_model(lambda _: read(model, *inputs), QUICK, cache=Cache(tmp_path / "times.json"))
    again = profile_model(lambda _: read(model, *inputs), QUICK, cache=Cache(tmp_path / "times.json"))
    assert [layer.served for layer in again.devices[0].layers] == [
        tuple(replace(point, repeats=2) for point in layer.served) for layer in first.devices[0].layers
    ]
    assert not again.devices[0].wholes  # nothing was run


@pytest.mark.slow  # processes of a run start cold
def test_stages_that_keep_their_tables_are_not_timed_without():
    model, inputs, _ = small_ctrdnn()
    (device,) = profile_model(lambda _: read(model, *inputs), replace(QUICK, backend="jax")).devices
    assert not any(layer.served for layer in device.layers)
