"""The lemmas against their definition, and against each other."""

import math

import pytest

from heterps_compile.advice.lemmas import ceiling, gpus_for, speed_up

RATIOS = (0.0, 0.001, 0.1, 0.25, 1.0, 7.5)


@pytest.mark.parametrize("ratio", RATIOS)
def test_speed_up_is_the_time_of_one_gpu_over_that_of_several(ratio):
    for gpus in (1, 2, 3, 8, 1000):
        assert speed_up(gpus, ratio) == pytest.approx((1 + ratio) / (1 / gpus + ratio))
        assert speed_up(gpus, ratio) < ceiling(ratio)
    assert speed_up(1e15, ratio) == pytest.approx(ceiling(ratio) if ratio else 1e15, rel=1e-6)


def test_the_numbers_of_the_lemma():
    assert (speed_up(4, 0.1), ceiling(0.1), gpus_for(3.0, 0.1)) == (pytest.approx(3.142857), pytest.approx(11.0), 4)
    assert (ceiling(0.0), gpus_for(8, 0.0)) == (math.inf, 8)


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_fewest_gpus_reach_the_speed_up_and_one_fewer_does_not(ratio):
    for wanted in (1.5, 2.0, 3.0, 4.7, 6.0):
        gpus = gpus_for(wanted, ratio)
        if wanted >= ceiling(ratio):
            assert gpus is None
            continue
        assert gpus is not None
        assert speed_up(gpus, ratio) >= wanted * (1 - 1e-9)
        assert gpus == 1 or speed_up(gpus - 1, ratio) < wanted


def test_a_speed_up_at_the_ceiling_is_reached_by_no_number():
    assert gpus_for(11.0, 0.1) is None
    assert gpus_for(1e300, 1e-9) is None


def test_where_nothing_is_divided_more_gpus_gain_nothing():
    assert (speed_up(8, math.inf), ceiling(math.inf), gpus_for(2, math.inf)) == (1.0, 1.0, None)
