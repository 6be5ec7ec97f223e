"""Memory that changes: who reads what after a change, and what has to stay together."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import Graph

X = torch.ones(2, 3)


def read(forward: Callable[..., Any], *, trace: bool = False, model: nn.Module | None = None) -> Graph:
    made = type("Model", (nn.Module,), {"forward": forward})()
    made.__dict__.update(vars(model) if model is not None else {})
    return import_torch(fx.symbolic_trace(made) if trace else made, (X.clone(),))


def chains(graph: Graph) -> list[str]:
    return sorted(name for name in graph.values if ":then:" in name)


def inputs_of(graph: Graph, name: str) -> tuple[str, ...]:
    return next(node.inputs for node in graph.nodes if node.name == name)


@pytest.mark.parametrize("trace", [False, True])
def test_later_readers_of_a_changed_value_read_the_changing_node(trace: bool) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        return y * 3

    graph = read(forward, trace=trace)
    assert chains(graph) == []
    assert inputs_of(graph, "mul_1") == ("add_",)
    assert graph.source.writes == {"add_": ("mul",)}


@pytest.mark.parametrize("trace", [False, True])
def test_a_change_through_a_view_ties_all_who_touch_the_memory(trace: bool) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x * 2
        y[0].zero_()
        return y + 1

    graph = read(forward, trace=trace)
    touching = [node.name for node in graph.nodes]
    assert chains(graph) == sorted(f"{a}:then:{b}" for a, b in pairwise(touching))


@pytest.mark.parametrize("trace", [False, True])
def test_a_view_taken_before_and_read_after_a_change_is_tied_to_it(trace: bool) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x * 2
        view = y.view(-1)
        y.add_(1)
        return view * 1

    assert chains(read(forward, trace=trace)) == ["add_:then:mul_1", "mul:then:view", "view:then:add_"]


@pytest.mark.parametrize(
    "change",
    [
        lambda y: nn.functional.relu(y, inplace=True),
        lambda y: nn.functional.dropout(y, 0.5, training=True, inplace=True),
        torch.relu_,
        lambda y: y.clamp_(0, 1),
    ],
)
def test_changes_by_any_kind_of_call_are_seen(change: Callable[[Tensor], Tensor]) -> None:
    graph = read(lambda _, x: change(x * 2) + 1, trace=True)
    assert list(graph.source.writes.values()) == [("mul",)]


def test_a_submodule_that_works_in_place_is_seen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    graph = import_torch(fx.symbolic_trace(model), (X,))
    assert graph.source.writes == {"_1": ("_0",)}


@pytest.mark.parametrize("trace", [False, True])
def test_batch_norm_changes_its_statistics_in_training_alone(trace: bool) -> None:
    for training in (True, False):
        model = nn.Sequential(nn.BatchNorm1d(3)).train(training)
        graph = import_torch(fx.symbolic_trace(model) if trace else model, (X,))
        changed = {name for names in graph.source.writes.values() for name in names}
        assert changed == ({"0.running_mean", "0.running_var", "0.num_batches_tracked"} if training else set())


def test_who_reads_a_buffer_that_changes_stays_with_who_changes_it() -> None:
    model = nn.Module()
    model.register_buffer("count", torch.zeros(3))

    def forward(m: Any, x: Tensor) -> Tensor:
        before = x + m.count
        m.count.add_(1)
        return before * m.count

    graph = read(forward, model=model)
    assert graph.source.writes == {"add_": ("count",)}
    assert len(chains(graph)) == 2
    assert torch.equal(model.count, torch.zeros(3))


def test_what_only_reads_is_not_tied() -> None:
    graph = read(lambda _, x: (x.view(-1) + 1).sum() + x.t().sum())
    assert (graph.source.writes, chains(graph)) == ({}, [])


@pytest.mark.parametrize("trace", [False, True])
def test_dropout_that_drops_nothing_is_a_view(trace: bool) -> None:
    def forward(_: Any, x: Tensor) -> Tensor:
        y = x * 2
        z = nn.functional.dropout(y, 0.5, training=False)
        z.add_(1)
        return y * 1

    assert chains(read(forward, trace=trace)) == ["add_:then:mul_1", "dropout:then:add_", "mul:then:dropout"]


def test_a_counter_stays_with_its_batch_norm() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3), nn.BatchNorm1d(3)).train()
    assert chains(import_torch(model, (X,))) == ["add_:then:batch_norm", "add__1:then:batch_norm_1"]
    twice = nn.Sequential(model[0], model[1], model[2], model[1]).train()
    assert chains(import_torch(twice, (X,))) == [
        "add_:then:add__1",
        "add__1:then:batch_norm_1",
        "batch_norm:then:batch_norm_1",
    ]
