"""The network between hosts, measured by one process on each: on loopback, and on a wire of a known rate and delay."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from network_hosts import NotPermittedError, two_hosts
from processes import PATIENCE_S, begin_command, end_of, free_port, wait_for
from small_inputs import write_small_inputs

from heterps_compile.cli.main import run
from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import RunError
from heterps_compile.profiling.host_links import LinkRequest, measure_host_links
from heterps_compile.runtime.launch import env_rank
from heterps_compile.runtime.launch.membership import Membership

BITS_PER_S, DELAY_S = 200e6, 2e-3
TOKEN_BUCKET = ("tbf", "rate", f"{BITS_PER_S:.0f}bit", "burst", "16kb", "limit", "8mb")


def contract(rank: int, port: int, size: int = 2, address: str = "127.0.0.1") -> dict[str, str]:
    numbers = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "MASTER_PORT": port}
    return {**os.environ, "MASTER_ADDR": address, **{name: str(number) for name, number in numbers.items()}}


def begin(folder: Path, rank: int, port: int, *words: str) -> "subprocess.Popen[str]":
    command = ("calibrate", "--link", "-o", "linked.toml", *words)
    return begin_command(folder, *command, environment=contract(rank, port))


def has_begun(process: "subprocess.Popen[str]", rank: int, port: int) -> bool:
    """Return whether rank 0 listens, or rank 1 has loaded what looks for it."""
    if rank == 0:
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False
    return "libtorch_cpu" in Path(f"/proc/{process.pid}/maps").read_text()


@pytest.mark.parametrize("first", [0, 1])
def test_two_ranks_add_their_link_to_the_pool_whoever_comes_first(tmp_path, first):
    port = free_port()
    started = {first: begin(tmp_path, first, port)}
    wait_for(lambda: has_begun(started[first], first, port), started[first])
    started[1 - first] = begin(tmp_path, 1 - first, port)
    (code, out, err), (other_code, other_out, other_err) = (end_of(started[rank], PATIENCE_S) for rank in (0, 1))
    assert (code, other_code) == (0, 0), (err, other_err)
    (link,) = load_cluster(tmp_path / "linked.toml").links
    assert link.between == ("core", "core")
    assert link.bytes_per_s > 1e6
    assert 0 < link.latency_s < 1
    assert "link between core and core: " in out
    assert "both processes are on the host" in out
    assert (other_out, other_err.count("rank 0 has written 'linked.toml'")) == ("", 1)

    write_small_inputs(tmp_path)
    words = ("m.onnx", "--batch=4", "--shape=rows=2", "--method=greedy", "--no-verify", "--cluster=linked.toml", "-q")
    assert end_of(begin_command(tmp_path, *words, "-o", "out"), PATIENCE_S)[0] == 0
    (planned,) = json.loads((tmp_path / "out" / "plan.json").read_text())["cluster"]["links"]
    assert planned["bytes_per_s"] == link.bytes_per_s


@pytest.mark.parametrize(("rank", "said"), [(0, "rank 1 of 2 did not come within 1 s"), (1, "cannot reach 127.0.0.1")])
def test_a_peer_that_never_comes_is_reported_in_one_message(tmp_path, rank, said):
    code, out, err = end_of(begin(tmp_path, rank, free_port(), "--wait", "1"), PATIENCE_S)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("Error: ")
    assert said in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("1", "Error: WORLD_SIZE is 1; expected at least 2. Fix: "),
        (None, 'torchrun --nnodes 2 --nproc-per-node 1 --node-rank "${NODE_RANK:?}" --master-addr "${MASTER_ADDR:?}" '
         "--master-port 29500 --no-python heterps-compile calibrate --link --cluster local -o calibrated.toml\n"),
    ],
)  # fmt: skip
def test_one_process_alone_is_refused_with_the_way_to_start_more(tmp_path, monkeypatch, capsys, size, said):
    monkeypatch.chdir(tmp_path)
    for name, value in contract(0, 29_500).items():
        monkeypatch.setenv(name, value)
    if size is None:
        monkeypatch.delenv("WORLD_SIZE")
    else:
        monkeypatch.setenv("WORLD_SIZE", size)
    assert run(["calibrate", "--link"]) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def world(monkeypatch, tmp_path):
    """Return the errors of ranks that ask to measure; they are threads that meet in one store."""
    store = dist.HashStore()
    monkeypatch.setattr(env_rank, "_meeting", lambda *_: store)

    def ask(types, cluster="heterps-paper"):
        def one(rank):
            member = Membership(rank, len(types), rank, "127.0.0.1", 29_500)
            with pytest.raises(RunError) as refused:
                measure_host_links(member, LinkRequest(cluster, types[rank], 60.0, tmp_path / "linked.toml"))
            return str(refused.value)

        with ThreadPoolExecutor(len(types)) as pool:
            return list(pool.map(one, range(len(types))))

    return ask


def test_several_processes_on_one_of_the_hosts_are_refused_by_all(world, tmp_path):
    (said,) = set(world(["v100", "v100", "cpu-core"]))
    assert "are 3 of 3; expected one on each host. Fix: torchrun --nproc-per-node 1" in said
    assert list(tmp_path.iterdir()) == []


def test_a_device_type_that_the_pool_lacks_is_refused_by_all(world):
    here, there = world(["v100", "a100"])
    assert here == f"rank 1: {there}"
    assert there.startswith("--device-type is 'a100'; expected ")


@pytest.fixture
def hosts(tmp_path):
    try:
        with two_hosts(tmp_path) as made:
            yield made
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces with shaped links here: {error}")


def on_hosts(hosts, *words: str) -> list["subprocess.Popen[str]"]:
    command = (sys.executable, "-m", "heterps_compile", "calibrate", "--link", *words)
    return [
        subprocess.Popen(
            host.words(*command),
            env={**contract(rank, 29_500, address=hosts[0].address), **host.environment(), "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for rank, host in enumerate(hosts)
    ]


def shape(hosts, *discipline: str) -> None:
    try:
        for host in hosts:
            host.shape(*discipline)
    except NotPermittedError as error:
        pytest.skip(f"no network namespaces with shaped links here: {error}")


def measured(hosts):
    """Return the link that was written on the disk of rank 0."""
    output = hosts[0].disk / "linked.toml"
    ends = [end_of(process, PATIENCE_S) for process in on_hosts(hosts, "-o", str(hosts[0].mounted / output.name))]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert "no network" not in ends[0][1]
    assert not (hosts[1].disk / output.name).exists()
    (link,) = load_cluster(output).links
    return link


@pytest.mark.slow  # hosts of their own, whose processes start cold
def test_the_bandwidth_is_that_of_the_wire(hosts):
    shape(hosts, *TOKEN_BUCKET)
    assert measured(hosts).bytes_per_s == pytest.approx(BITS_PER_S / 8, rel=0.15)


@pytest.mark.slow  # hosts of their own, whose processes start cold
def test_the_latency_is_that_of_the_wire(hosts):
    shape(hosts, "netem", "delay", f"{DELAY_S * 1e6:.0f}us", "rate", f"{BITS_PER_S:.0f}bit", "limit", "100000")
    link = measured(hosts)
    assert DELAY_S / 2 <= link.latency_s <= DELAY_S * 2
    assert link.bytes_per_s == pytest.approx(BITS_PER_S / 8, rel=0.15)


@pytest.mark.slow  # hosts of their own, whose processes start cold
def test_a_wire_that_breaks_ends_both_and_writes_nothing(hosts):
    shape(hosts, "tbf", "rate", "10mbit", "burst", "16kb", "limit", "8mb")
    started = on_hosts(hosts, "-o", str(hosts[0].mounted / "linked.toml"))
    for process in started:
        assert {"node-1", "node-2"} <= set(process.stderr.readline().split())
    hosts[0].unplug()
    for code, out, err in [end_of(process, PATIENCE_S) for process in started]:
        assert (code, out, err.count("Error: ")) == (1, "", 1), err
    assert not (hosts[0].disk / "linked.toml").exists()
