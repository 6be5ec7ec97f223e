"""A calibrated unit as a pool: read again with the numbers that were measured, kept in a plan, told in a diff."""

from dataclasses import asdict
from types import MappingProxyType

import pytest
from profiles import HOST

from heterps_compile.cluster.devices import Cluster, KindRate
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import KindWork
from heterps_compile.cost.profile import Fitted, LinkProfile
from heterps_compile.errors import InputError
from heterps_compile.plan_diff.pool_changes import compare_pools
from heterps_compile.profiling.calibration.calibrate import Calibration
from heterps_compile.profiling.calibration.fit_rates import TimedWork
from heterps_compile.profiling.calibration.pool_entry import check_name, pool_text

RATES = {
    "embedding": KindRate(10.5e-6, float("inf"), 10.6e9, 1.2, 0.14, gradient_bytes_per_s=6.4e9),
    "depthwise": KindRate(96.6e-6, 11.3e9, 5.48e9, 1.53, 0.02, inference=0.64),
    "elementwise": KindRate(0.0, float("inf"), 9.5e9, 0.9, 0.11),
    "gemm": KindRate(13.6e-6, 108e9, 11e9, 1.84, 0.19),
    "cold-start": KindRate(8.1e-6, float("inf"), 228e9, 0.0, 0.2, inference=0.35),
}


def calibration(description: str = "a processor") -> Calibration:
    work = (KindWork("gemm", 1, 10, 10, 10),)
    return Calibration(
        device="cpu",
        kind="cpu",
        description=description,
        backend="torch",
        threads=1,
        measured="2026-11-23",
        host=HOST,
        versions={"torch": "2.13.0"},
        timed=(TimedWork("gemms", "gemm", work, 1e-3, 2e-3),),
        rates=MappingProxyType(RATES),
        compute_parallel=Fitted(0.97, 0.01, (1, 2)),
        data_parallel=Fitted(0.5, 0.4, (1, 2)),
        link=LinkProfile(9.24e9, 1e8, 42e-6, 1e-6, "two processes"),
    )


def read(tmp_path, text: str) -> Cluster:
    path = tmp_path / "calibrated.toml"
    path.write_text(text)
    return load_cluster(path)


def test_what_is_written_is_read_again(tmp_path):
    (device,) = read(tmp_path, pool_text(calibration(), "my-core")).device_types
    assert device.name == "my-core"
    assert device.rates.keys() == RATES.keys()
    for kind, rate in RATES.items():
        assert asdict(device.rates[kind]) == {**asdict(rate), "start_s": pytest.approx(rate.start_s)}
    assert (device.compute_parallel, device.data_parallel) == (0.97, 0.95)  # the second was too uncertain
    assert (device.network_bytes_per_s, device.network_latency_s) == (9.24e9, pytest.approx(42e-6))
    assert device.flops_per_s("float32") == 108e9
    assert device.memory_bytes_per_s == 11e9  # bytes that a cold start displaces are not moved so fast


def test_a_description_stays_in_its_comment(tmp_path):
    text = pool_text(calibration('x"\n[[device]]\nname = "evil"\x1b[2J'), "core")
    assert [device.name for device in read(tmp_path, text).device_types] == ["core"]
    assert "\x1b" not in text


def test_names_are_those_of_a_pool():
    check_name("a10.large")
    with pytest.raises(InputError, match="'a b'"):
        check_name("a b")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("[device.rates.gemm]", "[device.rates.gemms]", "conv.*gemm"),
        ("backward = 1.84", "backward = -1", r"\b0\b.*1000"),
        ('start = "13.6 us"', 'start = "13.6"', r"'13\.6'"),
        ("error = 0.19", "eror = 0.19", "eror.*'error'"),
    ],
)
def test_wrong_rates_are_refused_by_their_place(tmp_path, old, new, fault):
    text = pool_text(calibration(), "core")
    assert old in text
    with pytest.raises(InputError, match=fault):
        read(tmp_path, text.replace(old, new))


def test_a_change_of_a_rate_is_told(tmp_path):
    text = pool_text(calibration(), "core")
    old, new = read(tmp_path, text), read(tmp_path, text.replace("1.84", "2.5").replace("13.6 us", "20 us"))
    told = [change.told(str) for change in compare_pools(old, new)]
    assert "gemm backward of core is 2.5, was 1.84" in told
    assert "gemm start of core is 20 us, was 13.6 us" in told
