"""What a layer's gradients are, held against those that PyTorch makes, sends and steps."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn
from wording import names

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.gradients import gradients_of, held_bytes, ring_bytes
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_orders import tied_storages
from heterps_compile.cost.memory import STEPS_ALL_ROWS, TAKE_NO_SPARSE, stage_memory, stepped_parts
from heterps_compile.cost.served_tables import with_gradients
from heterps_compile.cost.sync_groups import sync_group
from heterps_compile.errors import InfeasibleError
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.annotate_intensity import AnnotateIntensity
from heterps_compile.passes.drafts import Draft, Layered
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.request import Request
from heterps_compile.runtime.pipeline.gradient_sums import SharedGradients
from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync.collective import CountedGroup
from heterps_compile.runtime.sync.contract import Shared
from heterps_compile.runtime.sync.find import make_rule
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rules import COMPARED, USUAL
from heterps_compile.sync_rules.sparse_rows import exposed, refusal, sent_bytes_a_step

DENSE_ROWS, ROWS, WIDTH, SAMPLES, BAG = 90, 120, 4, 12, 3
ROW_BYTES = 4 * WIDTH + 8


class Net(nn.Module):
    """Four tables: gradients as large as the table, of rows, of rows of bags, and of one that is also a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Embedding(DENSE_ROWS, WIDTH)
        self.sparse = nn.Embedding(ROWS, WIDTH, sparse=True)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=True)
        self.tied = nn.Embedding(7, 4 * WIDTH, sparse=True)
        self.linear = nn.Linear(3 * WIDTH, 4 * WIDTH)

    def forward(self, one: Tensor, bag: Tensor) -> Tensor:
        joined = torch.cat([self.dense(one), self.sparse(one), self.bag(bag)], dim=1)
        hidden = self.linear(joined) + self.tied(one % 7)
        return hidden @ self.tied.weight.t()


def inputs(place: int = 0, count: int = 1) -> tuple[Tensor, Tensor]:
    """Return ids of which none comes twice, those of one of several replicas."""
    one, bag = torch.arange(SAMPLES), torch.arange(SAMPLES * BAG).reshape(SAMPLES, BAG)
    return one.tensor_split(count)[place], bag.tensor_split(count)[place]


def net() -> Net:
    torch.manual_seed(0)
    return Net().train()


def layers(model: nn.Module, given: tuple[Any, ...]) -> LayerGraph:
    return group_nodes(read_model(model, given, None, batch=None, shapes={}, dynamic_shapes=None))


def made_bytes(parameters: Iterable[nn.Parameter]) -> int:
    """Return the bytes of gradients that there are."""
    found = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return sum(each._values().nbytes + each._indices().nbytes if each.is_sparse else each.nbytes for each in found)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_gradients_are_as_large_as_those_that_pytorch_makes(micro_batches: int) -> None:
    model = net()
    for place in range(micro_batches):
        model(*inputs(place, micro_batches)).sum().backward()
    found = layers(net(), inputs())
    costs = layer_costs(found)
    parts = stage_memory(found, costs, 0, len(costs), optimizer="sgd")
    assert parts.gradients_bytes == made_bytes(model.parameters())
    of_rows = {
        each.name: each.looked_up for index, cost in enumerate(costs) for each in gradients_of(found, index, cost)
    }
    assert of_rows["sparse.weight"] == SAMPLES
    assert of_rows["bag.weight"] == SAMPLES * BAG
    assert of_rows["dense.weight"] is of_rows["tied.weight"] is None


