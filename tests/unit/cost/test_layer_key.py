import torch
from torch import Tensor, nn

from heterps_compile.api import read_model
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.group_layers import group_nodes

BATCH = torch.export.Dim("batch", min=1, max=1024)


class Words(nn.Module):
    """A table, a linear layer over all words in one matrix, two equal layers after it."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.table = nn.Embedding(20, width)
        self.mix, self.first, self.second = (nn.Linear(width, width) for _ in range(3))

    def forward(self, ids: Tensor) -> Tensor:
        words = self.table(ids)
        mixed = torch.addmm(self.mix.bias, words.view(-1, words.shape[-1]), self.mix.weight).view(words.shape)
        return self.second(self.first(mixed))


def read(model: nn.Module, batch: int, *, is_free: bool = True) -> Graph:
    ids = torch.zeros((4 if is_free else batch, 6), dtype=torch.int64)
    shapes = ({0: BATCH},) if is_free else None
    return read_model(model, (ids,), None, batch=batch if is_free else None, shapes={}, dynamic_shapes=shapes)


def keys(graph: Graph) -> tuple[str, ...]:
    return layer_keys(group_nodes(graph))


def test_a_layer_has_one_key_at_every_batch():
    assert keys(read(Words(), 2)) == keys(read(Words(), 16)) == keys(read(Words(), 1))


def test_a_fixed_batch_gives_the_keys_of_a_free_one():
    assert keys(read(Words(), 4, is_free=False)) == keys(read(Words(), 4))
    assert keys(read(Words(), 1, is_free=False)) == keys(read(Words(), 1))


def test_equal_layers_share_a_key_and_others_do_not():
    table, mix, first, second = keys(read(Words(), 4))
    assert first == second
    assert len({table, mix, first}) == 3
    assert not set(keys(read(Words(width=9), 4))) & {table, mix, first}


class Positions(nn.Module):
    """A table looked up by position, so that a vector that no batch touches is in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        return self.last(self.table(ids) + self.table(torch.arange(ids.shape[1])))


def test_positions_do_not_grow_with_the_batch():
    assert keys(read(Positions(), 3)) == keys(read(Positions(), 2)) == keys(read(Positions(), 16))
