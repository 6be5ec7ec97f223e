import pytest

from heterps_compile.profiling.fit import fit_link, fit_parallel_fraction


def amdahl(fraction: float, units: int) -> float:
    return 6.0 * (1 - fraction + fraction / units)


def test_the_parallel_fraction_of_exact_times_is_found_without_error():
    fitted = fit_parallel_fraction({k: [amdahl(0.9, k)] * 2 for k in (1, 2, 4)})
    assert (fitted.value, fitted.error) == (pytest.approx(0.9), pytest.approx(0, abs=1e-9))
    assert fitted.units == (1, 2, 4)


def test_times_that_scatter_have_an_error():
    scattered = {k: [amdahl(0.9, k) * shift for shift in (0.9, 1.0, 1.1)] for k in (1, 2, 4)}
    fitted = fit_parallel_fraction(scattered)
    assert fitted.value == pytest.approx(0.9, abs=0.1)
    assert 0.01 < fitted.error < 0.2


def test_replicas_that_slow_each_other_down_divide_nothing():
    assert fit_parallel_fraction({1: [1.0, 1.0], 2: [1.5, 1.6]}).value == 0.0


def test_one_number_of_units_tells_nothing():
    assert fit_parallel_fraction({1: [1.0, 1.1]}) is None


def test_a_link_is_a_line():
    sizes = [1 << 10, 1 << 16, 1 << 20, 1 << 22]
    link = fit_link(sizes, [50e-6 + size / 2e9 for size in sizes], "two")
    assert link.bytes_per_s == pytest.approx(2e9)
    assert link.latency_s == pytest.approx(50e-6)
    assert link.latency_s_error < 1e-9


def test_a_link_that_scatters_has_errors():
    sizes = [1 << 10, 1 << 14, 1 << 20, 1 << 22]
    scatter = [1.1, 0.9, 1.1, 0.9]
    times = [scale * (50e-6 + size / 2e9) for size, scale in zip(sizes, scatter, strict=True)]
    link = fit_link(sizes, times, "two")
    assert link.latency_s == pytest.approx(50e-6, rel=0.2)
    assert 1e-6 < link.latency_s_error < 50e-6
    assert 1e7 < link.bytes_per_s_error < 1e9


def test_a_fraction_out_of_range_is_held_and_told():
    above = fit_parallel_fraction({1: [1.0, 1.0], 2: [0.4, 0.4]})
    assert (above.value, above.unclipped) == (1.0, pytest.approx(1.2))
    below = fit_parallel_fraction({1: [1.0, 1.0], 2: [1.5, 1.5]})
    assert (below.value, below.unclipped) == (0.0, pytest.approx(-1.0))
    assert fit_parallel_fraction({1: [1.0, 1.0], 2: [0.6, 0.6]}).unclipped is None


def test_how_uncertain_the_time_of_one_unit_is_counts():
    steady, shaky = (fit_parallel_fraction({1: once, 2: [0.6] * 4}) for once in ([1.0] * 4, [0.8, 1.0, 1.0, 1.2]))
    assert steady.error == pytest.approx(0, abs=1e-9)
    assert 0.05 < shaky.error < 0.3


def test_one_size_that_was_disturbed_does_not_bend_a_link():
    sizes = [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22]
    times = [30e-6 + size / 24e6 for size in sizes]
    times[1] *= 3
    link = fit_link(sizes, times, "two")
    assert link.bytes_per_s == pytest.approx(24e6, rel=0.02)
    assert link.latency_s == pytest.approx(30e-6, rel=0.1)
