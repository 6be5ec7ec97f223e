"""Where the processes of a run meet."""

import socket
from pathlib import Path

import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.store import (
    Membership,
    connect_store,
    host_store,
    is_under_torchrun,
    membership_of,
    worker_environment,
)

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}


def listening_addresses(port: int) -> set[str]:
    """Give the addresses on which somebody listens to a port, as the kernel lists them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text("ascii").splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.rpartition(":")
            if int(number, 16) == port and state == "0A":
                found.add(address)
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lists who listens")
def test_the_store_listens_on_loopback_alone():
    store = host_store()
    assert listening_addresses(store.port) == {"0100007F"}


def test_several_connections_see_one_store():
    store = host_store()
    member = Membership(1, 2, 1, "127.0.0.1", store.port)
    one, two = connect_store(member), connect_store(member)
    one.set("key", "value")
    assert two.get("key") == store.get("key") == b"value"


def test_a_port_in_use_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            RunError, match=rf"cannot listen on 127.0.0.1:{port}: Address already in use; choose another"
        ):
            host_store("127.0.0.1", port)


def test_a_host_that_cannot_be_reached_is_told(monkeypatch, capfd):
    monkeypatch.setattr("heterps_compile.runtime.launch.store.CONNECT_S", 1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(RunError, match=f"rank 1 cannot reach the store of the run at 127.0.0.1:{port} within 1 s"):
        connect_store(Membership(1, 2, 1, "127.0.0.1", port))


def test_what_torchrun_says():
    assert is_under_torchrun(TORCHRUN)
    assert not is_under_torchrun({"RANK": "1"})
    assert membership_of(TORCHRUN) == Membership(1, 3, 0, "10.0.0.1", 29500)
    assert membership_of({**TORCHRUN, "RANK": "0"}).hosts_store
    assert not membership_of({**TORCHRUN, "RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"}).hosts_store


@pytest.mark.parametrize("changed", [{"RANK": "x"}, {"RANK": "3"}, {"WORLD_SIZE": "0"}, {"MASTER_PORT": "99999"}])
def test_an_environment_that_does_not_fit_is_told(changed):
    with pytest.raises(RunError, match="the environment has"):
        membership_of({**TORCHRUN, **changed})


def test_workers_of_this_machine_talk_over_loopback(monkeypatch):
    monkeypatch.setenv("RANK", "7")
    environment = worker_environment(2)
    assert environment["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert environment["OMP_NUM_THREADS"] == "2"
    assert "RANK" not in environment


def test_what_c_libraries_say_of_errors_that_are_raised_too_is_left_out_unless_asked_for(monkeypatch):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    assert worker_environment(1)["TORCH_CPP_LOG_LEVEL"] == "FATAL"
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    assert worker_environment(1)["TORCH_CPP_LOG_LEVEL"] == "INFO"
