"""The state of a learning-rate schedule: goes through JSON, and on in a process with other parameter groups."""

import json
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from heterps_compile.errors import RunError
from heterps_compile.runtime.checkpoint.optimizer_state import (
    ScheduleState,
    put_schedule,
    put_state,
    take_schedule,
    take_state,
)


class Halving:
    """A callable object, whose numbers are state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return 0.5**self.calls


class Own:
    """A user's own scheduler."""

    def __init__(self, optimizer: torch.optim.Optimizer, history: Any = ()) -> None:
        self.optimizer, self.seen = optimizer, dict(history)

    def step(self) -> None:
        self.seen[len(self.seen)] = (1.0, "x")
        for group in self.optimizer.param_groups:
            group["lr"] = 1.0 / (1 + len(self.seen))

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def chained(optimizer: torch.optim.Optimizer) -> Any:
    parts = [lr_scheduler.ExponentialLR(optimizer, 0.9), lr_scheduler.MultiStepLR(optimizer, [2, 5])]
    return lr_scheduler.ChainedScheduler(parts, optimizer)


def warm_up_and_cosine(optimizer: torch.optim.Optimizer) -> Any:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, 9)], [5])


SCHEDULERS = {
    "step": partial(lr_scheduler.StepLR, step_size=2),
    "milestones": partial(lr_scheduler.MultiStepLR, milestones=[2, 4, 4, 6]),
    "constant": lr_scheduler.ConstantLR,
    "function": partial(lr_scheduler.LambdaLR, lr_lambda=lambda epoch: 0.9**epoch),
    "callable": lambda optimizer: lr_scheduler.LambdaLR(optimizer, Halving()),
    "factor": partial(lr_scheduler.MultiplicativeLR, lr_lambda=lambda epoch: 0.9),
    "polynomial": partial(lr_scheduler.PolynomialLR, total_iters=6),
    "restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.5, total_steps=20),
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.5, step_size_up=3),
    "chained": chained,
    "warm-up and cosine": warm_up_and_cosine,
    "own": Own,
}
Made = tuple[nn.Linear, torch.optim.Optimizer, Any]


def made(name: str, *, lr: float = 0.2, groups: int = 1) -> Made:
    torch.manual_seed(0)
    layer = nn.Linear(2, 2)
    parameters = [{"params": [p]} for p in layer.parameters()] if groups == 2 else [{"params": [*layer.parameters()]}]
    optimizer = torch.optim.SGD(parameters, lr=lr, momentum=0.9)
    return layer, optimizer, SCHEDULERS[name](optimizer)


def stepped(of: Made, steps: int) -> list[tuple[float, float]]:
    """Step; give the rates, and the momenta that some schedulers set too."""
    layer, optimizer, scheduler = of
    rates = []
    for _ in range(steps):
        optimizer.zero_grad()
        layer(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
        rates += [(group["lr"], group["momentum"]) for group in optimizer.param_groups]
    return rates


def moved(before: Made, after: Made) -> Made:
    """Take the state of an optimiser and its scheduler through JSON into others."""
    optimizer_state = take_state(before[1], dict(before[0].named_parameters()))
    state = take_schedule(before[2])
    put_state(after[1], dict(after[0].named_parameters()), optimizer_state)
    put_schedule(after[2], after[1], ScheduleState(state.kind, json.loads(json.dumps(state.content))))
    return after


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_schedule_goes_on_as_if_it_had_not_stopped(name):
    undisturbed = stepped(made(name), 10)
    first = made(name)
    begun = stepped(first, 4)
    assert begun + stepped(moved(first, made(name, lr=0.7)), 6) == undisturbed


@pytest.mark.parametrize("name", sorted(SCHEDULERS.keys() - {"callable", "cyclic"}))
def test_a_schedule_goes_on_where_there_are_other_groups(name):
    undisturbed = stepped(made(name), 10)
    first = made(name)
    stepped(first, 4)
    assert stepped(moved(first, made(name, groups=2)), 6)[::2] == undisturbed[4:]


def test_a_plateau_goes_on_from_the_best_loss():
    _, optimizer, _ = made("constant")
    first = lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    for loss in (1.0, 0.5, 0.7):
        first.step(loss)
    _, other, _ = made("constant")
    second = lr_scheduler.ReduceLROnPlateau(other, patience=1)
    assert second.best == float("inf")
    content = json.loads(json.dumps(take_schedule(first).content))
    put_schedule(second, other, ScheduleState("ReduceLROnPlateau", content))
    assert (second.best, second.num_bad_epochs) == (0.5, 1)


@pytest.mark.parametrize("history", [{0: {1, 2}}, {0: torch.ones(2)}, {0: len}, {(1, 2): 3}])
def test_what_no_checkpoint_can_hold_is_told(history):
    _, optimizer, _ = made("constant")
    with pytest.raises(RunError, match="Own"):
        take_schedule(Own(optimizer, history))


def test_another_scheduler_and_a_damaged_state_are_told():
    _, optimizer, scheduler = made("step")
    with pytest.raises(RunError, match=r"CosineAnnealingLR.*StepLR"):
        put_schedule(scheduler, optimizer, ScheduleState("CosineAnnealingLR", {"items": []}))
    for content in ({}, {"items": [[1, 2, 3]]}, {"items": [[[], 2]]}, {"items": 3}):
        with pytest.raises(RunError, match="scheduler StepLR"):
            put_schedule(scheduler, optimizer, ScheduleState("StepLR", content))
