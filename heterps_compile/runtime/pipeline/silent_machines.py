"""Connections to a machine that is gone end by themselves.

Where a process dies, its machine closes its connections; where the machine does, or the wire to it, nobody does, and
who waits for an answer waits for ever. The system of this machine notices: it asks an idle connection for a sign of
life, and counts how long what was sent is not acknowledged.

Left out: a process that is stopped on a machine that lives: its connections stay.
"""

import math
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress

from .port_guard import own_sockets


def end_silent_connections(addresses: Iterable[str], after_s: float) -> int:
    """Have connections of this process to some machines broken once these are silent.

    Args:
        addresses: Of the machines.
        after_s: Of silence; a second at least.

    Returns:
        How many connections there are.
    """
    if sys.platform != "linux":
        return 0
    machines, found = _numbers(addresses), 0
    for _, copy in own_sockets():
        with copy, suppress(OSError):  # one that listens has no other side
            if copy.getpeername()[0].partition("%")[0] not in machines:
                continue
            copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, math.floor(after_s / 3)))
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, math.floor(after_s / 3)))
            copy.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, math.ceil(1000 * max(1.0, after_s)))
            found += 1
    return found


def _numbers(addresses: Iterable[str]) -> set[str]:
    """Return the numbers of addresses that may be names."""
    found = set[str]()
    for address in addresses:
        with suppress(OSError):
            found |= {str(one[4][0]).partition("%")[0] for one in socket.getaddrinfo(address, None)}
    return found
