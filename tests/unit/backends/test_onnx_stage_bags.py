"""Bags of embeddings become plain ops, without a loop, that give what PyTorch gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_models import cut_into

from heterps_compile.backends.onnx_stage.stage_models import stage_models
from heterps_compile.errors import BackendError
from heterps_compile.frontends.onnx_session import open_session
from heterps_compile.frontends.torch_fx import import_torch

pytest.importorskip("onnxscript", reason="torch.onnx.export needs it")

ITEMS = torch.tensor([[2, 2, 2, 2, 2], [1, 9, 2, 0, 3], [4, 4, 7, 19, 5]])  # a bag of padding alone, one with some
OFFSETS = torch.tensor([0, 2, 2, 9])  # the second bag is empty
WEIGHTS = torch.linspace(-1, 1, 15).reshape(3, 5)


class Bags(nn.Module):
    """A module around ``nn.EmbeddingBag``, which keeps its arguments apart."""

    def __init__(self, mode: str, padding: int | None = None, *, includes_last: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = nn.EmbeddingBag(20, 4, mode=mode, padding_idx=padding, include_last_offset=includes_last)
        self.bag.weight.data[2] = float("inf")  # the row of padding must not be read

    def forward(self, items: Tensor, offsets: Tensor | None = None, weights: Tensor | None = None) -> Any:
        return self.bag(items, offsets, weights)


class Weighed(Bags):
    """Items of one length, each with a weight."""

    def forward(self, items: Tensor, weights: Tensor) -> Any:  # type: ignore[override]  # another call on purpose
        return self.bag(items, None, weights)


def ops_and_difference(
    model: nn.Module, args: tuple[Tensor, ...], then: tuple[Tensor, ...] = ()
) -> tuple[set[str], float]:
    """Export a model with the batch open, run it on the inputs (or on others), and compare it with PyTorch."""
    batch = torch.export.Dim("batch")
    dynamic: Sequence[Any] | None = [{0: batch}] * len(args) if then else None
    graph = import_torch(model, args, dynamic_shapes=None if dynamic is None else tuple(dynamic))
    partition = cut_into(graph, 1)
    (made,) = stage_models(graph, partition)
    given = then or args
    (cut,) = partition.stages
    (found,) = open_session(made).run(cut.outputs, dict(zip(cut.inputs, (v.numpy() for v in given), strict=True)))
    wanted = model(*given).detach().numpy()
    assert found.shape == wanted.shape
    return {node.op_type for node in made.graph}, float(np.abs(found - wanted).max())


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_one_length(mode: str, padding: int | None) -> None:
    items = ITEMS if padding is not None else ITEMS.clamp(min=3)
    more = torch.cat([items, items[:2]])
    ops, difference = ops_and_difference(Bags(mode, padding), (items,), then=(more,))
    assert difference < 1e-6
    assert "Gather" in ops
    assert not ops & {"Loop", "Range", "ScatterElements", "NonZero"}


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_between_offsets(mode: str, padding: int | None) -> None:
    items = (ITEMS if padding is not None else ITEMS.clamp(min=3)).flatten()
    ops, difference = ops_and_difference(Bags(mode, padding), (items, OFFSETS))
    assert difference < 1e-6
    assert "Loop" not in ops


def test_offsets_with_the_last_one() -> None:
    offsets = torch.tensor([0, 2, 2, 9, 15])
    _, difference = ops_and_difference(Bags("mean", 2, includes_last=True), (ITEMS.flatten(), offsets))
    assert difference < 1e-6


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("padding", [None, 2])
def test_items_with_weights(padding: int | None) -> None:
    items = ITEMS if padding is not None else ITEMS.clamp(min=3)
    assert ops_and_difference(Weighed("sum", padding), (items, WEIGHTS))[1] < 1e-6
    flat = (items.flatten(), OFFSETS, WEIGHTS.flatten())
    assert ops_and_difference(Bags("sum", padding), flat)[1] < 1e-6


def test_what_bags_give_besides_is_refused_by_name() -> None:
    class Sizes(nn.Module):
        def forward(self, weight: Tensor, items: Tensor, offsets: Tensor) -> Any:
            return torch.embedding_bag(weight, items, offsets)[2]

    graph = import_torch(Sizes(), (torch.randn(20, 4), ITEMS.flatten(), OFFSETS))
    with pytest.raises(BackendError, match=r"stage 0\b.*ONNX.*'embedding_bag'.*\(result 2\b"):
        stage_models(graph, cut_into(graph, 1))
