from dataclasses import fields, replace
from types import MappingProxyType

from plans import PLAN

from heterps_compile.cluster.devices import DeviceType, KindRate, Link
from heterps_compile.escape import printable
from heterps_compile.plan_diff.compare_plans import diff
from heterps_compile.plan_diff.pool_changes import compare_pools, told_together
from heterps_compile.plan_diff.sentences import notes

POOL = PLAN.pool
assert POOL is not None
V100 = PLAN.devices[1]
assert isinstance(V100, DeviceType)


def changed(**values: object) -> str:
    assert POOL is not None
    devices = (POOL.device_types[0], replace(V100, **values), POOL.device_types[2])  # type: ignore[arg-type]
    return told_together(compare_pools(POOL, replace(POOL, device_types=devices)), printable)


def test_a_pool_that_says_the_same_has_no_changes():
    assert POOL is not None
    assert compare_pools(POOL, replace(POOL, name="other", description="d", source="s")) == ()


def test_values_are_told_with_their_units():
    assert changed(price_per_hour=2.62) == "price of v100 is 2.62 USD/h, was 2.42 USD/h"
    assert changed(price_per_hour=0.0) == "price of v100 is free, was 2.42 USD/h"
    assert changed(max_units=8) == "max units of v100 is 8, was 64"
    assert changed(memory_bytes=2.0**35) == "memory of v100 is 32 GiB, was 14.9 GiB"
    assert changed(network_bytes_per_s=2.5e9) == "network bandwidth of v100 is 2.33 GiB/s, was 1.16 GiB/s"
    assert changed(network_latency_s=1e-5) == "network latency of v100 is 10 us, was 50 us"
    assert changed(shared_input_bytes_per_s=float("inf")) == ("shared input bandwidth of v100 is none, was 2.79 GiB/s")
    assert changed(peak_flops={"float32": 2e13}) == (
        "peak float32 of v100 is 2e+13 FLOP/s, was 1e+13 FLOP/s; peak float16 of v100 is none, was 2e+13 FLOP/s"
    )
    assert changed(supports=None) == "supports of v100 is none, was compute"
    assert changed(efficiency=0.6) == "efficiency of v100 is 0.6, was 0.5"


def test_a_change_that_rounding_hides_is_told_in_full():
    assert changed(price_per_hour=2.4200001) == ("price of v100 is 2.42 USD/h (2.4200001), was 2.42 USD/h (2.42)")


def test_every_field_of_a_device_type_counts():
    rates = MappingProxyType({"gemm": KindRate(1e-5, 1e9, 1e9, 2.0, 0.1)})
    other = {str: "other", int: 2, bool: True, float: 0.123, tuple: ("other",), MappingProxyType: rates}
    for field in fields(DeviceType):
        if field.name not in ("name", "peak_flops"):
            assert changed(**{field.name: other[type(getattr(V100, field.name))]}), field.name


def test_device_types_links_and_servers_come_and_go():
    assert POOL is not None
    t4 = replace(V100, name="l4\x1b")
    other = replace(
        POOL,
        currency="EUR",
        device_types=(*POOL.device_types[:2], t4),
        links=(Link(("v100", "cpu"), 1e9, 1e-5), Link(("cpu", "cpu"), 1e9, 1e-5)),
        parameter_server=None,
    )
    told = told_together(compare_pools(POOL, other), printable)
    assert told == (
        r"currency is EUR, was USD; l4\x1b is new; t4 is gone; the link between cpu and cpu is new; "
        r"the parameter server is gone"
    )


def test_a_diff_notes_what_became_of_the_pool_and_knows_nothing_of_an_older_plans():
    dearer = replace(PLAN, devices=(PLAN.devices[0], replace(V100, price_per_hour=3.0), PLAN.devices[2]))
    assert notes(diff(PLAN, dearer), printable) == ["the pool changed: price of v100 is 3.00 USD/h, was 2.42 USD/h"]
    assert diff(replace(PLAN, devices=()), dearer).pool == ()