def test_a_gradient_has_a_row_as_often_as_it_is_looked_up() -> None:
    model = nn.Sequential(nn.Embedding(3, WIDTH, sparse=True), nn.Linear(WIDTH, 1))
    ids = torch.zeros(40, dtype=torch.int64)
    model(ids).sum().backward()
    found = layers(nn.Sequential(nn.Embedding(3, WIDTH, sparse=True), nn.Linear(WIDTH, 1)), (ids,))
    (cost, _), (table,) = layer_costs(found)[:2], gradients_of(found, 0, layer_costs(found)[0])
    assert table.held_bytes == made_bytes(model[0].parameters()) == 40 * ROW_BYTES
    assert table.ring_bytes == 3 * ROW_BYTES  # each row is sent once, however often it was looked up
    weights, states, tensors = stepped_parts(found, 0, cost, optimizer="adam")
    assert (weights, states, tensors) == (3 * 4 * WIDTH, 2 * 3 * 4 * WIDTH, 1)


def test_a_stage_that_looks_up_twice_in_one_table_has_the_rows_of_both_and_holds_the_table_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(ROWS, WIDTH, sparse=True)
            self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, first: Tensor, second: Tensor) -> Tensor:
            return self.one(self.table(first)) + self.two(self.table(second).sum(1))

    one, bag = inputs()
    model, given = Twice().train(), (one, bag + SAMPLES)
    model(*given).sum().backward()
    found = layers(Twice().train(), given)
    costs = layer_costs(found)
    parts = stage_memory(found, costs, 0, len(costs), optimizer="sgd")
    assert parts.gradients_bytes == made_bytes(model.parameters())
    assert parts.weights_bytes == sum(parameter.nbytes for parameter in model.parameters())
    rows = {found.graph.parameters["table.weight"].storage}
    tied = tied_storages(found, (), rows, optimizer="adam")
    assert [size for _, size in tied] == [3 * 4 * WIDTH * ROWS]  # the table and two states, and no gradient
    (group,) = [sync_group(found, costs, [layer.name for layer in found.layers], 2, Network(1.0))]
    assert sum(each.rows for each in group.sparse) == SAMPLES * (1 + BAG)


def test_a_weight_that_layers_share_has_one_gradient_where_they_share_a_stage() -> None:
    found = layers(net(), inputs())
    ((readers, size),) = tied_storages(found, optimizer="momentum")
    assert len(readers) == 2
    assert size == 3 * 4 * 7 * 4 * WIDTH  # the weight, its gradient and its momentum


def in_group(rank: int, count: int, sync: str) -> tuple[int, dict[str, list[float]]]:
    model, counted = net(), CountedGroup(make_group(range(count)), rank)
    shared = Shared(counted, rank, dict(model.named_parameters()), 1 / count)
    sums = SharedGradients(make_rule(parse_rule(sync), shared))
    sums.begin()
    model(*inputs(rank, count)).sum().backward()
    sums.start()
    sums.finish()
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    gradients = {name: grad.to_dense().flatten().tolist() for name, grad in found.items()}
    return counted.sent_bytes, gradients


@pytest.mark.parametrize(("count", "sync"), [(2, "all-reduce"), (3, "all-reduce"), (2, "topk(density=1)")])
def test_replicas_send_what_is_counted(count: int, sync: str) -> None:
    found, rule = layers(net(), inputs()), parse_rule(sync)
    group = sync_group(found, layer_costs(found), [layer.name for layer in found.layers], count, Network(1e-9))
    ranks = run_ranks(in_group, count, count, sync)
    assert sum(sent_bytes for sent_bytes, _ in ranks) == pytest.approx(count * sent_bytes_a_step(rule, group))
    whole = net()
    whole(*inputs()).sum().backward()
    for _, gradients in ranks:
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            assert gradients[name] == pytest.approx(parameter.grad.to_dense().flatten().tolist(), rel=1e-4, abs=1e-5)


def test_times_count_what_is_sent_where_no_replica_looks_up_more_rows_than_there_are() -> None:
    found, network = layers(net(), inputs()), Network(1e-9)
    costs, names = layer_costs(found), [layer.name for layer in found.layers]
    for count in (2, 3, 5):
        group = sync_group(found, costs, names, count, network)
        assert exposed(USUAL, group).bytes_s == pytest.approx(1e-9 * sent_bytes_a_step(USUAL, group))
    by_layer = sync_group(found, costs, names, 2, network, by_layer=True)
    ring = sum(ring_bytes(found, index, cost) for index, cost in enumerate(costs))
    assert exposed(USUAL, by_layer).bytes_s == pytest.approx(network.sums_s(ring, 2))


