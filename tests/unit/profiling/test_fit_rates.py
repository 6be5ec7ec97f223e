"""Rates of a known law are found again, whatever a few layers say otherwise."""

from dataclasses import replace

import numpy as np
import pytest

from heterps_compile.cluster.devices import KindRate
from heterps_compile.cost.layer_cost import KindWork
from heterps_compile.profiling.calibration.fit_rates import TimedWork, fit_inference, fit_rates, forward_time_s

LAW = {
    "conv": KindRate(40e-6, 60e9, 7e9, 1.7, 0.0),
    "gemm": KindRate(12e-6, 100e9, 9e9, 1.9, 0.0),
    "elementwise": KindRate(5e-6, float("inf"), 20e9, 0.8, 0.0),
}


def layers() -> list[TimedWork]:
    """Return layers of four networks that take what the law says."""
    draws = np.random.default_rng(0)
    made = []
    for number in range(80):
        kind = ("conv", "gemm")[number % 2]
        scale = 10 ** draws.uniform(0, 3)
        flops, weights = int(1e5 * scale * draws.uniform(0.5, 2)), int(10 ** draws.uniform(3, 6))
        work = (
            KindWork(kind, 1, flops, int(2e3 * scale), weights),
            KindWork("elementwise", int(draws.integers(1, 4)), 0, int(8e3 * scale * draws.uniform(0.5, 2)), 0),
        )
        parts = [forward_time_s(LAW, [each]) for each in work]
        backward_s = sum(LAW[each.kind].backward * time_s for each, time_s in zip(work, parts, strict=True))
        made.append(TimedWork(f"net {number % 4}", kind, work, sum(parts), backward_s))
    return made


def test_a_law_without_noise_is_found_again():
    found = fit_rates(layers())
    for kind, rate in LAW.items():
        assert found[kind].start_s == pytest.approx(rate.start_s, rel=1e-3)
        assert found[kind].bytes_per_s == pytest.approx(rate.bytes_per_s, rel=1e-3)
        assert found[kind].backward == pytest.approx(rate.backward, rel=1e-3)
    assert found["gemm"].flops_per_s == pytest.approx(100e9, rel=1e-3)
    assert found["elementwise"].flops_per_s == float("inf")
    assert found["gemm"].error == pytest.approx(0, abs=1e-3)


def test_work_without_a_backward_does_not_bend_the_factor_of_its_kind():
    timed = layers()
    extra = KindWork("elementwise", 2, 0, 4000, 0, has_backward=False)
    for place, each in enumerate(timed):
        if place % 3 == 0:
            forward_s = each.forward_s + forward_time_s(LAW, [extra])
            timed[place] = replace(each, work=(*each.work, extra), forward_s=forward_s)
    found = fit_rates(timed)
    assert found["elementwise"].backward == pytest.approx(LAW["elementwise"].backward, rel=1e-3)
    assert found["elementwise"].start_s == pytest.approx(LAW["elementwise"].start_s, rel=1e-3)


def test_a_few_layers_that_a_cache_helps_bend_nothing():
    timed = layers()
    timed[::10] = [replace(each, forward_s=each.forward_s / 3) for each in timed[::10]]
    found = fit_rates(timed)
    assert found["gemm"].flops_per_s == pytest.approx(100e9, rel=0.03)
    assert found["conv"].start_s == pytest.approx(40e-6, rel=0.1)


def test_half_as_long_counts_as_much_as_twice_as_long():
    """By errors over what was measured the fastest of these would be nearest to all: none is off by more than all."""
    work = (KindWork("gemm", 1, 0, 0, 0),)
    timed = [TimedWork(f"net {took}", "gemm", work, took * 1e-6, 0.0) for took in (5, 10, 20)]
    assert fit_rates(timed)["gemm"].start_s == pytest.approx(10e-6, rel=0.1)


def test_the_error_is_of_networks_that_were_left_out():
    """One network takes twice the law: what is fitted to all bends, what is fitted to the others misses it by half."""
    timed = [replace(each, forward_s=2 * each.forward_s) if each.network == "net 1" else each for each in layers()]
    alone = [each for each in timed if each.network in ("net 1", "net 3")]  # both are of products
    assert fit_rates(alone)["gemm"].error == pytest.approx(0.75, abs=0.3)


def test_the_rate_of_gradients_of_tables_is_found_again():
    timed = layers()
    for rows in (100, 3_000, 40_000, 200_000):
        for moved_bytes in (1_000, 50_000, 2_000_000):
            work = (KindWork("embedding", 1, 0, moved_bytes, 0, 64 * rows),)
            forward_s = 10e-6 + moved_bytes / 8e9
            timed.append(TimedWork(f"net {rows}", "embedding", work, forward_s, 1.5 * forward_s + 64 * rows / 5e9))
    found = fit_rates(timed)["embedding"]
    assert found.gradient_bytes_per_s == pytest.approx(5e9, rel=1e-3)
    assert found.backward == pytest.approx(1.5, rel=1e-3)
    assert fit_rates(timed)["gemm"].gradient_bytes_per_s == float("inf")


def test_what_was_not_trained_has_no_backward():
    assert fit_rates([replace(each, backward_s=0.0) for each in layers()])["gemm"].backward == 0


def test_what_inference_takes_of_a_forward_is_found_again_by_kind():
    factors = {"conv": 0.6, "gemm": 0.9, "elementwise": 0.75}
    scored = []
    for each in layers():
        forward_s = sum(factors[work.kind] * forward_time_s(LAW, [work]) for work in each.work)
        scored.append(replace(each, forward_s=forward_s, backward_s=0.0))
    strange = replace(scored[0], work=(KindWork("norm", 1, 0, 1000, 0),))
    found = fit_inference({**LAW, "pool": LAW["conv"]}, [*scored, strange])
    assert {kind: found[kind].inference for kind in LAW} == pytest.approx(factors, abs=0.01), "near 1 by one layer"
    assert found["pool"].inference == pytest.approx(1), "no layer tells"
    assert found["gemm"].flops_per_s == LAW["gemm"].flops_per_s
