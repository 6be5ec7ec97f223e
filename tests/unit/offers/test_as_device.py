"""Offers as device types: what a unit is, what it costs, and a pool's file that says the same."""

import datetime as dt
from dataclasses import replace

import pytest

from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.cluster.load import builtin_names, load_cluster
from heterps_compile.cluster.pool_toml import pool_toml
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.offers import Offer, Rental, assumed, device_of, pool_of
from heterps_compile.offers.as_device import data_sheet

GIB = 2**30
P3 = Offer(
    "aws", "us-east-1", "p3.16xlarge", "v100", 8, 64, 488 * GIB, 16 * GIB, 25e9 / 8, 150e9, 24.48, 7.34,
    dt.date(2026, 11, 1), "a page",
)  # fmt: skip
CPU = replace(P3, instance="c5.18xlarge", gpu="", gpus=0, cores=72, memory_bytes=144 * GIB, gpu_memory_bytes=0.0)


def test_a_unit_is_a_gpu_with_its_share_of_the_price():
    device = device_of(P3, machines=3)
    paper = load_cluster("heterps-paper").device_type("v100")
    assert (device.name, device.kind, device.price_per_hour) == ("aws.us-east-1.p3.16xlarge", "gpu", 24.48 / 8)
    assert (device.max_units, device.units_per_machine, device.whole_machines) == (24, 8, True)
    ethernet, nvlink, fabric = (LINK_KINDS[kind].efficiency for kind in ("cloud-ethernet", "nvlink", "fabric"))
    assert (device.network_bytes_per_s, device.inner_bytes_per_s) == (ethernet * 25e9 / 8, nvlink * 150e9)
    assert device_of(replace(P3, network_bytes_per_s=50e9)).network_bytes_per_s == fabric * 50e9
    assert (device.memory_bytes, device.peak_flops) == (16 * GIB, paper.peak_flops)
    assert (device.price_date, device.price_source) == ("2026-11-01", "a page")
    spot = device_of(P3, spot=True)
    assert (spot.name, spot.price_per_hour) == ("aws.us-east-1.p3.16xlarge.spot", 7.34 / 8)
    one = device_of(replace(P3, gpus=1))
    assert (one.units_per_machine, one.whole_machines) == (1, False)


def test_a_unit_of_a_machine_without_gpus_is_a_core():
    device = device_of(CPU)
    assert (device.kind, device.units_per_machine, device.memory_bytes) == ("cpu", 72, 2 * GIB)
    assert device.inner_bytes_per_s == 150e9
    assert device_of(replace(CPU, inner_bytes_per_s=0.0)).inner_bytes_per_s == device.memory_bytes_per_s


def test_what_a_catalogue_does_not_say_is_taken_and_told():
    bare = replace(P3, network_bytes_per_s=0.0, inner_bytes_per_s=0.0, gpu_memory_bytes=0.0)
    device = device_of(bare)
    ethernet = LINK_KINDS["cloud-ethernet"].efficiency
    assert device.network_bytes_per_s == 8 * data_sheet("v100").network_bytes_per_s * ethernet
    assert (device.inner_bytes_per_s, device.memory_bytes) == (12e9, 32 * GIB)
    assert [words.partition(";")[2] for words in assumed(bare)[:-1]] == [
        " 12.5 GB/s is taken",
        " PCIe with 12 GB/s is taken, assumed, 12 of the 16 GB/s of PCIe 3.0 x16: nothing was measured",
    ]
    assert assumed(P3)[0].startswith("cloud-ethernet is taken to reach 0.65 (± 0.22) of the bandwidth that is sold, ")


def test_a_memory_in_the_name_is_another_memory_of_the_same_gpu():
    assert data_sheet("v100-16gb").memory_bytes == 16 * GIB
    assert data_sheet("v100-16gb").peak_flops == data_sheet("v100").peak_flops
    assert data_sheet("a100-80gb").memory_bytes_per_s == 2039e9  # a sheet of its own
    with pytest.raises(UnknownNameError, match=r"'v10o'.*'v100'"):
        device_of(replace(P3, gpu="v10o"))


def test_what_cannot_be_rented_is_refused():
    with pytest.raises(InputError, match=r"p3.16xlarge.*us-east-1.*24.48"):
        Rental(replace(P3, spot_per_hour=None), spot=True)
    with pytest.raises(InputError, match=r"\b0\b.*p3.16xlarge.*us-east-1.*\b1\b.*125,000"):
        device_of(P3, machines=0)
    with pytest.raises(InputError, match="device"):
        pool_of({})


def test_a_pool_of_offers_is_read_back_from_its_file(tmp_path):
    hostile = replace(P3, region="us\u00e9 (NY2), east", source='a "page" \\ \u2603')
    pool = pool_of({Rental(P3): 2, Rental(P3, spot=True): 1, Rental(CPU): 4, Rental(hostile): 1})
    (tmp_path / "offers.toml").write_text(pool_toml(pool), "utf-8")
    again = load_cluster(tmp_path / "offers.toml")
    assert again.device_types == pool.device_types
    assert [device.name for device in pool.device_types][-1] == "aws.us-NY2-east.p3.16xlarge"
    assert pool.description == "Machines chosen from a catalogue, priced 2026-11-01"


def test_names_are_names_of_device_types_whatever_a_catalogue_says():
    from heterps_compile.cluster.pool_file import is_name  # noqa: PLC0415

    for text in ("\u96ea", "-", "x" * 200, "..", "_._"):
        assert is_name(Rental(replace(P3, provider=text, region=text, instance=text)).name)
    twice = {Rental(replace(P3, region="eu west")): 1, Rental(replace(P3, region="eu+west")): 1}
    assert [device.name for device in pool_of(twice).device_types] == [
        "aws.eu-west.p3.16xlarge.v100", "aws.eu-west.p3.16xlarge.v100-2"
    ]  # fmt: skip
    any_gpu = {Rental(P3): 1, Rental(replace(P3, gpu="t4")): 1}  # as machines to which a cloud attaches any GPU
    assert [device.name for device in pool_of(any_gpu).device_types] == [
        "aws.us-east-1.p3.16xlarge.v100", "aws.us-east-1.p3.16xlarge.t4"
    ]  # fmt: skip
    long = [Rental(replace(P3, instance="x" * 200 + end)) for end in ("+", "*", "é")]
    names = [device.name for device in pool_of(dict.fromkeys(long, 1)).device_types]
    assert len(set(names)) == 3
    assert all(map(is_name, names))


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_pool_is_read_back_from_the_file_that_is_written(name, tmp_path):
    pool = load_cluster(name)
    (tmp_path / "pool.toml").write_text(pool_toml(pool), "utf-8")
    again = load_cluster(tmp_path / "pool.toml")
    assert (again.device_types, again.links, again.parameter_server) == (
        pool.device_types, pool.links, pool.parameter_server
    )  # fmt: skip
