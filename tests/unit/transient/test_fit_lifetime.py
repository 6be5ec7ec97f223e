"""Fits of lifetimes with censoring, held against scipy's, and their distance from what was seen."""

import importlib
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from heterps_compile.errors import InputError
from heterps_compile.transient.fit_lifetime import Lifespan, fit_lifetime
from heterps_compile.transient.lifetime import Weibull, exponential

TOOLS = Path(__file__).parents[3] / "tools"


@pytest.fixture
def bench(monkeypatch):
    """Return the tool that holds laws against what was seen."""
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("bench_transient")


def drawn(count: int = 200, limit_hours: float = 24.0) -> list[Lifespan]:
    hours = Weibull(0.6, 60.0).sample(np.random.default_rng(5), count).tolist()
    return [Lifespan.died(h) if h < limit_hours else Lifespan.alive(limit_hours) for h in hours]


def test_weibull_is_fitted_as_scipy_fits_it() -> None:
    seen = drawn()
    dead = [span.by_hours for span in seen if span.by_hours < math.inf]
    data = stats.CensoredData(uncensored=dead, right=[24.0] * (len(seen) - len(dead)))
    shape, _, scale = stats.weibull_min.fit(data, floc=0)
    fit = fit_lifetime(seen)
    assert (fit.law.shape, fit.law.scale_hours) == pytest.approx((shape, scale), rel=1e-3)
    assert (fit.deaths, fit.machines) == (len(dead), 200)


def test_deaths_known_to_the_hour_are_fitted_as_scipy_fits_intervals() -> None:
    exact = [span.by_hours for span in drawn() if span.by_hours < math.inf]
    seen = [Lifespan(math.floor(h), math.floor(h) + 1.0) for h in exact] + [
        Lifespan(24.0, math.inf, 200.0 - len(exact))
    ]
    data = stats.CensoredData(
        interval=[(math.floor(h), math.floor(h) + 1) for h in exact], right=[24.0] * (200 - len(exact))
    )
    shape, _, scale = stats.weibull_min.fit(data, floc=0)
    law = fit_lifetime(seen).law
    assert (law.shape, law.scale_hours) == pytest.approx((shape, scale), rel=2e-3)


def test_the_exponential_is_hours_over_deaths_with_the_error_of_their_number() -> None:
    seen = [Lifespan.died(2.0), Lifespan.died(4.0), *[Lifespan.alive(24.0)] * 6]
    fit = fit_lifetime(seen, shape=1.0)
    assert fit.law.mean_hours == pytest.approx(150.0 / 2, rel=1e-6)
    assert fit.errors["scale_hours"] == pytest.approx(math.sqrt(0.5), rel=0.2)


def test_machines_that_go_together_count_as_one_in_the_errors() -> None:
    hours = Weibull(0.6, 60.0).sample(np.random.default_rng(6), 40).tolist()
    alone = [Lifespan.died(h) for h in hours for _ in range(4)]
    together = [Lifespan.died(h, str(number)) for number, h in enumerate(hours) for _ in range(4)]
    first, second = fit_lifetime(alone), fit_lifetime(together)
    assert first.law == second.law
    assert second.errors["shape"] == pytest.approx(2 * first.errors["shape"], rel=0.02)


def test_the_share_lost_is_that_of_kaplan_and_meier(bench) -> None:
    seen = [Lifespan.died(1.0), Lifespan.alive(2.0), Lifespan.died(3.0), Lifespan.alive(4.0)]
    ages, shares = bench.lost_shares(seen)
    assert ages.tolist() == [1.0, 3.0]
    assert shares.tolist() == pytest.approx([0.25, 0.625])


def test_the_distance_is_that_of_scipy_where_nothing_is_censored(bench) -> None:
    hours = Weibull(0.6, 60.0).sample(np.random.default_rng(9), 50)
    expected = stats.kstest(hours, stats.expon(scale=50.0).cdf).statistic
    assert bench.distance_of(exponential(50.0), [Lifespan.died(h) for h in hours.tolist()]) == pytest.approx(
        expected, abs=1e-9
    )


def test_the_distance_of_deaths_known_to_the_hour_asks_at_whole_hours_alone(bench) -> None:
    law = exponential(10.0)
    shares = [1 - math.exp(-h / 10.0) for h in range(6)]
    counts = [(b - a) * 1000 for a, b in itertools.pairwise(shares)]
    seen = [Lifespan(float(h), h + 1.0, count) for h, count in enumerate(counts)]
    assert bench.distance_of(law, [*seen, Lifespan(5.0, math.inf, 1000 * math.exp(-0.5))]) == pytest.approx(
        0.0, abs=1e-9
    )


def test_the_parts_of_a_checkpoint_are_found_again(bench) -> None:
    sizes = [(5e6, 50.0), (50e6, 326.0), (140e6, 216.0), (200e6, 216.0), (20e6, 140.0)]
    measured = [(size, tensors, 3.0 + 2e-8 * size + 0.004 * tensors) for size, tensors in sizes]
    assert bench.fit_checkpoint_time(measured).tolist() == pytest.approx([3.0, 2e-8, 0.004])


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(InputError, match="given"):
        fit_lifetime([])
    with pytest.raises(InputError, match=r"\b2\b.*\b48\b"):
        fit_lifetime([Lifespan.alive(24.0), Lifespan.alive(24.0)])
    with pytest.raises(InputError, match=r"\b3\b.*\b2\b"):
        Lifespan(3.0, 2.0)
