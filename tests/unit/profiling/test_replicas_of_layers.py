"""What is made of the times of replicas: alpha of every layer, corrected for what calling a layer costs."""

import pytest

from heterps_compile.cost.profile import Fitted
from heterps_compile.profiling.replicas import Replicas, replica_times

ALPHAS, LAYERS_S, CALL_S = (1.0, 0.9, 0.2), (0.4, 0.2, 0.4), 0.01


def printed(count: int, rounds: int = 4) -> list[list[list[float]]]:
    """Return what replicas print whose layers follow Amdahl's law, each called at a cost."""
    layers = [time_s * (1 - alpha + alpha / count) for time_s, alpha in zip(LAYERS_S, ALPHAS, strict=True)]
    return [[[*(each + CALL_S for each in layers), sum(layers) + CALL_S]] * rounds] * count


def test_every_layer_has_the_fraction_that_its_times_follow():
    times = replica_times({count: printed(count) for count in (1, 2, 4)})
    found = [times.of_layers([i]) for i in range(3)]
    assert [fitted.value for fitted in found if fitted] == pytest.approx(ALPHAS, abs=0.02)
    assert times.whole_s[1] == pytest.approx([1.01] * 4)


def test_two_sweeps_that_differ_are_told_by_the_error() -> None:
    def found(second_s: float) -> Fitted:
        rounds = {1: [[[1.0]] * 8], 2: [[[0.5]] * 4 + [[second_s]] * 4] * 2}
        fitted = replica_times(rounds).of_whole()
        assert fitted is not None
        return fitted

    assert found(0.5).error == 0
    assert found(0.6).value == pytest.approx(0.9)  # alpha of 1.0 in one sweep, of 0.8 in the other
    assert found(0.6).error > 0.1


def test_layers_that_are_alike_have_one():
    times = replica_times({count: printed(count) for count in (1, 2)})
    both = times.of_layers([0, 2])
    assert both is not None
    assert both.value == pytest.approx(0.6, abs=0.02)  # as much of each


def test_without_layers_the_whole_alone_is_fitted():
    times = replica_times({count: [[[1.0 / count]] * 3] * count for count in (1, 2)})
    whole = times.of_whole()
    assert whole is not None
    assert whole.value == pytest.approx(1.0)
    assert times.layers_s == []


def test_replicas_are_doubled_beyond_four_as_far_as_the_batch_and_the_machine_go():
    assert Replicas(16).counts(48) == [1, 2, 3, 4, 8, 16]
    assert Replicas(16).counts(64) == [1, 2, 4, 8, 16]
    assert Replicas(2).counts(7) == [1]
    assert Replicas(16).batch(100) == 96
    assert Replicas(2).batch(7) == 6
    assert Replicas(1).batch(7) == 7
