"""The time of a checkpoint and how often to write one."""

import math

import pytest

from heterps_compile.errors import InputError
from heterps_compile.transient.checkpoints import (
    CheckpointTime,
    MeasuredCheckpoint,
    best_interval,
    daly_interval,
    fit_checkpoint_time,
    young_interval,
)
from heterps_compile.transient.lifetime import Exponential, Weibull


def test_the_parts_of_a_checkpoint_are_found_again() -> None:
    true = CheckpointTime(3.0, 2e-8, 0.004)
    sizes = [(5e6, 50.0), (50e6, 326.0), (140e6, 216.0), (200e6, 216.0), (20e6, 140.0)]
    measured = [MeasuredCheckpoint(size, tensors, true.of(size, tensors)) for size, tensors in sizes]
    found = fit_checkpoint_time(measured)
    assert (found.start_s, found.s_per_byte, found.s_per_tensor) == pytest.approx((3.0, 2e-8, 0.004))
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_checkpoints_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="checkpoints"):
        fit_checkpoint_time([])
    with pytest.raises(InputError, match=r"took 0\b"):
        MeasuredCheckpoint(1.0, 1.0, 0.0)
    with pytest.raises(InputError, match="both"):
        young_interval(0.0, 1.0)


@pytest.mark.parametrize("checkpoint_s", [1.0, 10.0, 100.0])
def test_young_daly_and_the_numerical_interval_agree_at_shape_one(checkpoint_s: float) -> None:
    exact = best_interval(checkpoint_s, Exponential(10.0), 60.0)
    assert best_interval(checkpoint_s, Weibull(1.0, 10.0), 60.0) == pytest.approx(exact, rel=1e-6)
    assert daly_interval(checkpoint_s, 36_000.0) == pytest.approx(exact, rel=1e-5)
    assert young_interval(checkpoint_s, 36_000.0) == pytest.approx(exact, rel=0.03)
    # the equation of the exact interval: (1 - T / M) exp((T + C) / M) = 1
    rate = 1 / 36_000.0
    assert (1 - rate * exact) * math.exp(rate * (exact + checkpoint_s)) == pytest.approx(1.0, abs=1e-6)
