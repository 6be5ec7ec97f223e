"""Strangers at the ports that gloo opens."""

import gc
import os
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed as dist
from another_user import CAN_BE_ANOTHER, WHY_NOT, AnotherUser, hammer, knock, loopback_ports
from loopback import using_loopback
from ranks import run_ranks

from heterps_compile.runtime.pipeline.port_guard import PortGuard, _listening, guarded_store
from heterps_compile.runtime.pipeline.rank_group import GlooGroup
from heterps_compile.runtime.pipeline.strangers import connect_without_strangers
from heterps_compile.runtime.pipeline.world import world


def sum_in_a_group(rank: int) -> tuple[list[float], list[str]]:
    """Sum over a new group, then knock at its port."""
    before = {inode for _, inode in _listening()}
    group = GlooGroup(world().next_store((0, 1)), (0, 1), rank)
    mine = [descriptor for descriptor, inode in _listening() if inode not in before]
    knocked = [knock(socket.socket(fileno=os.dup(descriptor)).getsockname()) for descriptor in mine]
    total = torch.ones(2) * (rank + 1)
    group.sum(total).wait()
    return total.tolist(), knocked


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="only Linux shuts ports")
def test_the_ports_of_a_group_are_shut_once_its_members_are_there():
    assert run_ranks(sum_in_a_group, 2) == [([3.0, 3.0], ["TimeoutError"])] * 2


def sum_under_attack(rank: int) -> tuple[list[float], list[str], str]:
    """Sum over a group while another user takes every place there is on every port that opens."""
    attack = None
    if rank == 0:
        attack = AnotherUser(partial(hammer, 8.0, before=frozenset(loopback_ports())))
    with socket.create_server(("127.0.0.1", 0)):  # stays open, to see that the other user does knock at new ports
        total, knocked = sum_in_a_group(rank)
        found = 1 if attack is None else attack.found()
    return total, knocked, "connected" if isinstance(found, int) and found else f"found {found}"


@pytest.mark.slow  # hammers for seconds, alone on the loopback interface
@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_another_user_who_hammers_the_ports_neither_joins_nor_ends_a_group():
    assert run_ranks(sum_under_attack, 2, attacked=True) == [([3.0, 3.0], ["TimeoutError"], "connected")] * 2


def test_whoever_comes_first_waits_and_blames_no_stranger():
    store, made, began = dist.HashStore(), [], Event()

    def join(rank: int) -> Any:
        def make(tried: Any, timeout: timedelta) -> Any:
            made.append(rank)
            began.set()
            return dist.ProcessGroupGloo(tried, rank, 2, timeout)

        return connect_without_strangers(make, lambda: None, store, rank, 2, patience=timedelta(minutes=1))

    with using_loopback(), ThreadPoolExecutor(1) as pool:
        first = pool.submit(join, 0)
        assert not began.wait(0.3)
        groups = [join(1), first.result()]
    assert sorted(made) == [0, 1]
    assert [group.size() for group in groups] == [2, 2]


def test_a_store_behind_a_guard_serves_whom_torch_alone_holds_it_for():
    with PortGuard(stands=False) as guard:
        held = dist.PrefixStore("held", guarded_store(dist.HashStore(), guard, 0, 1))
    gc.collect()
    held.set("key", "value")
    assert held.get("key") == b"value"


@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_a_guarded_port_takes_this_user_and_no_other():
    with using_loopback(), PortGuard(stands=True) as guard, socket.create_server(("127.0.0.1", 0)) as listener:
        guard.look()
        port = listener.getsockname()[1]
        listener.settimeout(10)

        other = AnotherUser(partial(knock, ("127.0.0.1", port)))
        assert other.found() == "TimeoutError"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            line.sendall(struct.pack("q", 1))
            came, _ = listener.accept()
            with came:
                assert came.recv(8) == struct.pack("q", 1)
        guard.shut()
        assert knock(("127.0.0.1", port)) == "TimeoutError"
