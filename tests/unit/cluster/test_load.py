"""Pools: the built-in ones load, a wrong file says file, key and what was expected."""

from importlib import resources
from pathlib import Path

import pytest

from heterps_compile.cluster import local
from heterps_compile.cluster.devices import Cluster, Link
from heterps_compile.cluster.link_kinds import LINK_KINDS
from heterps_compile.cluster.load import builtin_names, load_cluster
from heterps_compile.cluster.pool_toml import pool_toml
from heterps_compile.errors import InputError, UnknownNameError

PAPER = resources.files("heterps_compile.cluster").joinpath("pools", "heterps-paper.toml").read_text("utf-8")


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_pool_loads(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert all(device.price_source and device.max_units >= 1 for device in cluster.device_types)


def test_this_machine_is_what_its_container_may_use_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_LIMITS", tmp_path)
    whole = load_cluster("local").device_types[0]
    for cpu, memory in (("max 100000", "max"), ("100000 100000", "4096")):
        (tmp_path / "cpu.max").write_text(f"{cpu}\n")
        (tmp_path / "memory.max").write_text(f"{memory}\n")
        core = load_cluster("local").device_types[0]
        assert (core == whole) if memory == "max" else (core.max_units, core.memory_bytes) == (1, 4096)


def test_the_paper_pool_has_its_prices() -> None:
    prices = {device.name: device.price_per_hour for device in load_cluster("heterps-paper").device_types}
    assert prices == {"cpu-core": 0.04, "v100": 2.42}


def test_a_users_copy_of_a_builtin_pool_loads(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(PAPER)
    assert load_cluster(file).device_types == load_cluster("heterps-paper").device_types
    assert load_cluster(str(file)).name == "mine"


def test_an_unknown_pool_gives_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="'heterps-paper'"):
        load_cluster("heterps-papr")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"'nowhere/pool.toml'.*No such file"):
        load_cluster("nowhere/pool.toml")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('price = "2.42 USD/h"', 'price = "2.42"', "'v100'.*'2.42'"),
        ('price = "2.42 USD/h"', 'price = "0 USD/h"', "zero"),
        ('price = "2.42 USD/h"', "", "'v100'.*price.*missing"),
        ('price = "2.42 USD/h"', 'price = "2.42 EUR/h"', "EUR.*USD"),
        ('name = "v100"', 'name = "cpu-core"', r"stands 2\b"),
        ('name = "v100"', 'name = "../v100"', "key name"),
        ("max_units = 32", "max_units = 0", "key max_units"),
        ("efficiency = 0.6", "efficiency = 1.5", "key efficiency"),
        (
            'launch = "8 us"',
            'launch = "8 us"\nturbo = true',
            "turbo.*price_source",
        ),
        ('memory = "32 GiB"', 'memroy = "32 GiB"', r"memroy.*'memory'.*\b1\b"),
        ('memory = "32 GiB"', "", '= "8 GiB"'),
        ("float16 =", "fp16 =", "peak.*fp16.*'fp16'.*float64.*float32"),
        ("peak = {", "peak = [] #", r"peak.*\[\].*float32"),
        ('name = "v100"', 'name = "a b"', r"'a b'.*\b64\b"),
        ('kind = "gpu"', 'kind = "tpu"', "'tpu'"),
        ("[parameter_server]", "[[parameter_server]]", r"\[parameter_server\]"),
        ('currency = "USD"', "currency = ", "TOML"),
        ('price_date = "2021-11"  ', "# ", "'cpu-core'.*price_date.*missing"),
        ('price_date = "2021-11"  ', 'price_date = "2021-13"  ', "'2021-13'"),
        (
            'launch = "2 us"',
            'launch = "2 us"\nsupports = []',
            "layers",
        ),
        (
            'launch = "2 us"',
            'launch = "2 us"\nsupports = ["tea"]',
            "'tea'.*conv.*gemm",
        ),
        ('launch = "2 us"', 'launch = "2 us"\nshared_input_bandwidth = "0 GB/s"', "key shared_input_bandwidth"),
        (
            'launch = "2 us"',
            'launch = "2 us"\nunits_per_machine = 8',
            "inner_bandwidth.*units_per_machine",
        ),
        ('launch = "2 us"', 'launch = "2 us"\nnetwork_efficiency = "wifi"', 'network_efficiency.*"cloud-ethernet"'),
        ('launch = "2 us"', 'launch = "2 us"\ninner_efficiency = 1.1', "inner_efficiency.*at most 1"),
        ('launch = "2 us"', 'launch = "2 us"\nunits_per_machine = 0', r"units_per_machine.*number.*\b1\b"),
        (
            'launch = "2 us"',
            'launch = "2 us"\ninner_latency = "1 us"',
            "inner_latency.*units",
        ),
        (
            'launch = "2 us"',
            'launch = "2 us"\nwhole_machines = 1',
            r"whole_machines.*\b1\b.*wrong",
        ),
        (
            'launch = "2 us"',
            'launch = "2 us"\nwhole_machines = true',
            "whole_machines.*machines",
        ),
        (
            'launch = "2 us"',
            'launch = "2 us"\nunits_per_machine = 7\ninner_bandwidth = "9 GB/s"\ninner_latency = "1 us"\n'
            "whole_machines = true",
            r"max_units.*\b7\b",
        ),
    ],
)
def test_a_wrong_file_says_where_and_what(tmp_path: Path, old: str, new: str, fault: str) -> None:
    assert old in PAPER
    file = tmp_path / "pool.toml"
    file.write_text(PAPER.replace(old, new))
    with pytest.raises(InputError, match=fault) as caught:
        load_cluster(file)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", r"\[\[device\]\]"),
        ("device = [1]", r"\b64\b.*\[\[device\]\]"),
        ("x = " + "[" * 5000 + "]" * 5000, "TOML.*maximum recursion"),
    ],
)
def test_what_is_no_pool_at_all_is_told(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=fault):
        load_cluster(file)


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(PAPER, "utf-8-sig")
    assert load_cluster(file).device_types == load_cluster("heterps-paper").device_types


