"""From which address the others reach a rank, and whether they do."""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.addresses import (
    INTERFACE_VARIABLE,
    check_reach,
    choose_address,
    interface_of,
    loopback_interface,
    own_address,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="interfaces are listed as Linux does")


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.setenv(INTERFACE_VARIABLE, "")  # so that it is put back
    monkeypatch.delenv(INTERFACE_VARIABLE)


def test_the_address_from_which_a_host_is_reached():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("no-such-host.invalid") == ""


@linux
def test_an_address_lies_on_an_interface():
    assert interface_of("127.0.0.1") == loopback_interface()
    assert interface_of("::1") in (loopback_interface(), None)  # None where there is no IPv6
    assert interface_of("192.0.2.77") is None


@pytest.mark.parametrize("addresses", [["127.0.0.1", "127.0.0.1"], ["127.0.0.1", "::1"], ["", ""]])
def test_ranks_of_one_machine_meet_on_loopback(addresses):
    assert choose_address(addresses) == ""
    assert os.environ[INTERFACE_VARIABLE] == loopback_interface()


@linux
def test_a_first_host_that_knows_itself_by_loopback_alone_listens_where_the_others_are(monkeypatch):
    monkeypatch.setattr("heterps_compile.runtime.launch.addresses.own_address", {"10.0.0.2": "10.0.0.1"}.get)
    monkeypatch.setattr(
        "heterps_compile.runtime.launch.addresses._interfaces", lambda: iter([("lo", "127.0.0.1"), ("ib0", "10.0.0.1")])
    )
    assert choose_address(["127.0.0.1", "10.0.0.2"]) == "10.0.0.1"
    assert os.environ[INTERFACE_VARIABLE] == "ib0"


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv(INTERFACE_VARIABLE, "ib1")
    monkeypatch.setattr("heterps_compile.runtime.launch.addresses.own_address", lambda _host: "10.0.0.1")
    monkeypatch.setattr(
        "heterps_compile.runtime.launch.addresses._interfaces", lambda: iter([("ib0", "10.0.0.1"), ("ib1", "10.9.0.1")])
    )
    assert choose_address(["10.0.0.1", "10.0.0.2"]) == "10.9.0.1"
    assert os.environ[INTERFACE_VARIABLE] == "ib1"


def test_a_machine_without_a_way_to_the_others_is_refused(monkeypatch):
    monkeypatch.setattr("heterps_compile.runtime.launch.addresses.own_address", lambda _host: "")
    with pytest.raises(RunError, match=r"10\.0\.0\.2"):
        choose_address(["", "10.0.0.2"])


@linux
def test_ranks_of_two_addresses_reach_each_other():
    store = HashStore()
    with ThreadPoolExecutor() as pool:
        ranks = [pool.submit(check_reach, store, rank, 3, f"127.0.0.{1 + rank // 2}") for rank in range(3)]
        assert [rank.result(timeout=30) for rank in ranks] == [None] * 3


def test_a_rank_that_is_not_reached_is_named():
    store = HashStore()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        store.set("reach/1", f"127.0.0.1 {closed.getsockname()[1]}")
        store.set("reach/0", "127.0.0.1 1")
        with pytest.raises(RunError, match=r"rank 0\b.*rank 1\b.*127.0.0.1.*Connection refused"):
            check_reach(store, 0, 2, "127.0.0.2")
