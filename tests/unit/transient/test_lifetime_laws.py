"""Laws of lifetimes: what survives, by when a share is gone, and samples that follow both."""

import math

import numpy as np
import pytest
from scipy import stats

from heterps_compile.errors import InputError
from heterps_compile.transient.lifetime import Weibull, exponential

LAWS = [exponential(5.0), Weibull(0.6, 127.0), Weibull(3.0, 20.0)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_samples_follow_the_survival_function(law: Weibull) -> None:
    drawn = np.sort(law.sample(np.random.default_rng(3), 4000))
    places = np.array([0.01, 0.5, 2.0, 10.0, 16.9])
    expected = np.array([law.lost_within(place) for place in places])
    assert np.abs(np.searchsorted(drawn, places, side="right") / len(drawn) - expected).max() < 0.03


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_a_quantile_undoes_the_survival_function(law: Weibull) -> None:
    for share in (0.01, 0.1, 0.15):
        assert 1 - float(law.survival(law.quantile(share))) == pytest.approx(share, rel=1e-9)


def test_means_are_those_of_scipy() -> None:
    assert Weibull(0.6, 127.0).mean_hours == pytest.approx(stats.weibull_min(0.6, scale=127.0).mean())
    assert Weibull(0.6, 127.0).mean_within(1e6) == pytest.approx(Weibull(0.6, 127.0).mean_hours, rel=1e-6)
    assert Weibull(0.6, 127.0).variance == pytest.approx(stats.weibull_min(0.6, scale=127.0).var())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Weibull(0.01, 5.0), "0.01.*0.05.*100"),
        (lambda: Weibull(1.0, -1.0), "-1"),
        (lambda: exponential(math.nan), "nan"),
        (lambda: exponential(1.0).quantile(1.0), r"quantile.*\b1\b"),
    ],
)
def test_numbers_that_are_none_are_refused(make, said) -> None:
    with pytest.raises(InputError, match=said):
        make()