def test_rules_sum_sparse_gradients_or_leave_them_to_each_replica_or_refuse_them() -> None:
    found = layers(net(), inputs())
    group = sync_group(found, layer_costs(found), [layer.name for layer in found.layers], 2, Network(1e-9))
    plain = replace(group, sparse=())
    rows_bytes = SAMPLES * (1 + BAG) * ROW_BYTES / 2
    for text in ("all-reduce", "topk(density=0.5)", "powersgd(rank=1)", "servers"):
        rule = parse_rule(text)
        assert sent_bytes_a_step(rule, group) == sent_bytes_a_step(rule, plain) + rows_bytes
        assert exposed(rule, group).bytes_s == pytest.approx(exposed(rule, plain).bytes_s + 1e-9 * rows_bytes)
    for text in ("local(steps=2)", "shadow(every=2)", "adasum(on=step)"):
        assert sent_bytes_a_step(parse_rule(text), group) == sent_bytes_a_step(parse_rule(text), plain)
        assert refusal(parse_rule(text), group) == ""
    for text in ("adasum", "adsaga(batches=4)"):
        assert "dense gradients, and look-ups with sparse=True make sparse ones" in refusal(parse_rule(text), group)
        assert refusal(parse_rule(text), plain) == ""


def two_tables(*, sparse: bool) -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(100_000, 16, sparse=sparse), nn.Linear(16, 4)).train()
    return model, (torch.randint(0, 100_000, (64,)),)


def compiled(*, sparse: bool, memory_bytes: float = 16e9, **asked: Any) -> heterps_compile.plan.plan.Plan:
    model, given = two_tables(sparse=sparse)
    core = replace(load_cluster("heterps-paper").device_types[0], memory_bytes=memory_bytes)
    pool = Cluster("mine", "", "USD", (core,), parameter_server=ParameterServer(0.04, "made up", "", 1e9))
    more: dict[str, Any] = {"mode": "training", "verify": False, "optimizer": "sgd", **asked}
    return heterps_compile.compile(model, given, cluster=pool, **more).plan


def test_a_plan_holds_and_steps_whole_gradients_and_says_what_sparse_ones_would_be() -> None:
    table, rows = 100_000 * 16 * 4, 64 * (16 * 4 + 8)
    dense, sparse = compiled(sparse=False), compiled(sparse=True)
    of_dense, of_sparse = (plan.stages[0].memory for plan in (dense, sparse))
    assert of_dense is not None
    assert of_sparse is not None
    assert of_dense.gradients_bytes - of_sparse.gradients_bytes == table - rows
    assert dense.stages[0].update_s > 100 * sparse.stages[0].update_s
    (note,) = [note for note in dense.notes if "gradients as large as" in note]
    assert names(note, "--tables cheapest", "6.1 MiB", "14.7 MiB", "1 table", "sparse=True", "4 KiB")
    assert not [note for note in sparse.notes if "gradients" in note]


def test_a_table_lies_on_servers_where_its_whole_gradient_does_not_fit_beside_it() -> None:
    dense, sparse = (compiled(sparse=each, memory_bytes=12e6) for each in (False, True))
    assert dense.tables is not None
    assert dense.tables.names == ("0.weight",)
    assert sparse.tables is None
    with pytest.raises(InfeasibleError, match="table"):
        compiled(sparse=False, memory_bytes=12e6, tables="held")


@pytest.mark.parametrize(
    ("optimizer", "said"),
    [
        ("adam", "torch.optim.Adam refuses: the optimizer of the training file has to be torch.optim.SparseAdam"),
        ("momentum", "torch.optim.SGD with momentum steps whole"),
        ("adafactor", "torch.optim.Adafactor refuses, and a run fails"),
        ("adam-8bit", "bitsandbytes.optim.Adam8bit has no step for, and a run fails"),
    ],
)
def test_a_plan_tells_what_its_optimizer_makes_of_sparse_gradients(optimizer: str, said: str) -> None:
    (note,) = [note for note in compiled(sparse=True, optimizer=optimizer).notes if "sparse" in note]
    assert said in note


