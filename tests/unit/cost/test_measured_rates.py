"""Estimates at measured rates: the formula by hand, parts of a batch, and kinds that nobody measured."""

from dataclasses import replace
from types import MappingProxyType

import pytest

from heterps_compile.cluster.devices import KindRate
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import CACHES_BYTES, KindWork, LayerCost
from heterps_compile.cost.roofline import layer_phases

CORE = load_cluster("heterps-paper").device_types[0]
GEMM = KindRate(10e-6, 1e9, 1e9, 2.5, 0.1)
WORK = (KindWork("gemm", 2, 4_000_000, 1_000_000, 500_000), KindWork("elementwise", 1, 0, 600_000, 0))
COST = LayerCost(4_000_000, 500_000, 500_000, 0, 0, 1_500_000, 3, by_kind=WORK)


def test_work_is_added_up_kind_by_kind():
    rates = {"gemm": GEMM, "elementwise": KindRate(5e-6, float("inf"), 2e9, 1.0, 0.1)}
    device = replace(CORE, rates=MappingProxyType(rates))
    gemm_s, rest_s = 20e-6 + 4e-3 + 1.5e-3, 5e-6 + 0.3e-3
    phases = layer_phases(COST, device, "float32", training=True)
    assert phases.forward_s == pytest.approx(gemm_s + rest_s)
    assert phases.backward_s == pytest.approx(2.5 * gemm_s + rest_s)
    assert layer_phases(COST, device, "float32", training=False).backward_s == 0


def test_inference_takes_its_part_of_a_forward_in_training_kind_by_kind():
    rates = {"gemm": replace(GEMM, inference=0.5), "elementwise": KindRate(5e-6, float("inf"), 2e9, 1.0, 0.1)}
    device = replace(CORE, rates=MappingProxyType(rates))
    gemm_s, rest_s = 20e-6 + 4e-3 + 1.5e-3, 5e-6 + 0.3e-3
    assert layer_phases(COST, device, "float32", training=True).forward_s == pytest.approx(gemm_s + rest_s)
    assert layer_phases(COST, device, "float32", training=False).forward_s == pytest.approx(0.5 * gemm_s + rest_s)


def test_starts_and_weights_do_not_shrink_with_the_batch():
    device = replace(CORE, rates=MappingProxyType({"gemm": GEMM}))
    work = replace(COST, by_kind=WORK[:1])
    assert layer_phases(work, device, "float32", 0.25, training=False).forward_s == pytest.approx(
        20e-6 + 1e-3 + 0.25e-3 + 0.5e-3
    )


def test_the_gradient_of_a_table_is_made_whole():
    rate = KindRate(0.0, float("inf"), 1e9, 2.0, 0.1, gradient_bytes_per_s=5e8)
    device = replace(CORE, rates=MappingProxyType({"embedding": rate}))
    work = replace(COST, by_kind=(KindWork("embedding", 1, 0, 1_000_000, 0, 4_000_000),))
    assert layer_phases(work, device, "float32", training=True).backward_s == pytest.approx(2e-3 + 8e-3)
    assert layer_phases(work, device, "float32", 0.5, training=True).backward_s == pytest.approx(1e-3 + 8e-3)
    assert layer_phases(work, device, "float32", training=False).backward_s == 0


def test_a_micro_batch_adds_the_gradient_of_a_table_to_the_one_before_it():
    """Two arrays are read and one is written, as elementwise work is where that was measured."""
    table = KindRate(0.0, float("inf"), 1e9, 2.0, 0.1, gradient_bytes_per_s=5e8)
    work = replace(COST, by_kind=(KindWork("embedding", 1, 0, 1_000_000, 0, 4_000_000),))
    for rates, sums_per_s in (
        ({"embedding": table}, CORE.memory_bytes_per_s * CORE.efficiency),
        ({"embedding": table, "elementwise": KindRate(5e-6, float("inf"), 2e9, 1.0, 0.1)}, 2e9),
        ({"gemm": GEMM}, CORE.memory_bytes_per_s * CORE.efficiency),  # look-ups were not measured
    ):
        phases = layer_phases(work, replace(CORE, rates=MappingProxyType(rates)), "float32", training=True)
        assert phases.accumulate_s - phases.backward_s == pytest.approx(12e6 / sums_per_s)


def test_what_has_no_backward_takes_none():
    device = replace(CORE, rates=MappingProxyType({"gemm": GEMM}))
    work = replace(COST, by_kind=(replace(WORK[0], has_backward=False),))
    assert layer_phases(work, device, "float32", training=True).backward_s == 0


def test_views_take_their_start_where_a_pool_has_it_and_nothing_where_it_was_made_before():
    view = KindWork("view", 3, 0, 0, 0)
    pool = {"gemm": GEMM, "view": KindRate(2e-6, float("inf"), float("inf"), 1.0, 0.1)}
    with_views, before = (replace(CORE, rates=MappingProxyType(rates)) for rates in (pool, {"gemm": GEMM}))
    work = replace(COST, by_kind=(WORK[0], view))
    plain_s = layer_phases(replace(COST, by_kind=WORK[:1]), before, "float32", training=False).forward_s
    assert layer_phases(work, with_views, "float32", training=False).forward_s == pytest.approx(plain_s + 6e-6)
    assert layer_phases(work, before, "float32", training=False).forward_s == pytest.approx(plain_s)


def test_another_dtype_is_as_much_faster_as_its_peak():
    device = replace(CORE, rates=MappingProxyType({"gemm": GEMM}), peak_flops={"float32": 1e9, "bfloat16": 4e9})
    work = replace(COST, by_kind=WORK[:1])
    phases = layer_phases(work, device, "bfloat16", training=False)
    assert phases.forward_s == pytest.approx(20e-6 + 1e-3 + 1.5e-3)


def test_a_kind_that_nobody_measured_is_of_the_data_sheet():
    device = replace(CORE, rates=MappingProxyType({"elementwise": KindRate(0, float("inf"), 1e9, 1.0, 0.1)}))
    plain = layer_phases(replace(COST, by_kind=WORK[:1], operations=2), CORE, "float32", training=False)
    assert layer_phases(COST, device, "float32", training=False).forward_s == pytest.approx(plain.forward_s + 0.6e-3)


def test_a_cold_start_is_of_the_forward_and_grows_up_to_what_caches_hold():
    rates = {"gemm": GEMM, "cold-start": KindRate(20e-6, float("inf"), 1e11, 0.0, 0.1, inference=0.5)}
    with_start, before = (replace(CORE, rates=MappingProxyType(each)) for each in (rates, {"gemm": GEMM}))
    for moved, displaced in ((8_000_000, 8_000_000), (80_000_000, CACHES_BYTES)):
        cold = KindWork("cold-start", 1, 0, moved, 0, has_backward=False)
        work = replace(COST, by_kind=(WORK[0], cold))
        for training, factor in ((True, 1.0), (False, 0.5)):
            own, warm = (layer_phases(work, each, "float32", training=training) for each in (with_start, before))
            assert own.forward_s - warm.forward_s == pytest.approx(factor * (20e-6 + displaced / 1e11))
            assert own.backward_s == warm.backward_s
