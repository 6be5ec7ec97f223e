"""The time of a checkpoint and how often to write one."""

import math

import numpy as np
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
from heterps_compile.transient.lifetime import HOUR_S, Exponential, Weibull


def test_the_parts_of_a_checkpoint_are_found_again() -> None:
    true = CheckpointTime(3.0, 2e-8, 0.004)
    sizes = [(5e6, 50.0), (50e6, 326.0), (140e6, 216.0), (200e6, 216.0), (20e6, 140.0)]
    measured = [MeasuredCheckpoint(size, tensors, true.of(size, tensors)) for size, tensors in sizes]
    found = fit_checkpoint_time(measured)
    assert (found.start_s, found.s_per_byte, found.s_per_tensor) == pytest.approx((3.0, 2e-8, 0.004))
    assert found.error == pytest.approx(0.0, abs=1e-6)


def test_no_part_of_a_checkpoint_is_negative() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        form = fit_checkpoint_time([MeasuredCheckpoint(*rng.uniform(1, 10, 3).tolist()) for _ in range(4)])
        assert min(form.start_s, form.s_per_byte, form.s_per_tensor) >= 0
    assert fit_checkpoint_time([MeasuredCheckpoint(1e6, 10.0, 2.5)]).of(1e6, 10.0) == pytest.approx(2.5)


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


def test_the_interval_of_a_weibull_keeps_more_than_any_other() -> None:
    law, checkpoint_s = Weibull(0.59, 20.0), 30.0
    best_s = best_interval(checkpoint_s, law)

    def kept_h(interval_s: float) -> float:
        hours = law.sample(np.random.default_rng(4), 60_000)
        return float((np.floor(hours * HOUR_S / (interval_s + checkpoint_s)) * interval_s).mean())

    assert kept_h(best_s) > max(kept_h(best_s / 3), kept_h(best_s * 3))
    assert best_s > daly_interval(checkpoint_s, law.mean_hours * HOUR_S)
