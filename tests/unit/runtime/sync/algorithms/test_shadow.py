"""Updates of replicas in the background, and the time that the background saves."""

import pytest
import torch

from heterps_compile.errors import InputError
from heterps_compile.runtime.sync.algorithms.shadow import (
    BlockMomentum,
    elastic,
    elastic_centre,
    pulled,
    replica_gap,
)
from heterps_compile.runtime.sync.algorithms.shadow_clock import Work, run_foreground, run_shadow


def row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_pull_keeps_what_was_trained_meanwhile():
    """Snapshot 1, trained to 1.5 meanwhile, target 3: half of the way from 1 to 3 is added to 1.5."""
    assert pulled(row(1.5), row(1.0), row(3.0), 0.5).tolist() == [2.5]
    assert pulled(row(1.0), row(1.0), row(3.0), 1.0).tolist() == [3.0]


def test_replica_and_centre_meet_and_their_sum_stays():
    local, centre = elastic(row(4.0), row(0.0), 0.25)
    assert (local.tolist(), centre.tolist()) == ([3.0], [1.0])


def test_the_centre_of_the_mean_is_that_of_one_replica_after_the_other_at_once():
    torch.manual_seed(0)
    replicas, centre = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    moved = centre + sum(elastic(replica, centre, 0.2)[1] - centre for replica in replicas)
    torch.testing.assert_close(elastic_centre(centre, replicas.mean(0), 4, 0.2), moved)


def test_a_centre_is_not_pulled_beyond_the_mean():
    assert elastic_centre(row(0.0), row(2.0), 4, 0.25).tolist() == [2.0]
    with pytest.raises(InputError, match=r"0\.25"):
        elastic_centre(row(0.0), row(2.0), 4, 0.3)


def test_block_momentum_without_momentum_is_the_mean():
    state = BlockMomentum.beginning(row(1.0)).after_block(row(5.0), momentum=0.0)
    assert state.weights.tolist() == [5.0]


def test_block_momentum_of_four_replicas_follows_a_drift_four_times_as_fast():
    """Every block moves the mean by 1 from the global model: in the end it moves by 1 / (1 - 3/4) = 4."""
    state = BlockMomentum.beginning(row(0.0))
    for _ in range(200):
        state = state.after_block(state.weights + 1.0, momentum=0.75)
    torch.testing.assert_close(state.velocity, row(4.0))


def test_the_gap_of_replicas():
    """Distances 1 from a mean of length 3 and 0 of equal ones."""
    assert replica_gap([row(2.0, 0.0), row(4.0, 0.0)]) == pytest.approx(1 / 3)
    assert replica_gap([row(2.0), row(2.0)]) == 0
    assert replica_gap([row(0.0), row(0.0)]) == 0
    assert replica_gap([row(1.0), row(-1.0)]) == float("inf")


@pytest.mark.parametrize("pull", [0.0, -0.1, 1.1, float("nan")])
def test_a_pull_that_is_none_is_refused(pull):
    for update in (lambda: pulled(row(1), row(1), row(1), pull), lambda: elastic(row(1), row(1), pull)):
        with pytest.raises(InputError):
            update()


@pytest.mark.parametrize(("momentum", "rate"), [(1.0, 1.0), (-0.1, 1.0), (0.5, 0.0), (0.5, float("nan"))])
def test_a_block_momentum_that_is_none_is_refused(momentum, rate):
    with pytest.raises(InputError, match=r"\b0\b.*\b1\b"):
        BlockMomentum.beginning(row(1.0)).after_block(row(1.0), momentum, rate)


def test_throughput_does_not_fall_as_every_goes_to_one():
    """Foreground takes 1 + 4 / every times as long; shadow passes over what is due while one runs: 4 steps each."""
    shadows = {every: run_shadow(Work(400, 0.010, 0.040, every)) for every in (1, 2, 5, 20)}
    assert {round(one.time_s, 9) for one in shadows.values()} == {4.0}
    assert (shadows[1].syncs, shadows[1].passed_over) == (100, 299)
    assert run_foreground(Work(400, 0.010, 0.040, 1)).time_s == pytest.approx(20.0)


@pytest.mark.parametrize(
    "numbers", [(-1, 1, 1, 1, 0), (1, 0, 1, 1, 0), (1, 1, -1, 1, 0), (1, 1, 1, 0, 0), (1, 1, 1, 1, -1)]
)
def test_work_that_cannot_be_timed_is_refused(numbers):
    with pytest.raises(InputError):
        Work(*numbers)
