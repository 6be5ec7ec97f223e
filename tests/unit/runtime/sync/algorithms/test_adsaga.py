"""ADSAGA: a constant step converges, whatever the delays."""

import math

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.algorithms.adsaga import AnyTerms, AsyncSaga, Server
from heterps_compile.runtime.sync.algorithms.least_squares import LeastSquares, sgd_floor


def iterations(problem: LeastSquares, workers: int, most: int, **options) -> int | None:
    saga = AsyncSaga(problem.terms(), problem.start(), workers=workers, step=0.25, **options)
    for done, weights in enumerate(saga.run(most), 1):
        if problem.error(weights) < 1e-8:
            return done
    return None


def test_the_problem_has_the_condition_that_is_asked_for():
    problem = LeastSquares.drawn(512, 20, condition=28.6, noise=1.0, seed=0)
    curvature = torch.linalg.eigvalsh(problem.features.T @ problem.features / 512)
    torch.testing.assert_close(problem.features.norm(dim=1), torch.ones(512, dtype=torch.float64))
    assert 1 / curvature[0].item() == pytest.approx(28.6, rel=1e-9)
    gradient = problem.features.T @ (problem.features @ problem.minimum - problem.targets)
    assert gradient.abs().max() < 1e-10


def test_the_mean_of_the_server_is_that_of_the_tables():
    """But for innovations on their way, of which there are none: a worker's table changes when it answers."""
    problem = LeastSquares.drawn(24, 4, condition=8.0, noise=1.0, seed=0)
    saga = AsyncSaga(problem.terms(), problem.start(), workers=3, step=0.25)
    for _ in saga.run(100):
        pass
    torch.testing.assert_close(saga.server.mean, Server(saga.server.weights, saga.workers, 0.25).mean)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_small_sum_converges_for_equal_and_unequal_workers(workers):
    """64 terms of condition 8: n ln 1e8 = 1,179 iterations about; 3,000 are enough."""
    problem = LeastSquares.drawn(64, 4, condition=8.0, noise=1.0, seed=0)
    assert 600 < (iterations(problem, workers, 3000) or 0) <= 3000
    assert iterations(problem, workers, 3000, delays=[1.0, 1.0, 1.0, 2.0][:workers]) is not None


def test_asynchronous_sgd_at_the_same_step_stays_at_its_noise():
    """The floor is derived in ``sgd_floor``; measured over 4,000 iterations of a chain that forgets in some 30."""
    problem = LeastSquares.drawn(64, 4, condition=8.0, noise=1.0, seed=0)
    saga = AsyncSaga(problem.terms(), problem.start(), workers=1, step=0.25, variance_reduced=False)
    errors = [problem.error(weights) for weights in saga.run(5000)][1000:]
    assert sum(errors) / len(errors) == pytest.approx(sgd_floor(problem, 0.25), rel=0.25)
    assert min(errors) > 1e-6


def test_any_gradient_gives_what_the_linear_terms_give():
    problem = LeastSquares.drawn(12, 3, condition=4.0, noise=1.0, seed=1)
    whole = AnyTerms(12, 3, lambda i, w: problem.features[i] * (problem.features[i] @ w - problem.targets[i]))
    ends = []
    for terms in (problem.terms(), whole):
        *_, end = AsyncSaga(terms, problem.start(), workers=2, step=0.2, seed=5).run(50)
        ends.append(end)
    torch.testing.assert_close(*ends)


def test_a_run_goes_on_where_it_was():
    problem = LeastSquares.drawn(12, 3, condition=4.0, noise=1.0, seed=1)
    once = AsyncSaga(problem.terms(), problem.start(), workers=3, step=0.2)
    twice = AsyncSaga(problem.terms(), problem.start(), workers=3, step=0.2)
    *_, straight = once.run(40)
    for count in (15, 25):
        *_, resumed = twice.run(count)
    assert torch.equal(straight, resumed)
    assert twice.time == once.time > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 13, "step": 0.1}, r"\b12\b.*\b13\b"),
        ({"workers": 0, "step": 0.1}, r"\b0\b workers"),
        ({"workers": 2, "step": 0.0}, "above 0, not 0"),
        ({"workers": 2, "step": math.nan}, r"\b0\b.*nan"),
        ({"workers": 2, "step": 0.1, "delays": [1.0]}, r"1\.0"),
        ({"workers": 2, "step": 0.1, "delays": [1.0, 0.0]}, r"1\.0"),
    ],
)
def test_what_cannot_run_is_refused(options, message):
    problem = LeastSquares.drawn(12, 3, condition=4.0, noise=1.0, seed=1)
    with pytest.raises(InputError, match=message):
        AsyncSaga(problem.terms(), problem.start(), **options)
