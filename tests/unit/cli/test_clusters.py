import pytest
from wording import names

from heterps_compile.cli.main import run
from heterps_compile.cluster.load import builtin_names, load_cluster

POOL = """
description = "one core\\u001b[31m"
[[device]]
name = "core"
kind = "cpu"
price = "0.04 USD/h"
price_source = "made up"
price_date = 2026-11-20
max_units = 4
memory = "8 GiB"
peak = { float32 = "70 GFLOP/s" }
memory_bandwidth = "10 GB/s"
network_bandwidth = "2.5 Gbit/s"
network_latency = "20 us"
input_bandwidth = "500 MB/s"
launch = "2 us"
efficiency = 0.6
compute_parallel = 0.99
data_parallel = 0.99
"""


def test_a_pool_is_shown(capsys):
    assert run(["clusters", "show", "heterps-paper"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("heterps-paper: ")
    assert "v100    " in out
    assert "2.42" in out


@pytest.mark.parametrize("name", builtin_names())
def test_the_file_of_a_pool_is_printed_to_be_copied(capsys, tmp_path, name):
    assert run(["clusters", "show", name, "--toml"]) == 0
    (tmp_path / "mine.toml").write_text(capsys.readouterr().out)
    assert load_cluster(tmp_path / "mine.toml").device_types == load_cluster(name).device_types


def test_links_and_servers_are_shown_below_the_types(capsys, tmp_path):
    more = """
[[link]]
between = ["core", "core"]
bandwidth = "12 GB/s"
latency = "5 us"
[parameter_server]
price = "0.04 USD/h"
price_source = "made up"
price_date = 2026-11-20
bandwidth = "2 GB/s"
"""
    (tmp_path / "pool.toml").write_text(POOL + more)
    assert run(["clusters", "show", str(tmp_path / "pool.toml")]) == 0
    out = capsys.readouterr().out
    assert "made up, 2026-11-20" in out
    server = "parameter server, a core: 0.04 USD/h, 2 GB/s, 8 GiB, 108 us a table"
    assert out.endswith(f"\nlink core - core: 12 GB/s, 5 us\n\n{server}\n")


def test_an_unknown_pool_names_the_nearest(capsys):
    assert run(["clusters", "show", "heterps-papr"]) == 1
    assert names(capsys.readouterr().err, "'heterps-papr'", "'heterps-paper'?")


def test_a_file_is_shown_with_its_text_made_harmless(capsys, tmp_path):
    (tmp_path / "pool.toml").write_text(POOL)
    assert run(["clusters", "show", str(tmp_path / "pool.toml")]) == 0
    assert capsys.readouterr().out.startswith(r"pool: one core\x1b[31m" + "\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (POOL.replace('"8 GiB"', "8"), "memory"),
        (POOL.replace("0.04 USD/h", "0 USD/h"), "price"),
        ("[[device", "is not TOML"),
        (None, "cannot read the cluster file"),
    ],
)
def test_a_faulty_file_is_one_clear_line(capsys, tmp_path, text, said):
    if text is not None:
        (tmp_path / "pool.toml").write_text(text)
    assert run(["clusters", "check", str(tmp_path / "pool.toml")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1
