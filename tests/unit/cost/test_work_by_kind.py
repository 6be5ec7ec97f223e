"""What the nodes of a layer do by kind of work: dropout, attention that drops, concatenations, tables."""

from dataclasses import replace

import pytest
import torch
from sketch import sketch
from torch import nn

from heterps_compile.cost.layer_cost import CACHES_BYTES, KindWork, layer_costs
from heterps_compile.frontends.torch_fx import import_torch
from heterps_compile.ir.graph import COLD_START, DROPOUT, DROPPING_ATTENTION, Graph
from heterps_compile.passes.group_layers import group_nodes

ATTENTION = sketch("""
    in q 2x3x5x4
    in k 2x3x7x4
    in v 2x3x7x4
    attention mix : q k v -> y 2x3x5x4 flops=3360
    elementwise drop : y -> z 2x3x5x4 flops=120
    out z
""")
READ_AND_MADE = 4 * (2 * 120 + 2 * 168)
WEIGHTS = 4 * 2 * 3 * 5 * 7


def work(graph: Graph) -> dict[str, KindWork]:
    works = [each for cost in layer_costs(group_nodes(graph)) for each in cost.by_kind]
    return {each.kind: each for each in works if each.kind != COLD_START}


def test_an_attention_takes_exponentials_of_its_weights():
    assert work(ATTENTION)["attention"] == KindWork(
        "attention", 1, 3360, READ_AND_MADE + WEIGHTS, 0, has_backward=False
    )


def test_what_draws_is_a_kind_of_its_own():
    drawing = replace(ATTENTION, nodes=tuple(replace(node, draws=True) for node in ATTENTION.nodes))
    assert work(drawing).keys() == {DROPPING_ATTENTION, DROPOUT}
    assert work(drawing)[DROPOUT] == KindWork(DROPOUT, 1, 120, 960, 0, has_backward=False)


def test_a_concatenation_starts_a_copy_for_each_part_and_none_for_indices():
    graph = sketch("""
        in x 4x8
        par w 8x8
        gemm fc : x w -> a 4x8 flops=512
        move cat : a a x -> y 4x24
        out y
    """)
    assert work(graph)["move"] == KindWork("move", 3, 0, 2 * 4 * 24 * 4, 0)
    picks = sketch("""
        in x 4x8
        par w 8x8
        gemm fc : x w -> a 4x8 flops=512
        move pick : a x -> y 4x8
        out y
    """)
    ids = {**picks.values, "x": replace(picks.values["x"], dtype="int64")}
    assert work(replace(picks, values=ids))["move"].operations == 1


class Columns(nn.Module):
    """Looks up a column of ids, or the first half of them, and multiplies what it finds with a row of positions."""

    def __init__(self, of: str) -> None:
        super().__init__()
        self.table, self.of = nn.Embedding(50, 8), of

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        ids = ids[:, 1] if self.of == "column" else ids[:2] if self.of == "rows" else ids.reshape(-1)
        return self.table(ids) * torch.arange(8)


def by_kind(of: str) -> list[KindWork]:
    inputs = {"ids": torch.zeros(4, 3, dtype=torch.int64)}
    graph = import_torch(Columns(of), (), inputs, batch=None, shapes={}, dynamic_shapes=None)
    return [each for cost in layer_costs(group_nodes(graph)) for each in cost.by_kind]


def test_a_column_of_ids_is_taken_and_copied_before_its_rows_are_looked_up():
    found = by_kind("column")
    assert KindWork("view", 1, 0, 0, 0, has_backward=False) in found
    assert (
        KindWork("move", 1, 0, 2 * 4 * 8, 0, has_backward=False) in found
    )  # four ids of eight bytes, read and written
    assert KindWork("embedding", 1, 4, 2 * 4 * 8 * 4, 0, 50 * 8 * 4) in found


@pytest.mark.parametrize("of", ["rows", "all"])
def test_ids_that_lie_side_by_side_are_not_copied(of: str) -> None:
    assert "move" not in {each.kind for each in by_kind(of)}


def test_what_is_made_of_ids_and_constants_has_no_backward():
    backward = {each.kind: each.has_backward for each in by_kind("column") if each.kind != COLD_START}
    assert backward == {"view": False, "move": False, "embedding": True, "constant": False, "elementwise": True}


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.drop = nn.Linear(8, 8), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(self.enter(x))
        p = 0.1 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=p)


def test_a_torch_model_draws_in_training_mode_alone():
    def kinds(model: nn.Module) -> set[str]:
        inputs = {"x": torch.zeros(2, 2, 5, 8)}
        graph = import_torch(model, (), inputs, batch=None, shapes={}, dynamic_shapes=None)
        return {kind for kind in work(graph) if kind in (DROPOUT, DROPPING_ATTENTION, "attention")}

    assert kinds(Dropping().train()) == {DROPOUT, DROPPING_ATTENTION}
    assert kinds(Dropping().eval()) == {"attention"}


def test_the_first_layer_starts_cold_by_all_that_a_pass_moves():
    graph = sketch("""
        in x 4x8
        par w 8x8
        par v 8x2
        gemm one : x w -> a 4x8 flops=512
        gemm two : a v -> y 4x2 flops=128
        out y
    """)
    first, second = layer_costs(group_nodes(graph))
    moved, weights = 4 * (4 * 8 + 4 * 8 + 4 * 8 + 4 * 2), 4 * (8 * 8 + 8 * 2)
    assert first.by_kind[-1] == KindWork(COLD_START, 1, 0, moved, weights, has_backward=False)
    assert COLD_START not in {each.kind for each in second.by_kind}
    assert first.by_kind[-1].bytes_of(0.5) == moved / 2 + weights
    assert replace(first.by_kind[-1], moved_bytes=10 * CACHES_BYTES).bytes_of(0.5) == CACHES_BYTES
