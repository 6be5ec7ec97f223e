"""Where the processes of a run meet."""

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.channel import ANSWER_BYTES, Sealed, StrangerError
from heterps_compile.runtime.launch.local_ranks import worker_environment
from heterps_compile.runtime.launch.membership import Membership, is_rank, membership_of
from heterps_compile.runtime.launch.store_client import StorePlace, connect_store, host_store

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}


def listening_addresses(port: int) -> set[str]:
    """Return the addresses on which somebody listens to a port, as the kernel lists them."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text("ascii").splitlines()[1:]:
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.rpartition(":")
            if int(number, 16) == port and state == "0A":
                found.add(address)
    return found


SECRET = bytes(range(32))


@pytest.fixture
def hosted(tmp_path):
    """A store on this machine, what it said of strangers, and where it is."""
    said: list[str] = []
    place = StorePlace(SECRET, folder=tmp_path, patience_s=0.2)
    server = host_store(place, said.append)
    yield place, said
    server.close()


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux lists who listens")
def test_the_store_of_several_machines_listens_on_the_named_address_alone():
    server = host_store(StorePlace(SECRET, address="127.0.0.5"))
    assert listening_addresses(server.port) == {"0500007F"}
    server.close()


def test_several_connections_see_one_store(hosted):
    one, two = (connect_store(hosted[0], "rank 1") for _ in range(2))
    one.set("key", "value")
    assert (two.get("key"), two.check(["key", "other"]), two.num_keys()) == (b"value", False, 1)
    assert [store.compare_set("fault", "", name) for store, name in ((one, "a"), (two, "b"))] == [b"a", b"a"]
    assert (one.add("count", 2), two.add("count", 3), one.delete_key("key"), one.delete_key("key")) == (
        2,
        5,
        True,
        False,
    )
    with pytest.raises(RuntimeError, match="timeout"):
        one.wait(["never"], timedelta(seconds=0.05))
    threading.Timer(0.05, two.set, ("late", "1")).start()
    assert one.get("late") == b"1"


def test_a_store_that_is_gone_is_told_as_torch_tells_it(tmp_path):
    place = StorePlace(SECRET, folder=tmp_path, patience_s=0.2)
    server = host_store(place)
    store = connect_store(place, "rank 1")
    server.close()
    with pytest.raises(RuntimeError, match="store"):
        store.get("key")


def test_who_does_not_know_the_secret_is_turned_away_and_told_once(hosted):
    place, said = hosted
    stranger = replace(place, secret=bytes(32), run=place.run)
    for _ in range(2):
        with pytest.raises(RunError, match="secret"):
            connect_store(stranger, "rank 1")
    connect_store(place, "rank 1").set("key", "value")
    assert len(said) == 1
    assert said[0].startswith("a stranger at this machine was turned away")
    assert SECRET.hex() not in said[0] + repr(place)


def test_another_run_with_the_same_secret_is_no_stranger_and_is_not_let_in(hosted):
    place, said = hosted
    with pytest.raises(RunError):
        connect_store(replace(place, run="2"), "rank 1")
    assert said == []


def test_a_server_that_does_not_know_the_secret_gets_nothing(tmp_path):
    """A stranger has taken the port before rank 0."""
    server = host_store(StorePlace(bytes(32), folder=tmp_path), lambda _: None)
    with pytest.raises(RunError, match="secret"):
        connect_store(StorePlace(SECRET, folder=tmp_path, patience_s=0.1), "rank 1")
    server.close()


def test_a_message_that_is_changed_repeated_or_of_another_connection_is_refused():
    client, server = (Sealed(SECRET, b"nonces", is_server=is_server) for is_server in (False, True))
    first, second = client.seal(b"one"), client.seal(b"two")
    changed = bytearray(first)
    changed[5] ^= 1
    for came in (bytes(changed), second, server.seal(b"echo"), Sealed(SECRET, b"others", is_server=False).seal(b"one")):
        receiver = Sealed(SECRET, b"nonces", is_server=True)
        receiver.feed(came)
        with pytest.raises(StrangerError):
            receiver.next_message()
    server = Sealed(SECRET, b"nonces", is_server=True)
    server.feed(first + second[:7])
    assert (server.next_message(), server.next_message()) == (b"one", None)
    server.feed(second[7:] + first)
    assert server.next_message() == b"two"
    with pytest.raises(StrangerError):
        server.next_message()  # the first once more


def test_a_message_of_any_length_is_not_waited_for():
    server = Sealed(SECRET, b"nonces", is_server=True)
    server.feed((2**32 - 1).to_bytes(4, "big"))
    with pytest.raises(StrangerError):
        server.next_message()


@pytest.mark.parametrize("came", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 16, b"\0" * ANSWER_BYTES])
def test_garbage_and_silence_neither_stop_nor_hold_up_the_store(came):
    place = StorePlace(SECRET, address="127.0.0.1")
    server = host_store(place, lambda _: None)
    place = replace(place, port=server.port)
    known = connect_store(place, "rank 1")
    strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(600)]  # more than are kept
    for stranger in strangers:
        with suppress(OSError):
            stranger.sendall(came)
    known.set("key", "value")
    late = connect_store(replace(place, patience_s=20.0), "rank 2")
    assert late.get("key") == b"value"
    for stranger in strangers:
        stranger.close()
    server.close()


def test_a_port_in_use_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=rf"127.0.0.1:{port}.*Address already in use"):
            host_store(StorePlace(SECRET, address="127.0.0.1", port=port))


def test_a_host_that_cannot_be_reached_is_told():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # and does not listen; no other process gets the port
        place = StorePlace(SECRET, address="127.0.0.1", port=silent.getsockname()[1], patience_s=0.1)
        said = rf"rank 1\b.*127.0.0.1:{place.port}\b.*\b0\.1 s"
        with pytest.raises(RunError, match=said):
            connect_store(place, "rank 1")


def test_a_folder_with_a_long_name_has_a_socket_too(tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    place = StorePlace(SECRET, folder=folder)
    server = host_store(place)
    connect_store(place, "rank 1").set("key", "value")
    server.close()


SLURM = {
    "SLURM_PROCID": "2", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "3", "SLURM_JOB_ID": "71234",
    "SLURM_JOB_NODELIST": "gpu[03-05],cpu1",
}  # fmt: skip
UNLIKE = {
    **SLURM, "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "cpu1", "SLURM_JOB_ID_HET_GROUP_0": "71230",
}  # fmt: skip
SKYPILOT = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}


@pytest.mark.parametrize(
    ("environment", "member"),
    [
        (SLURM, Membership(2, 3, 1, "gpu03", 21234)),
        ({**SLURM, "MASTER_ADDR": "10.0.0.9", "MASTER_PORT": "7"}, Membership(2, 3, 1, "10.0.0.9", 7)),
        (UNLIKE, Membership(2, 3, 1, "cpu1", 21230)),
        (SKYPILOT, Membership(1, 2, 0, "10.0.0.1", 29500)),
    ],
)
def test_variables_of_schedulers_are_those_of_the_contract(environment, member):
    assert is_rank(environment)
    assert membership_of(environment) == member


@pytest.mark.parametrize(
    "environment",
    [
        {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NUM_TASKS"},
        {**SLURM, "SLURM_STEP_NUM_TASKS": "1"},
        {**SKYPILOT, "SKYPILOT_NODE_IPS": "10.0.0.1"},
    ],
)
def test_a_batch_script_and_a_single_task_are_no_ranks(environment):
    assert not is_rank(environment)


def test_what_torchrun_says():
    assert is_rank(TORCHRUN)
    assert not is_rank({"RANK": "1"})
    assert membership_of(TORCHRUN) == Membership(1, 3, 0, "10.0.0.1", 29500)


@pytest.mark.parametrize("changed", [{"RANK": "x"}, {"RANK": "3"}, {"WORLD_SIZE": "0"}, {"MASTER_PORT": "99999"}])
def test_an_environment_that_does_not_fit_is_told(changed):
    with pytest.raises(RunError):
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
