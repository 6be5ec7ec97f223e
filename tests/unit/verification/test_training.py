"""In training mode gradients are compared with those of the model as it is written: each change is equal or refused."""

from typing import Any

import pytest
import torch
from gradient_models import EQUAL, FOUND, REFUSED, WIDTH, Middle, Tied
from torch import Tensor, nn

import heterps_compile
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.errors import BackendError, InputError, VerificationError

X = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))


def compiled(module: Any, *args: Any, **options: Any) -> heterps_compile.CompiledModel:
    options = {"method": "greedy", "mode": "training", "min_stages": 2} | options
    return heterps_compile.compile(module, args or (X,), **options)


def gradients(module: nn.Module, run: Any) -> dict[str, Tensor | None]:
    """Return the gradients of parameters and of the input, which needs one."""
    module.zero_grad(set_to_none=True)
    x = X.clone().requires_grad_()
    torch.manual_seed(7)
    (run(x) ** 2).sum().backward()
    return {"x": x.grad} | {name: p.grad for name, p in module.named_parameters()}


QUICK = {"reversal with plain ops", "no_grad", "detach", "frozen parameters", "tied weights"}  # others are alike


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize(
    "name",
    [
        *(name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in EQUAL),
        *(*REFUSED, *FOUND),
    ],
)
def test_what_changes_gradients_is_equal_or_refused(name: str) -> None:
    module = (EQUAL | FOUND | {n: make for n, (make, _) in REFUSED.items()})[name]().train()
    if name not in EQUAL:
        with pytest.raises((InputError, VerificationError), match="gradient"):
            compiled(module)
        return
    staged = compiled(module)
    assert staged.plan.verification.gradients > 1
    whole = gradients(module, module)
    for parameter, ours in gradients(module, staged.run).items():
        torch.testing.assert_close(ours, whole[parameter], rtol=1e-6, atol=1e-7, msg=parameter)


def breaking(monkeypatch: pytest.MonkeyPatch, backward: Any) -> None:
    """Let the second of two stages have the right outputs and another backward."""
    build = TorchBackend.build

    def broken(self: TorchBackend, graph: Any, partition: Any) -> Any:
        stages = build(self, graph, partition)
        for stage in stages[1:]:  # the whole model is built as one stage too, to see whether it can be written
            stage.register_forward_hook(lambda _stage, _values, results: tuple(map(backward, results)))
        return stages

    monkeypatch.setattr(TorchBackend, "build", broken)


def test_a_stage_with_the_right_outputs_and_wrong_gradients_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda y: y.detach() + 1.001 * (y - y.detach()))
    with pytest.raises(VerificationError, match=r"'first.weight'.*0.001"):
        compiled(Middle(torch.sin))
    assert compiled(Middle(torch.sin), mode="inference").plan.verification.gradients == 0


def test_wrong_gradients_are_not_put_down_to_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda y: y.detach() + 1.01 * (y - y.detach()))
    with pytest.raises(VerificationError, match="hook") as found:
        compiled(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)).train())
    assert "in place" not in str(found.value)


def test_a_parameter_that_one_side_does_not_train_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, Tensor.detach)
    with pytest.raises(VerificationError, match=r"'first.weight'.*\b1\b"):
        compiled(Middle(torch.sin))


def test_the_gradient_of_an_input_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda y: y.detach() + 2 * (y - y.detach()))
    module = Middle(torch.sin).requires_grad_(False)
    with pytest.raises(VerificationError, match="'x'"):
        compiled(module)


def test_verification_leaves_gradients_and_hooks_of_the_optimiser_alone() -> None:
    module = Tied()
    module.mix.weight.grad = torch.ones(WIDTH, WIDTH)
    compiled(module)
    assert torch.equal(module.mix.weight.grad, torch.ones(WIDTH, WIDTH))
    assert module.words.weight.grad is None


