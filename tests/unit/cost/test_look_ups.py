"""What look-ups read and make: rows of tables, bags of rows, gradients of the whole table or of rows alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from wording import names

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.roofline import layer_phases
from heterps_compile.cost.served_tables import served_costs, tables_of, with_gradients
from heterps_compile.examples import EXAMPLES
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.group_layers import group_nodes

ROWS, WIDTH, SAMPLES, IDS = 1000, 4, 64, 20


class Net(nn.Module):
    """Rows of a table, 20 for each of 64 samples, added up one way or the other."""

    def __init__(self, how: str, *, sparse: bool = False) -> None:
        super().__init__()
        self.how = how
        self.table = nn.Embedding(ROWS, WIDTH, sparse=sparse)
        self.bag = nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse, _weight=self.table.weight)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        if self.how == "rows":
            return self.head(self.table(ids).sum(1))
        if self.how == "function":
            return self.head(functional.embedding_bag(ids, self.table.weight, mode="sum", sparse=self.bag.sparse))
        return self.head(self.bag(ids))


def layers(how: str, *, sparse: bool = False) -> LayerGraph:
    ids = torch.zeros(SAMPLES, IDS, dtype=torch.int64)
    model = Net(how, sparse=sparse).train()
    return group_nodes(read_model(model, (ids,), None, batch=None, shapes={}, dynamic_shapes=None))


@pytest.mark.parametrize("how", ["rows", "bag", "function"])
def test_a_bag_reads_pulls_and_pushes_the_rows_that_it_adds_up(how: str) -> None:
    found = layers(how)
    costs = layer_costs(found)
    looked_up = SAMPLES * IDS * WIDTH * 4
    (table,) = tables_of(found, costs)
    assert sum(table.rows_bytes.values()) == min(looked_up, ROWS * WIDTH * 4)
    assert costs[0].touched_bytes == min(looked_up, ROWS * WIDTH * 4)
    (work,) = (each for each in costs[0].by_kind if each.kind == "embedding")
    made = SAMPLES * WIDTH * 4 if how != "rows" else looked_up
    assert (work.flops, work.moved_bytes, work.table_bytes) == (SAMPLES * IDS, looked_up + made, ROWS * WIDTH * 4)


@pytest.mark.parametrize("how", ["rows", "bag", "function"])
def test_a_sparse_gradient_is_of_rows_alone_and_its_layer_is_another(how: str) -> None:
    dense, sparse = layers(how), layers(how, sparse=True)
    assert [node.sparse for node in sparse.graph.nodes if node.kind == "embedding"] == [True]
    assert not any(node.sparse for node in dense.graph.nodes)
    of_tables = [
        sum(work.table_bytes for cost in layer_costs(each) for work in cost.by_kind) for each in (dense, sparse)
    ]
    assert of_tables == [ROWS * WIDTH * 4, 0]
    keys = layer_keys(dense), layer_keys(sparse)
    assert keys[0][0] != keys[1][0]
    assert keys[0][1:] == keys[1][1:]


class ArraysOfATable(TorchDispatchMode):
    """Count the arrays as large as the table that operations read and write; zeros are written without reading."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = (made,) if func is not torch.ops.aten.detach.default and isinstance(made, Tensor) else ()
        read = args if func is not torch.ops.aten.detach.default else ()
        self.count += sum(isinstance(each, Tensor) and each.shape == (ROWS, WIDTH) for each in (*read, *given))
        return made


@pytest.mark.parametrize("how", ["rows", "bag", "function"])
def test_every_backward_writes_the_whole_gradient_of_a_table_and_adds_it_to_the_one_before(how: str) -> None:
    """What PyTorch moves is what the estimate adds to twice the forward, at the bandwidth of the type."""
    model, ids, counted = Net(how).train(), torch.randint(ROWS, (SAMPLES, IDS)), []
    for _ in range(3):
        loss = model(ids).sum()
        with ArraysOfATable() as arrays:
            loss.backward()
        counted.append(arrays.count)
    assert counted == [1, 4, 4]
    core, cost = load_cluster("heterps-paper").device_types[0], layer_costs(layers(how))[0]
    array_s = ROWS * WIDTH * 4 / (core.memory_bytes_per_s * core.efficiency)
    for part in (1.0, 0.25):  # a micro-batch makes all of it too
        phases = layer_phases(cost, core, "float32", part, training=True)
        beside_s = [each - 2 * phases.forward_s for each in (phases.backward_s, phases.accumulate_s)]
        assert beside_s == pytest.approx([each * array_s for each in counted[:2]])
    assert layer_phases(cost, core, "float32", training=False).accumulate_s == 0


@pytest.mark.parametrize("how", ["rows", "bag"])
def test_what_makes_gradients_of_rows_alone_writes_no_table(how: str) -> None:
    core, dense, sparse = load_cluster("heterps-paper").device_types[0], layers(how), layers(how, sparse=True)
    costs = layer_costs(dense)
    served = served_costs(dense, costs, tables_of(dense, costs))
    stepped = with_gradients(dense, costs, makes_sparse=True, by_servers=True)
    for cost in (layer_costs(sparse)[0], served[0], stepped[0]):
        phases = layer_phases(cost, core, "float32", training=True)
        assert phases.backward_s == phases.accumulate_s == 2 * phases.forward_s
    (whole, *_) = with_gradients(sparse, layer_costs(sparse), makes_sparse=False, by_servers=False)
    assert whole.table_bytes == costs[0].table_bytes == ROWS * WIDTH * 4


def notes_of(*, sparse: bool, **asked: Any) -> list[str]:
    """Return what a plan says of gradients of two tables of 9.8 MiB each, of which a batch looks up 256 rows each."""
    model, inputs = EXAMPLES["ctrdnn"](batch=256, fields=2, rows=160_000, hidden=(32,))
    for table in model.tables:
        table.sparse = sparse
    paper = load_cluster("heterps-paper")
    cores = replace(paper, device_types=paper.device_types[:1], links=())
    more: dict[str, Any] = {"mode": "training", "reading": "steady-state", "verify": False, "method": "greedy"}
    plan = heterps_compile.compile(model, inputs, cluster=cores, **more, **asked).plan
    return [note for note in plan.notes if "gradients" in note]


def test_a_plan_tells_of_gradients_as_large_as_tables_and_what_sparse_ones_would_be() -> None:
    asked = {"min_throughput": 5e4}
    (note,) = notes_of(sparse=False, **asked)
    assert names(note, "--tables cheapest", "19.5 MiB", "stage 0", "2 tables", "sparse=True", "32 KiB")
    (of_adam,) = notes_of(sparse=True, **asked)
    assert "has 2 tables with sparse gradients (sparse=True), which the plan has stepped by rows" in of_adam
    assert not notes_of(sparse=True, optimizer="sgd", **asked)
