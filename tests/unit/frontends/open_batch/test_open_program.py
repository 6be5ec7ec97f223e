"""The batch that an exported program fixes is opened where no call mixes samples; else the call that does is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.frontends.open_batch.open_program import OpenedProgram, open_program

BATCH = 3

pytestmark = pytest.mark.filterwarnings("ignore:The tensor attributes")  # of recurrent layers, by torch.export


class Does(nn.Module):
    """A module that does what a function says, with some tensors of its own."""

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.does = does
        self.token, self.w = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(6, 6))
        self.b = nn.Parameter(torch.randn(4))
        self.lstm, self.gru = nn.LSTM(6, 5, batch_first=True), nn.GRU(6, 5)
        self.many = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm, self.table = nn.BatchNorm1d(4), nn.Embedding(9, 6)
        self.register_buffer("kept", torch.zeros(1, 4, 6))

    def forward(self, x: Tensor) -> Any:
        return self.does(self, x)


X = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(1))


def exported(does: Callable[..., Any], x: Tensor = X, *, is_training: bool = False) -> ExportedProgram:
    return torch.export.export(Does(does).train(is_training), (x,))


def opened(does: Callable[..., Any], x: Tensor = X, batch: int = BATCH) -> OpenedProgram:
    """Open a program; its outputs are those of the samples one by one."""
    program = exported(does, x)
    found = open_program(program, (), {}, batch)
    assert found is not None
    fixed = len(x)
    inputs = torch.randn(batch, *x.shape[1:]) if x.is_floating_point() else torch.randint(0, 9, (batch, *x.shape[1:]))
    whole, alone = found.program.module()(inputs), program.module()
    for first in range(0, batch, fixed):
        part = slice(first, first + fixed)
        ours = pytree.tree_map(lambda result, part=part: result[part], whole)
        torch.testing.assert_close(ours, alone(inputs[part]))
    return found


def refusal(program: ExportedProgram) -> str:
    with pytest.raises(InputError) as caught:
        open_program(program, (), {}, BATCH)
    return str(caught.value).split("cannot be opened: ")[1].split("; export it")[0]


def attended(m: Any, x: Tensor) -> Tensor:
    heads = (x.reshape(4, 6) @ m.w).view(1, 4, 2, 3).transpose(1, 2)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    found = nn.functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)
    return found.transpose(1, 2).reshape(1, 4, 6)


def padded(m: Any, x: Tensor) -> Tensor:
    rows, places = torch.arange(1)[:, None, None], torch.arange(4)[None, None, :]
    return (x[:, :, 0] > 0)[rows, places]


def in_a_region(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        mean = x.mean((1, 2)).view(1, 1, 1)
    return x - mean


OPENED = {
    "a size that says the batch": lambda m, x: x.view(1, 24),
    "sizes of which the last is open": lambda m, x: x.reshape(1, -1) * 2,
    "attention with a mask": attended,
    "an index that counts the samples": padded,
    "a token joined to each": lambda m, x: torch.cat([m.token.expand(1, -1, -1), x], 1),
    "rows of all samples in one matrix": lambda m, x: (x.view(4, 6) @ m.w).view(1, 4, 6).sum(-1),
    "a batch dropped and added again": lambda m, x: (x[0] @ m.w).unsqueeze(0) + x.squeeze(0).flatten().view(1, 4, 6),
    "an LSTM with a state of zeros": lambda m, x: m.lstm(x)[0],
    "time first inside": lambda m, x: m.gru(x.transpose(0, 1))[0].transpose(0, 1),
    "attention with the time first": lambda m, x: m.many(x, x, x)[0],
    "a norm with kept statistics": lambda m, x: m.norm(x),
    "statistics of each": lambda m, x: x.softmax(1).cumsum(-1).topk(2, -1)[0] + x.std(2, keepdim=True),
    "the largest of each": lambda m, x: x.amax((1, 2)) + x.max(1)[0].min(1)[0] + x.argmax(-1).sum(1),
    "a value changed in place": lambda m, x: (x @ m.w).relu_().add_(x),
    "a region without gradients": in_a_region,
    "products for each": lambda m, x: torch.baddbmm(m.w[:4, :4], x, x.mT) + torch.einsum("bij,bkj->bik", x, x) + m.b,
    "parts of each": lambda m, x: torch.stack([x[:, 1:3, ::2], x.split(2, 1)[1][:, :, :3]], 1).repeat(1, 2, 1, 1),
    "places in each": lambda m, x: x.gather(1, x.argsort(1)) + nn.functional.pad(x, (1, -1)) + x.roll(1, 1) + x.flip(2),
}  # fmt: skip


@pytest.mark.slow  # torch.export takes seconds
def test_a_program_is_what_it_is_for_the_samples_one_by_one() -> None:
    opened(lambda m, x: {what: does(m, x) for what, does in OPENED.items()})


def test_what_said_the_batch_is_counted() -> None:
    assert opened(lambda m, x: x.view(1, 24)).note == (
        "the batch, which the exported program fixes at 1, was opened: no node mixes samples (1 argument that said the "
        "batch rewritten)"
    )
    assert "rewritten" not in opened(lambda m, x: m.norm(x)).note


def test_ids_are_looked_up() -> None:
    opened(lambda m, x: m.table(x).view(1, -1), torch.randint(0, 9, (1, 4)))


def test_a_batch_of_several_samples_is_opened_to_more_and_to_less() -> None:
    opened(lambda m, x: x.view(2, 24).relu(), torch.randn(2, 4, 6), batch=6)
    found = open_program(exported(lambda m, x: x.view(4, 24), torch.randn(4, 4, 6)), (), {}, 1)
    assert found is not None
    assert found.program.module()(torch.randn(2, 4, 6)).shape == (2, 24)


def test_a_program_of_that_batch_or_of_any_is_left_alone() -> None:
    assert open_program(exported(lambda m, x: x.relu()), (), {}, 1) is None
    free = torch.export.export(
        Does(lambda m, x: x.relu()), (torch.randn(2, 4),), dynamic_shapes={"x": {0: torch.export.Dim("n")}}
    )
    assert open_program(free, (), {}, 8) is None


def test_a_vector_that_cannot_be_of_samples_is_the_same_for_all() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return x * scale

    program = torch.export.export(Scaled(), (torch.randn(1, 4), torch.ones(1)))
    found = open_program(program, (), {}, 8)
    assert found is not None
    assert found.note.endswith("; 'scale' is the same for all samples")


def test_other_dynamic_dimensions_stay_dynamic() -> None:
    free = {"x": {1: torch.export.Dim("steps")}}
    program = torch.export.export(Does(lambda m, x: x.view(1, -1, 2, 3).relu()), (X,), dynamic_shapes=free)
    found = open_program(program, (), {}, BATCH)
    assert found is not None
    assert found.program.module()(torch.randn(5, 7, 6)).shape == (5, 7, 2, 3)


MIXED: list[tuple[Callable[..., Any], str]] = [
    (lambda m, x: x - x.mean(), "node 'mean' (aten.mean): it brings all axes together, the batch too"),
    (lambda m, x: x.softmax(0), "node 'softmax' (aten.softmax): it normalises over the batch"),
    (lambda m, x: x.sum(0), "'sum_1' (aten.sum): it brings the samples of the batch together"),
    (lambda m, x: x.cumsum(0), "'cumsum' (aten.cumsum): it sums up along the batch"),
    (lambda m, x: x.topk(1, 0)[0], "'topk' (aten.topk): it orders the samples of the batch"),
    (lambda m, x: x.sort(0)[0], "'sort' (aten.sort): it orders the samples of the batch"),
    (lambda m, x: x + torch.rand(1), "'rand' (aten.rand): it draws random numbers, which are others for every batch"),
    (lambda m, x: nn.functional.dropout(x), "'dropout' (aten.dropout): it draws random numbers"),
    (lambda m, x: torch.cat([x, x]), "'cat' (aten.cat): it joins values along the batch"),
    (lambda m, x: x.expand(5, 4, 6), "'expand' (aten.expand): it repeats the samples of the batch"),
    (lambda m, x: x.repeat(2, 1, 1), "'repeat' (aten.repeat): it repeats the samples of the batch"),
    (lambda m, x: x + m.w.unsqueeze(1).expand(6, 4, 6), "of shape [6, 4, 6] has 6 rows where the batch lies"),
    (lambda m, x: x.transpose(0, 1).reshape(3, 8), "it tears samples apart: [4, 1, 6] becomes [3, 8]"),
    (lambda m, x: x.transpose(0, 1) + x, "so that it pairs each with each"),
    (lambda m, x: x.permute(1, 2, 0) @ m.token[0, :, :1], "'matmul' (aten.matmul): it sums over the batch"),
    (lambda m, x: m.kept.copy_(x) * 2, "(aten.copy_): it writes samples into 'kept', which is the same for all"),
    (lambda m, x: x[0], "it has no dimension that is the batch alone, but 4 rows for each sample along axis 0"),
    (lambda m, x: torch.special.entr(x), "nobody here knows that this op leaves samples apart"),
    (lambda m, x: x.flip(0), "'flip' (aten.flip): it changes the order of samples"),
    (lambda m, x: m.gru(x)[0], "'gru' (aten.gru): it goes through axis 0, where the batch lies, step by step"),
    (lambda m, x: m.w * 2, "its outputs: none of them depends on the input with the batch"),
]  # fmt: skip


@pytest.mark.parametrize(("does", "expected"), MIXED, ids=[expected for _, expected in MIXED])
def test_the_call_that_mixes_samples_is_named(does: Callable[..., Any], expected: str) -> None:
    assert expected in refusal(exported(does))


def test_a_batch_norm_in_training_mode_is_named() -> None:
    program = exported(lambda m, x: m.norm(x), is_training=True)
    assert "(aten.batch_norm): it is in training mode and takes the mean over all samples" in refusal(program)


def test_a_part_of_several_samples_is_named() -> None:
    assert "it takes a part of the batch" in refusal(exported(lambda m, x: x[:1] * 2, torch.randn(2, 4, 6)))
    assert "it picks samples out of the batch" in refusal(exported(lambda m, x: x[1], torch.randn(2, 4, 6)))
