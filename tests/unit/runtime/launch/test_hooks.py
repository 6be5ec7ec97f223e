"""What a run tells the hooks of a training file, and what they may say."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.hooks import Hooks
from heterps_compile.runtime.launch.loop import FollowUps
from heterps_compile.runtime.launch.run_view import RunView
from heterps_compile.runtime.launch.training_file import Training
from heterps_compile.runtime.pipeline.recorder import StepResult
from heterps_compile.runtime.validation.result import Validation
from heterps_compile.strict_json import received


def hooks(**functions: Any) -> Hooks:
    return Hooks(Training(loss=lambda outputs, batch: torch.ones(()), optimizer=torch.optim.SGD, **functions))  # type: ignore[arg-type]


def test_hooks_are_told_what_happened_and_can_change_nothing():
    seen: list[Any] = []
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.25)
    then = FollowUps(optimizer=optimizer, epoch_samples=100, batch=30)
    view = then.view(5, Validation(5, 10, {"loss": 0.5}, 0.1, is_best=True))
    told = hooks(on_validation=seen.append, on_checkpoint=lambda folder, report: seen.append((folder, report)))
    told.call("on_validation", view)
    told.call("on_checkpoint", Path("ck/step-000005"), view)
    assert seen == [view, (Path("ck/step-000005"), view)]
    assert (view.step, view.samples, view.epoch, view.learning_rates) == (5, 150, 1.5, (0.25,))
    assert (dict(view.metrics), view.is_best, view.best) == ({"loss": 0.5}, True, None)
    with pytest.raises(FrozenInstanceError):
        view.step = 6  # type: ignore[misc]
    with pytest.raises(TypeError, match="assignment"):
        view.metrics["loss"] = 0.0  # type: ignore[index]
    stepped = then.view(
        5, None, StepResult(loss=0.25, gradient_norm=2.0, is_skipped=True, losses={"click": 0.25}, step_s=0.5)
    )
    hooks(on_step=seen.append).call("on_step", stepped)
    assert seen[-1] is stepped
    assert dict(stepped.losses) == {"click": 0.25}
    assert (stepped.loss, stepped.gradient_norm, stepped.is_skipped, stepped.step_s) == (0.25, 2.0, True, 0.5)
    assert (then.view(5, None).metrics, FollowUps(batch=30).view(5, None).epoch) == ({}, None)


def test_a_file_without_hooks_is_told_nothing():
    hooks().call("on_step", RunView(1, 2))
    hooks().call("on_validation", RunView(1, 2))
    hooks().call("on_checkpoint", Path("ck"), RunView(1, 2))


def test_what_a_hook_raises_ends_the_run_and_what_it_returns_is_refused():
    with pytest.raises(ZeroDivisionError) as raised:
        hooks(on_validation=lambda report: 1 / 0).call("on_validation", RunView(1, 2))
    assert raised.value.__notes__[0].startswith("in on_validation() of the training file, line ")
    with pytest.raises(RunError, match="on_checkpoint"):
        hooks(on_checkpoint=lambda folder, report: False).call("on_checkpoint", Path("ck"), RunView(1, 2))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"metrics": {"loss": "x"}}', '{"step": 1, "metrics": {"loss": 1}}'])
def test_what_a_rank_says_of_a_validation_is_not_taken_for_granted(text):
    with pytest.raises(RunError):
        received(Validation, text, "a validation")
    made = Validation(5, 10, {"loss": 0.1 + 0.2, "auc": 1e-300}, 0.1, is_best=True)
    assert received(Validation, made.to_json(), "a validation") == made
