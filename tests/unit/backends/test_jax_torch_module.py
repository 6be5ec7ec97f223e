"""Stages of jax as modules of PyTorch: outputs, gradients, state and random numbers beside the model's own."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_models import cut_into

from heterps_compile.backends.find import find_backend
from heterps_compile.backends.jax.threads import cpu_threads
from heterps_compile.backends.jax.torch_module import JaxModule
from heterps_compile.errors import BackendError
from heterps_compile.frontends.torch_fx import import_torch

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:onnxscript"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]
CPU = torch.device("cpu")
Inputs = tuple[Tensor, ...]


def as_modules(model: nn.Module, inputs: Inputs, tmp_path: Path | None = None) -> tuple[JaxModule, nn.Module]:
    """Return a model as one jax stage and as one torch stage, written and read back where there is a folder."""
    graph = import_torch(model, inputs)
    partition = cut_into(graph, 1)
    made: list[Any] = []
    for name in ("jax", "torch"):
        backend = find_backend(name)
        stages = backend.build(graph, partition)
        if tmp_path is not None:
            (tmp_path / name).mkdir()
            files = backend.write(graph, stages, partition.stages, tmp_path / name)
            stages = backend.read(tmp_path / name, files, partition.stages)
        made += stages
    return JaxModule(made[0], CPU), made[1]


class Peculiar(nn.Module):
    """Everything that has a gradient of its own kind, or none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 6, padding_idx=0)
        self.first, self.fixed, self.aside = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.fixed.requires_grad_(requires_grad=False)
        self.norm = nn.BatchNorm1d(6, momentum=0.3)
        self.late = nn.Linear(6, 2)
        self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)
        self.never_read = nn.Parameter(torch.ones(3))
        self.same = nn.Linear(6, 6)
        self.same.weight = self.first.weight

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        hidden = self.norm(self.fixed(self.first(x)))
        with torch.no_grad():
            weights = self.aside(hidden).softmax(-1)
        mixed = hidden.detach() * hidden * weights + self.words(ids) * self.scale + self.same(x)
        return mixed, self.late(hidden), ids + 1, hidden.detach()


def peculiar() -> tuple[Peculiar, Inputs]:
    return Peculiar().double().train(), (torch.randn(4, 6).double(), torch.tensor([0, 1, 0, 3]))


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters(remove_duplicate=False)}


def assert_near(found: dict[str, Tensor | None], expected: dict[str, Tensor | None]) -> None:
    assert {n for n, g in found.items() if g is not None} == {n for n, g in expected.items() if g is not None}
    for name, gradient in expected.items():
        if gradient is not None:
            torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize("outputs", [(0,), pytest.param((1,), marks=pytest.mark.slow)])
def test_gradients_are_pytorchs_and_what_has_none_has_none(outputs: tuple[int, ...]) -> None:
    model, (x, ids) = peculiar()
    staged, _ = as_modules(model, (x, ids))
    expected = copy.deepcopy(model)
    for module in (staged, expected):
        entered = x.clone().requires_grad_()
        made = module(entered, ids)
        assert made[2].tolist() == [1, 2, 1, 4]
        sum(made[i].square().sum() for i in outputs).backward()
        module.entered = entered
    torch.testing.assert_close(staged.entered.grad, expected.entered.grad, rtol=1e-12, atol=1e-12)
    assert_near(gradients(staged), gradients(expected))
    buffers = dict(expected.named_buffers())
    for name, buffer in staged.named_buffers():
        if name in buffers:
            torch.testing.assert_close(buffer, buffers[name], rtol=1e-12, atol=1e-12)


def test_a_state_is_that_of_the_torch_stage(tmp_path: Path) -> None:
    staged, torch_stage = as_modules(*peculiar(), tmp_path)
    ours, theirs = staged.state_dict(keep_vars=True), torch_stage.state_dict(keep_vars=True)
    assert ours.keys() - {"scale"} == theirs.keys()  # a pure function has no word for buffers that are not saved
    assert {n for n, t in ours.items() if t.requires_grad} == {n for n, t in theirs.items() if t.requires_grad}
    assert ours["same.weight"] is ours["first.weight"]
    for name, tensor in theirs.items():
        assert torch.equal(ours[name], tensor), name
    assert staged.momentum == {"norm.running_mean": 0.3, "norm.running_var": 0.3}


def test_an_optimiser_steps_what_jax_reads() -> None:
    model, inputs = peculiar()
    staged, _ = as_modules(model, inputs)
    optimizers = [torch.optim.Adam(module.parameters(), lr=0.1, weight_decay=0.1) for module in (staged, model)]
    for _ in range(3):
        for module, optimizer in zip((staged, model), optimizers, strict=True):
            optimizer.zero_grad()
            module(*inputs)[0].square().mean().backward()
            optimizer.step()
    expected = model.state_dict()
    for name, tensor in staged.state_dict().items():
        if name in expected:
            torch.testing.assert_close(tensor, expected[name], rtol=1e-9, atol=1e-9, msg=name)