LINK = '[[link]]\nbetween = ["v100", "cpu-core"]\nbandwidth = "12 GB/s"\nlatency = "5 us"\n'


def test_links_between_types_are_read(tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(PAPER + LINK)
    assert load_cluster(file).links == (Link(("v100", "cpu-core"), 12e9, 5 * 1e-6),)


def test_the_parameter_server_is_priced_with_its_date() -> None:
    server = load_cluster("heterps-paper").parameter_server
    assert server is not None
    assert (server.price_per_hour, server.price_date, server.bytes_per_s) == (0.04, "2021-11", 2.5e9 / 8)


@pytest.mark.parametrize("date", ["2026-11-20", '"2026-11-20"'])
def test_a_date_is_a_toml_date_or_a_text(tmp_path: Path, date: str) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(PAPER.replace('"2021-11"  ', f"{date}  "))
    assert load_cluster(file).device_types[0].price_date == "2026-11-20"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (LINK.replace('"v100"', '"a100"'), "'a100'.*'cpu-core'.*'v100'"),
        (LINK + LINK.replace('["v100", "cpu-core"]', '["cpu-core", "v100"]'), r"\b2\b.*'cpu-core'.*'v100'"),
        (LINK.replace('"12 GB/s"', '"12"'), r"\b1\b.*'12'"),
        (LINK.replace("latency", "delay"), "latency"),
    ],
)
def test_a_wrong_link_says_what(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(PAPER + text)
    with pytest.raises(InputError, match=fault):
        load_cluster(file)


def test_64_types_are_taken_and_65_are_not(tmp_path: Path) -> None:
    first = PAPER[PAPER.index("[[device]]") : PAPER.index("[[device]]", PAPER.index("[[device]]") + 1)]
    for count, wrong in ((64, False), (65, True)):
        file = tmp_path / f"pool{count}.toml"
        file.write_text("".join(first.replace('"cpu-core"', f'"core-{i}"') for i in range(count)))
        if wrong:
            with pytest.raises(InputError, match=r"\b64\b"):
                load_cluster(file)
        else:
            assert len(load_cluster(file).device_types) == 64


def test_a_pool_made_by_hand_without_types_is_refused() -> None:
    with pytest.raises(InputError, match="'mine'"):
        Cluster("mine", "", "USD", ())


def test_a_link_reaches_a_part_of_its_bandwidth(tmp_path: Path) -> None:
    """A kind of link or a number; written again, the pool has the rates that are reached."""
    file = tmp_path / "pool.toml"
    inside = 'units_per_machine = 4\ninner_bandwidth = "300 GB/s"\ninner_latency = "1 us"'
    kinds = 'network_efficiency = "cloud-ethernet"\ninner_efficiency = 0.5'

    def loaded(text: str) -> Cluster:
        file.write_text(text)
        return load_cluster(file)

    sold, reached = (
        loaded(PAPER.replace('launch = "2 us"', f'launch = "2 us"\n{keys}')) for keys in (inside, f"{inside}\n{kinds}")
    )
    [changed] = [each for each in reached.device_types if each.units_per_machine == 4]
    before = sold.device_type(changed.name)
    assert changed.network_bytes_per_s == LINK_KINDS["cloud-ethernet"].efficiency * before.network_bytes_per_s
    assert changed.inner_bytes_per_s == 150e9
    assert loaded(pool_toml(reached)).device_types == reached.device_types