def test_a_model_that_cannot_be_differentiated_says_so() -> None:
    def overwritten(x: Tensor) -> Tensor:
        y = x.exp()
        z = y * 2
        y.add_(1)
        return z + y

    with pytest.raises(BackendError, match=r"'Middle'.*inplace operation.*mode='inference'"):
        compiled(Middle(overwritten))


def test_an_exported_program_is_compared_with_itself_and_the_plan_says_so() -> None:
    program = torch.export.export(Middle(torch.sin), (X,), strict=False)
    plan = compiled(program).plan
    assert plan.verification.gradients == 5
    assert any("hand in the module itself" in note for note in plan.notes)


def test_outputs_that_hang_on_a_near_tie_are_compared_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that rounds otherwise takes the other of two equal logits; in float64 they are not equal."""

    class Tie(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(WIDTH, 2, bias=False)
            self.same = nn.Linear(2, 2, bias=False)
            self.same.weight.data = torch.eye(2)
            self.table = nn.Embedding(2, WIDTH)
            row = torch.tensor([1.0, 1e-3, 0, 0])
            self.first.weight.data = torch.stack([row, torch.nextafter(row, row + 1)])
            self.first.weight.data[1, 0] = 1.0
            self.last = nn.Linear(WIDTH, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.table(self.same(self.first(x)).argmax(-1)))

    build = TorchBackend.build

    def rounded(self: TorchBackend, graph: Any, partition: Any) -> Any:
        stages = build(self, graph, partition)
        stages[0].register_forward_hook(lambda _stage, _values, results: tuple(map(nudged, results)))
        return stages

    def nudged(y: Tensor) -> Tensor:
        return torch.stack([y[..., 0], torch.nextafter(y[..., 1], y[..., 1].abs() + 1e9)], -1)

    monkeypatch.setattr(TorchBackend, "build", rounded)
    plan = compiled(Tie(), mode="inference", min_stages=4).plan
    assert plan.verification.max_rel < 1e-12
    assert any("verified in float64" in n and "in the model's own precision output" in n for n in plan.notes)


def test_what_differs_in_float64_too_is_no_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda y: y * 1.01)
    with pytest.raises(VerificationError, match="float64"):
        compiled(Middle(torch.sin))


def test_what_a_forward_may_not_change_is_named() -> None:
    calls = [0]

    class Changing(Middle):
        def __init__(self, change: Any) -> None:
            super().__init__(torch.sin)
            self.change = change

        def forward(self, x: Tensor) -> Tensor:
            factor = self.change(self.first.weight)
            return super().forward(x) * factor

    def clip(weight: Tensor) -> int:
        with torch.no_grad():
            weight.clamp_(-0.1, 0.1)
        return 1

    def replaced(weight: Tensor) -> int:
        weight.data = weight.data * 0.9
        return 1

    def counted(_weight: Tensor) -> int:
        calls[0] += 1
        return calls[0]

    for change, said in (
        (clip, "'first.weight'"),
        (replaced, "tensor"),
        (counted, "numbers"),
    ):
        with pytest.raises((InputError, VerificationError), match=said) as found:
            compiled(Changing(change))
        assert "report" not in str(found.value)


@pytest.mark.parametrize(
    "broken",
    [lambda y: y * 1.001, lambda y: y.detach() + 1.001 * (y - y.detach())],
    ids=["outputs", "gradients"],
)
def test_a_stage_that_is_wrong_in_float32_alone_is_no_rounding(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    breaking(monkeypatch, lambda y: broken(y) if y.dtype == torch.float32 else y)
    with pytest.raises(VerificationError, match="float64"):
        compiled(Middle(torch.sin))


def test_what_cannot_be_repeated_in_float64_is_not_called_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    breaking(monkeypatch, lambda y: y * 1.01)
    program = torch.export.export(Middle(torch.sin), (X,), strict=False)
    with pytest.raises(VerificationError, match="float64") as found:
        compiled(program)
    assert "bug" not in str(found.value)