def test_backwards_after_later_forwards_have_their_own_residuals() -> None:
    """1F1B holds several micro-batches; their gradients add up."""
    model, _ = peculiar()
    parts = [(torch.randn(4, 6).double(), torch.tensor([i, 1, 0, 3])) for i in range(3)]
    staged, _ = as_modules(model, parts[0])
    made = [staged(*part)[0].square().sum() for part in parts]
    for loss in made:
        loss.backward()
    for part in parts:
        model(*part)[0].square().sum().backward()
    assert_near(gradients(staged), gradients(model))


def test_a_weight_that_changes_between_forward_and_backward_is_told() -> None:
    model, inputs = peculiar()
    staged, _ = as_modules(model, inputs)
    loss = staged(*inputs)[0].sum()
    with torch.no_grad():
        staged.first.weight.add_(1)
    with pytest.raises(RuntimeError, match=r"modified.*inplace operation"):
        loss.backward()


def test_what_comes_out_may_be_written_to() -> None:
    class Passing(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.tanh(x)
            return y, x * 1.0

    x = torch.randn(2, 3)
    staged, _ = as_modules(Passing(), (x,))
    entered = x.clone().requires_grad_()
    y, passed = staged(entered)
    loss = y.mul_(2).sum() + passed.mul_(3).sum()
    loss.backward()
    assert torch.equal(entered.detach(), x)
    torch.testing.assert_close(entered.grad, 2 * (1 - torch.tanh(x) ** 2) + 3)


def test_masks_follow_pytorchs_generator() -> None:
    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.dropout(x, 0.5, training=True)

    staged, _ = as_modules(Dropping().train(), (torch.ones(4, 50),))
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        x = torch.ones(4, 50).requires_grad_()
        (y,) = staged(x)
        y.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, y.detach())  # the backward's mask is the forward's
        drawn.append(y.detach())
    assert set(drawn[0].flatten().tolist()) == {0.0, 2.0}
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.slow  # torch.export takes seconds
def test_a_repeated_stage_has_the_masks_and_statistics_of_its_forward_and_leaves_no_residuals() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 2))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.layers(x)
            return result

    torch.manual_seed(0)
    model, x = Dropping(), torch.randn(6, 5)

    def run(*, repeats: bool) -> tuple[list[Tensor | None], int]:
        ours, _ = as_modules(model, (x,))
        torch.manual_seed(3)
        made = [(find_backend("jax").recomputing(ours) if repeats else ours)(x)[0] for _ in range(2)]
        assert made[0].grad_fn is not None
        residuals = sum(array.size for array in made[0].grad_fn.residuals.made)
        for y in made:
            y.square().sum().backward()
        return [*(y.detach() for y in made), *ours.state_dict().values(), *gradients(ours).values()], residuals

    (kept, many), (again, few) = run(repeats=False), run(repeats=True)
    for one, other in zip(kept, again, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert not torch.equal(kept[0], kept[1])
    assert few <= 2 < many


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_dtypes_stay_what_they_are(dtype: torch.dtype) -> None:
    model, x = nn.Linear(3, 2).to(dtype), torch.randn(4, 3).to(dtype)
    staged, _ = as_modules(model, (x,))
    entered = x.clone().requires_grad_()
    (y,) = staged(entered)
    y.sum().backward()
    model(x).sum().backward()
    assert {t.dtype for t in (y, entered.grad, staged.weight, staged.weight.grad)} == {dtype}
    torch.testing.assert_close(staged.weight.grad, model.weight.grad)


def test_without_gradients_nothing_is_kept_for_them() -> None:
    model, inputs = peculiar()
    staged, _ = as_modules(model, inputs)
    with torch.no_grad():
        y = staged(*inputs)[0]
    assert not y.requires_grad
    torch.testing.assert_close(y, model(*inputs)[0], rtol=1e-12, atol=1e-12)


def test_inputs_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model, (x, ids) = peculiar()
    staged, _ = as_modules(model, (x, ids), tmp_path)
    with pytest.raises(BackendError, match=r"'x' \[4, 5\].*'ids' \[4\]"):
        staged(torch.randn(4, 5).double(), ids)


def test_threads_are_set_where_jax_begins_unless_the_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    with cpu_threads(3):
        assert os.environ["PJRT_NPROC"] == "3"
    assert "PJRT_NPROC" not in os.environ
    monkeypatch.setenv("PJRT_NPROC", "2")
    with cpu_threads(3):
        assert os.environ["PJRT_NPROC"] == "2"
    assert os.environ["PJRT_NPROC"] == "2"


def test_an_embedding_that_counts_its_rows_is_refused() -> None:
    model = nn.Embedding(5, 2, scale_grad_by_freq=True)
    with pytest.raises(BackendError, match=r"'embedding'.*aten.embedding.default"):
        as_modules(model, (torch.tensor([1, 2]),))
