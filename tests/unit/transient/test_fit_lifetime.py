"""Fits of lifetimes with censoring, held against scipy's, and their distance from what was seen."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.transient.fit_lifetime import Lifespan, distance_of, fit_lifetime, lost_shares
from heterps_compile.transient.lifetime import Exponential, Weibull


def drawn(count: int = 200, limit_hours: float = 24.0) -> list[Lifespan]:
    hours = Weibull(0.6, 60.0).sample(np.random.default_rng(5), count).tolist()
    return [Lifespan.died(h) if h < limit_hours else Lifespan.alive(limit_hours) for h in hours]


def test_weibull_is_fitted_as_scipy_fits_it() -> None:
    seen = drawn()
    dead = [span.by_hours for span in seen if span.by_hours < math.inf]
    data = stats.CensoredData(uncensored=dead, right=[24.0] * (len(seen) - len(dead)))
    shape, _, scale = stats.weibull_min.fit(data, floc=0)
    fit = fit_lifetime(seen, "weibull")
    assert (fit.parameters["shape"], fit.parameters["scale_hours"]) == pytest.approx((shape, scale), rel=1e-3)
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
    assert tuple(fit_lifetime(seen, "weibull").parameters.values()) == pytest.approx((shape, scale), rel=2e-3)


def test_the_exponential_is_hours_over_deaths_with_the_error_of_their_number() -> None:
    seen = [Lifespan.died(2.0), Lifespan.died(4.0), *[Lifespan.alive(24.0)] * 6]
    fit = fit_lifetime(seen, "exponential")
    assert fit.parameters["mean_hours"] == pytest.approx(150.0 / 2, rel=1e-6)
    assert fit.errors["mean_hours"] == pytest.approx(math.sqrt(0.5), rel=0.2)


def test_machines_that_go_together_count_as_one_in_the_errors() -> None:
    hours = Weibull(0.6, 60.0).sample(np.random.default_rng(6), 40).tolist()
    alone = [Lifespan.died(h) for h in hours for _ in range(4)]
    together = [Lifespan.died(h, str(number)) for number, h in enumerate(hours) for _ in range(4)]
    first, second = fit_lifetime(alone, "weibull"), fit_lifetime(together, "weibull")
    assert first.parameters == second.parameters
    assert second.errors["shape"] == pytest.approx(2 * first.errors["shape"], rel=0.02)


def test_early_deaths_are_found_where_there_are_any() -> None:
    rng = np.random.default_rng(1)
    mixed = [*rng.exponential(0.5, 60), *rng.exponential(200.0, 240)]
    seen = [Lifespan.died(h) if h < 24 else Lifespan.alive(24.0) for h in mixed]
    assert fit_lifetime(seen).parameters["share"] == pytest.approx(0.2, abs=0.06)
    assert list(fit_lifetime(drawn(limit_hours=1e9)).parameters) == ["shape", "scale_hours"]


def test_the_share_lost_is_that_of_kaplan_and_meier() -> None:
    seen = [Lifespan.died(1.0), Lifespan.alive(2.0), Lifespan.died(3.0), Lifespan.alive(4.0)]
    ages, shares = lost_shares(seen)
    assert ages.tolist() == [1.0, 3.0]
    assert shares.tolist() == pytest.approx([0.25, 0.625])


def test_the_distance_is_that_of_scipy_where_nothing_is_censored() -> None:
    hours = Weibull(0.6, 60.0).sample(np.random.default_rng(9), 50)
    expected = stats.kstest(hours, stats.expon(scale=50.0).cdf).statistic
    assert distance_of(Exponential(50.0), [Lifespan.died(h) for h in hours.tolist()]) == pytest.approx(
        expected, abs=1e-9
    )


def test_the_distance_of_deaths_known_to_the_hour_asks_at_whole_hours_alone() -> None:
    law = Exponential(10.0)
    shares = [1 - math.exp(-h / 10.0) for h in range(6)]
    counts = [(b - a) * 1000 for a, b in itertools.pairwise(shares)]
    seen = [Lifespan(float(h), h + 1.0, count) for h, count in enumerate(counts)]
    assert distance_of(law, [*seen, Lifespan(5.0, math.inf, 1000 * math.exp(-0.5))]) == pytest.approx(0.0, abs=1e-9)


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(InputError, match="given"):
        fit_lifetime([])
    with pytest.raises(InputError, match=r"\b2\b.*\b48\b"):
        fit_lifetime([Lifespan.alive(24.0), Lifespan.alive(24.0)])
    with pytest.raises(UnknownNameError, match=r"'weibul'.*'weibull'"):
        fit_lifetime([Lifespan.died(1.0)], "weibul")
    with pytest.raises(InputError, match=r"\b3\b.*\b2\b"):
        Lifespan(3.0, 2.0)
    with pytest.raises(InputError, match="machine"):
        distance_of(Exponential(1.0), [Lifespan.alive(1.0)])
