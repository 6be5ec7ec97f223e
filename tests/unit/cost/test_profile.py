import pytest
from profiles import CPU, layer, point

from heterps_compile.cost.interpolation import interpolate
from heterps_compile.cost.profile import Fitted
from heterps_compile.cost.roofline import Phases

POINTS = [(8, 1.0), (16, 1.5), (64, 2.0)]


@pytest.mark.parametrize(
    ("batch", "time_s"),
    [
        (8, 1.0),
        (12, 1.25),  # half way between its neighbours
        (40, 1.75),
        (64, 2.0),
        (128, 2.0 + 64 * 0.5 / 48),  # the last slope goes on
        (4, 0.75),  # the first slope goes back ...
        (1, 0.5625),  # ... to the fixed part, half a second for an empty batch
    ],
)
def test_a_time_is_read_off_straight_lines(batch, time_s):
    assert interpolate(POINTS, batch) == pytest.approx(time_s)


def test_one_batch_is_in_proportion():
    assert interpolate([(8, 2.0)], 12) == 3.0
    assert interpolate([], 12) == 0.0


def test_noise_makes_no_larger_batch_quicker_and_no_smaller_one_free():
    falling = [(8, 2.0), (16, 1.0)]
    assert interpolate(falling, 64) == 1.0
    assert interpolate(falling, 4) == 2.0
    steep = [(8, 1.0), (16, 5.0)]  # the line would be below 0 at batch 2
    assert interpolate(steep, 2) == pytest.approx(0.25)
    assert interpolate(steep, 32) == pytest.approx(10.0), "no fixed part below 0 above what was measured either"


def test_a_layer_has_backward_where_training_was_measured():
    trained = layer("a", point(8, 1.0, 2.0), point(16, 2.0, 4.0))
    assert trained.has_backward
    assert trained.phases(12, training=True) == Phases(1.5, 3.0, 4.5)
    assert trained.phases(12, training=False) == Phases(1.5, 0.0, 0.0)
    assert not CPU.layers[0].has_backward
    assert CPU.layers[0].phases(8, training=True) == Phases(2e-3, 4e-3, 4e-3)


def test_a_layer_is_found_by_any_of_its_keys():
    assert CPU.by_key["a" * 24] is CPU.layers[0]
    assert "c" * 24 not in CPU.by_key


def test_an_uncertain_fraction_is_not_used():
    assert Fitted(0.9, 0.05, (1, 2)).is_usable
    assert not Fitted(0.9, 0.5, (1, 2)).is_usable
    assert not Fitted(0.0, 0.01, (1, 2)).is_usable
