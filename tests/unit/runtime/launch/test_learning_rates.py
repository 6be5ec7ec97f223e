"""When learning rates are set, and by which number where one decides."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR, ReduceLROnPlateau

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.faults import exception_cause
from heterps_compile.runtime.launch.learning_rates import RateSchedule, make_rates
from heterps_compile.runtime.launch.training_file import Training, make_scheduler
from heterps_compile.runtime.validation.best import parse_best


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)


def rates_of(scheduler, optimizer, *, validates=False, best=None) -> RateSchedule:
    training = Training(loss=lambda outputs, batch: outputs, optimizer=lambda parameters: None, scheduler=scheduler)
    made = make_rates(
        training,
        make_scheduler(training, optimizer),
        validates=validates,
        best=None if best is None else parse_best(best),
    )
    assert made is not None
    return made


def rate(optimizer: torch.optim.Optimizer) -> float:
    return optimizer.param_groups[0]["lr"]


def test_a_scheduler_is_stepped_after_steps_and_not_after_validations():
    optimizer = sgd()
    rates = rates_of(lambda made: ExponentialLR(made, 0.5), optimizer, validates=True)
    optimizer.step()
    rates.after_step(None)
    rates.after_validation({"loss": 1.0})
    assert rate(optimizer) == 0.5
    assert not rates.wants_loss


def test_a_plateau_is_given_the_loss_of_every_step_where_nobody_validates():
    optimizer = sgd()
    rates = rates_of(lambda made: ReduceLROnPlateau(made, patience=0), optimizer)
    assert rates.wants_loss
    for loss in (1.0, 2.0):
        rates.after_step(loss)
    assert rate(optimizer) == 0.1


@pytest.mark.parametrize(("best", "mode", "name"), [(None, "min", "loss"), ("auc:max", "max", "auc")])
def test_a_plateau_is_given_the_metric_of_every_validation_where_there_are_some(best, mode, name):
    optimizer = sgd()
    rates = rates_of(lambda made: ReduceLROnPlateau(made, mode=mode, patience=0), optimizer, validates=True, best=best)
    assert not rates.wants_loss
    for loss in (1.0, 2.0, 3.0, 4.0):
        rates.after_step(loss)
    assert rate(optimizer) == 1.0
    worse = 2.0 if mode == "min" else 0.5
    for value in (1.0, worse):
        rates.after_validation({"loss": 9.0, name: value})
    assert rate(optimizer) == 0.1


def test_a_plateau_that_waits_for_the_other_end_of_the_metric_is_refused():
    told = r"ReduceLROnPlateau\(mode='min'.*auc.*mode='max'"
    with pytest.raises(RunError, match=told):
        rates_of(ReduceLROnPlateau, sgd(), validates=True, best="auc:max")
    told = "mode='max'.*mode='min'.*--keep-best"
    with pytest.raises(RunError, match=told):
        rates_of(lambda made: ReduceLROnPlateau(made, mode="max"), sgd(), validates=True)


def test_a_scheduler_that_fails_says_where():
    optimizer = sgd()
    rates = rates_of(lambda made: OneCycleLR(made, 1.0, total_steps=2), optimizer)
    optimizer.step()
    for _ in range(2):
        rates.after_step(None)
    with pytest.raises(ValueError, match=r"step 3\b") as raised:
        rates.after_step(None)
    assert exception_cause(raised.value).endswith("in scheduler() of the training file")