def steps_of(make: Any) -> list[int]:
    """Return how many rows each step of an optimizer changes, of which each looks up 8 others."""
    table = nn.Embedding(100, WIDTH, sparse=True)
    optimizer, changed = make(table.parameters()), []
    for step in range(3):
        before = table.weight.detach().clone()
        optimizer.zero_grad()
        (table(torch.arange(8) + 8 * step) * torch.randn(8, WIDTH)).sum().backward()
        optimizer.step()
        changed.append(int((table.weight != before).any(1).sum()))
    return changed


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_optimizers_take_sparse_gradients_as_is_counted() -> None:
    assert steps_of(lambda given: torch.optim.SGD(given, lr=0.1)) == [8, 8, 8]
    assert steps_of(lambda given: torch.optim.SparseAdam(given, lr=0.1)) == [8, 8, 8]
    assert steps_of(lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9)) == [8, 16, 24]
    assert STEPS_ALL_ROWS == ("momentum",)
    for made in (torch.optim.Adam, torch.optim.Adafactor):
        with pytest.raises(RuntimeError, match="gradients"):
            steps_of(made)
    assert "adafactor" in TAKE_NO_SPARSE


def test_what_is_stepped_is_rows_but_of_a_velocity_all() -> None:
    found = layers(two_tables(sparse=True)[0], two_tables(sparse=True)[1])
    cost = layer_costs(found)[0]
    assert stepped_parts(found, 0, cost, optimizer="sgd") == (64 * 64, 0, 1)
    assert stepped_parts(found, 0, cost, optimizer="momentum") == (100_000 * 64, 100_000 * 64, 1)
    whole = layers(two_tables(sparse=False)[0], two_tables(sparse=False)[1])
    assert stepped_parts(whole, 0, layer_costs(whole)[0], optimizer="sgd") == (100_000 * 64, 0, 1)


def test_stages_of_a_runtime_that_makes_no_sparse_gradients_have_whole_ones() -> None:
    model, given = two_tables(sparse=True)
    found = layers(model, given)
    opened = Draft(graph=found.graph, cluster=load_cluster("heterps-paper"), request=Request(mode="training"))
    for makes_sparse, size in ((True, 64 * 72), (False, 100_000 * 64)):
        layered = Layered(**{**vars_of(opened), "makes_sparse": makes_sparse}, layers=found)
        draft = AnnotateIntensity()(layered)
        assert held_bytes(gradients_of(draft.layers, 0, draft.costs[0])) == size


def vars_of(draft: Draft) -> dict[str, Any]:
    return {name: getattr(draft, name) for name in draft.__slots__}


def test_servers_that_step_tables_are_pushed_rows_whatever_the_look_ups_say() -> None:
    for sparse in (False, True):
        model, given = two_tables(sparse=sparse)
        found = layers(model, given)
        costs = with_gradients(found, layer_costs(found), makes_sparse=True, by_servers=True)
        assert held_bytes(gradients_of(found, 0, costs[0])) == 64 * 64
        group = sync_group(found, costs, [found.layers[0].name], 2, Network(1.0))
        assert (group.gradient_bytes, group.sparse) == (64 * 64, ())


def test_no_rule_that_refuses_sparse_gradients_is_chosen() -> None:
    assert any(rule.name == "adasum" for rule in COMPARED)
    asked = {"synchronisation": "auto", "allow": "any", "min_throughput": 5e6, "reading": "steady-state"}
    plan = compiled(sparse=True, **asked)
    assert all(stage.sync is None or not stage.sync.rule.startswith("adasum") for stage in plan.stages)
    with pytest.raises(InfeasibleError, match="--sync"):
        compiled(sparse=True, synchronisation="adasum", min_throughput=5e6, reading="steady-state")
