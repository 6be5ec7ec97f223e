"""Time and money of runs on transient machines: closed form and simulation agree, and know cases by hand."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from replayed_run import Run, replay_run

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.transient.expected import expect_run
from heterps_compile.transient.lifetime import HOUR_S, Weibull, exponential
from heterps_compile.transient.transient_work import Machines, Recovery, TransientWork


def work(hours: float, count: int, lifetime: Weibull | None, recovery: Recovery, *more: Machines) -> TransientWork:
    return TransientWork(hours * HOUR_S, (Machines(count, 1.0, lifetime), *more), recovery)


STOP = Recovery(120.0, 10.0)
STAY = Machines(4, 3.0)

WORKS = {
    "one exponential": work(20, 1, exponential(5.0), STOP),
    "one that is lost within every other stretch": work(20, 1, exponential(1.0), Recovery(120.0, 60.0, 3600.0)),
    "eight exponentials": work(20, 8, exponential(20.0), STOP),
    "one Weibull": work(20, 1, Weibull(0.59, 127.0), STOP),
    "eight Weibulls": work(20, 8, Weibull(0.59, 127.0), STOP),
    "Weibulls that are lost five times each": work(20, 4, Weibull(0.5, 3.0), STOP),
    "some stay": work(20, 4, Weibull(0.7, 10.0), STOP, STAY),
}


def drawn_runs(of: TransientWork, count: int, seed: int) -> list[Run]:
    """Draw runs loss by loss, with the interval of the closed form."""
    rng = np.random.default_rng(seed)

    def lives(law: Weibull | None) -> Iterator[float]:
        while law is not None:
            yield from law.sample(rng, 8).tolist()

    fixed = replace(of, recovery=replace(of.recovery, interval_s=expect_run(of).interval_s))
    laws = [kind.lifetime for kind in of.machines for _ in range(kind.count)]
    return [replay_run(fixed, [lives(law) for law in laws]) for _ in range(count)]


@pytest.mark.parametrize("name", WORKS)
def test_closed_form_and_simulation_agree_within_the_error_of_the_simulation(name: str) -> None:
    expected = expect_run(WORKS[name])
    runs = drawn_runs(WORKS[name], 600, seed=2)
    times = np.array([run.time_s for run in runs])
    error_s = float(times.std(ddof=1)) / math.sqrt(len(times))
    assert expected.time_s.mean == pytest.approx(times.mean(), abs=3 * error_s)
    assert expected.losses == pytest.approx(sum(run.losses for run in runs) / len(runs), rel=0.12)
    # half of the runs end within the median, and nine of ten within the 90 % quantile: three errors of 600 runs
    assert np.mean(times <= expected.time_s.most + 1) == pytest.approx(0.9, abs=0.04)
    at_median = np.mean(times <= expected.time_s.median + 1)
    assert at_median >= 0.5 - 0.065
    if expected.chance_within(expected.time_s.median) < 0.52:
        assert at_median == pytest.approx(0.5, abs=0.065)
    assert expected.money.most == pytest.approx(WORKS[name].price_per_hour * expected.time_s.most / HOUR_S)


def test_the_mean_for_an_exponential_is_dalys() -> None:
    interval_s, checkpoint_s, start_s, mean_s = 1990.0, 10.0, 60.0, 7200.0
    expected = expect_run(work(1990 * 40 / HOUR_S, 1, exponential(2.0), Recovery(start_s, checkpoint_s, interval_s)))
    stretch_s = (mean_s + start_s) * math.expm1(2000.0 / mean_s)
    last_s = (mean_s + start_s) * math.expm1(1990.0 / mean_s)
    assert expected.time_s.mean == pytest.approx(start_s + 39 * stretch_s + last_s, rel=1e-3)


def test_machines_that_stay_take_the_work_and_the_start_up() -> None:
    expected = expect_run(work(2, 3, None, Recovery(60.0, 10.0)))
    assert (expected.time_s.mean, expected.time_s.median, expected.time_s.most) == pytest.approx((7260.0,) * 3)
    assert (expected.money.mean, expected.losses, expected.interval_s) == (pytest.approx(3 * 7260 / HOUR_S), 0.0, None)
    assert expected.chance_within(7260.1) == pytest.approx(1.0)
    assert expected.chance_within(7259.0) == 0.0


def test_a_loss_undoes_what_was_done_since_the_last_checkpoint() -> None:
    one = work(1, 1, exponential(9.0), Recovery(60.0, 10.0, 600.0))
    # 60 s of start-up, then 600 + 10 + 600 + 10 s of which both checkpoints hold, and 80 s that are lost
    run = replay_run(one, [iter([1300 / HOUR_S])])
    assert (run.losses, run.redone_s) == (1, pytest.approx(80.0))
    assert run.time_s == pytest.approx(60 + 1300 + 60 + (3600 - 1200) + 3 * 10)


def test_a_machine_that_is_lost_while_another_starts_is_waited_for() -> None:
    two = work(1, 2, exponential(9.0), Recovery(100.0))
    run = replay_run(two, [iter([1000 / HOUR_S]), iter([1060 / HOUR_S])])
    assert (run.losses, run.time_s) == (2, pytest.approx(100 + 1000 + 160 + 3600))


def test_the_interval_found_is_the_best_one() -> None:
    for law in (exponential(5.0), Weibull(0.5, 10.0)):
        best = expect_run(work(20, 2, law, STOP))
        assert best.interval_s is not None
        others = [expect_run(work(20, 2, law, Recovery(120.0, 10.0, best.interval_s * by))) for by in (0.8, 1.25)]
        assert all(best.time_s.mean < other.time_s.mean for other in others)


@pytest.mark.parametrize("checkpoint_s", [1.0, 10.0, 100.0])
def test_the_interval_of_an_exponential_is_dalys(checkpoint_s: float) -> None:
    interval_s, mean_s = expect_run(work(50, 1, exponential(10.0), Recovery(60.0, checkpoint_s))).interval_s, 36_000.0
    assert interval_s is not None
    # the equation of the exact interval: (1 - T / M) exp((T + C) / M) = 1
    assert (1 - interval_s / mean_s) * math.exp((interval_s + checkpoint_s) / mean_s) == pytest.approx(1.0, abs=1e-6)
    assert math.sqrt(2 * checkpoint_s * mean_s) == pytest.approx(interval_s, rel=0.04)  # Young's


def test_runs_that_do_not_end_are_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"\b4\b"):
        expect_run(work(10, 4, exponential(0.1), Recovery(1.0, 10.0, 3600.0)))
    with pytest.raises(InfeasibleError, match="400"):
        expect_run(work(10, 400, exponential(1.0), Recovery(600.0, 1.0, 4.0)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Machines(0, 1.0), r"\b0\b machines"),
        (lambda: Machines(1, -1.0), "costs -1"),
        (lambda: Recovery(-1.0), "takes -1"),
        (lambda: Recovery(1.0, math.nan), "nan"),
        (lambda: Recovery(1.0, 1.0, 0.0), r"checkpoints.*\b0\b"),
        (lambda: TransientWork(math.inf, (Machines(1, 1.0),), STOP), "inf"),
        (lambda: TransientWork(1.0, (), STOP), "one kind"),
    ],
)
def test_work_that_is_none_is_refused(make, said) -> None:
    with pytest.raises(InputError, match=said):
        make()
