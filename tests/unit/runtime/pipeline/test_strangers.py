"""Strangers at the ports that gloo opens."""

import os
import socket
import struct
import time
from functools import partial

import pytest
import torch
from another_user import CAN_BE_ANOTHER, WHY_NOT, AnotherUser, hammer, loopback_ports
from ranks import run_ranks

from heterps_compile.runtime.pipeline.groups import Group
from heterps_compile.runtime.pipeline.port_guard import PortGuard, _listening


def sum_in_a_group(rank: int) -> tuple[list[float], list[str]]:
    """Sum over a new group, then knock at its port."""
    before = {inode for _, inode in _listening()}
    group = Group([0, 1], rank)
    mine = [descriptor for descriptor, inode in _listening() if inode not in before]
    knocked = [knock(socket.socket(fileno=os.dup(descriptor)).getsockname()) for descriptor in mine]
    total = torch.ones(2) * (rank + 1)
    group.sum(total).wait()
    return total.tolist(), knocked


def knock(where: tuple[str, int]) -> str:
    with socket.socket() as line:
        line.settimeout(0.2)
        try:
            line.connect(where)
        except OSError as error:
            return type(error).__name__
        return "open"


@pytest.mark.skipif(not os.path.exists("/proc/net/tcp"), reason="only Linux shuts ports")
def test_the_ports_of_a_group_are_shut_once_its_members_are_there():
    assert run_ranks(sum_in_a_group, 2) == [([3.0, 3.0], ["TimeoutError"])] * 2


def sum_under_attack(rank: int) -> tuple[list[float], list[str], bool]:
    """Sum over a group while another user takes every place there is on every port that opens."""
    attack = None
    if rank == 0:
        attack = AnotherUser(partial(hammer, time.monotonic() + 8.0, before=frozenset(loopback_ports())))
    total, knocked = sum_in_a_group(rank)
    return total, knocked, attack is None or attack.found() > 0


@pytest.mark.slow
@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_another_user_who_hammers_the_ports_neither_joins_nor_ends_a_group():
    assert run_ranks(sum_under_attack, 2) == [([3.0, 3.0], ["TimeoutError"], True)] * 2


@pytest.mark.skipif(not CAN_BE_ANOTHER, reason=WHY_NOT)
def test_a_guarded_port_takes_this_user_and_no_other():
    with PortGuard(stands=True) as guard, socket.create_server(("127.0.0.1", 0)) as listener:
        guard.look()
        port = listener.getsockname()[1]
        listener.settimeout(10)

        def stranger() -> str:
            return knock(("127.0.0.1", port))

        other = AnotherUser(stranger)
        assert other.found() == "TimeoutError"
        with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
            line.sendall(struct.pack("q", 1))
            came, _ = listener.accept()
            with came:
                assert came.recv(8) == struct.pack("q", 1)
        guard.shut()
        assert knock(("127.0.0.1", port)) == "TimeoutError"
