"""A time between two measured sizes is never outside of theirs; beyond them it is ``t0 + t1 m``, neither below 0."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.cost.interpolation import interpolate

times = st.floats(1e-6, 10.0)
curves = st.lists(st.tuples(st.integers(1, 4096), times), min_size=2, max_size=6, unique_by=lambda point: point[0]).map(
    sorted
)


@settings(max_examples=60)
@given(curves, st.floats(0.01, 0.99))
def test_between_two_sizes_it_lies_between_their_times(points, share):
    for (low, low_s), (high, high_s) in pairwise(points):
        found = interpolate(points, low + share * (high - low))
        assert min(low_s, high_s) * (1 - 1e-12) <= found <= max(low_s, high_s) * (1 + 1e-12)
    assert all(interpolate(points, size) == pytest.approx(time_s) for size, time_s in points)


@settings(max_examples=60)
@given(curves, st.floats(0.05, 8.0))
def test_a_curve_that_rises_is_read_as_one_that_rises(points, factor):
    rising = [(size, sum(time_s for _, time_s in points[: i + 1])) for i, (size, _) in enumerate(points)]
    sizes = sorted({factor * size for size, _ in rising} | {size for size, _ in rising})
    found = [interpolate(rising, size) for size in sizes]
    assert all(first <= second * (1 + 1e-9) for first, second in pairwise(found))


@settings(max_examples=60)
@given(curves, st.floats(1.01, 50.0))
def test_beyond_them_it_lies_between_the_nearest_time_and_its_proportion(points, factor):
    (smallest, smallest_s), (largest, largest_s) = points[0], points[-1]
    assert smallest_s / factor * (1 - 1e-9) <= interpolate(points, smallest / factor) <= smallest_s * (1 + 1e-9)
    assert largest_s * (1 - 1e-9) <= interpolate(points, largest * factor) <= largest_s * factor * (1 + 1e-9)


@settings(max_examples=60)
@given(st.floats(0, 1e-2), st.floats(1e-6, 1e-3), curves, st.floats(0.1, 10_000))
def test_what_is_a_line_is_read_exactly(fixed_s, slope_s, points, size):
    line = [(measured, fixed_s + slope_s * measured) for measured, _ in points]
    assert interpolate(line, size) == pytest.approx(fixed_s + slope_s * size, rel=1e-6)
