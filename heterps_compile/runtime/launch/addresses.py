"""How ranks of several machines reach each other: from which address, and whether they do.

gloo listens where the machine's own name leads. On many systems that is an address that nobody else can reach
(``127.0.1.1 worker-2`` in Debian's /etc/hosts). So every rank says from which address it reaches the first host, and
gloo is given the interface that has it.

Left out: the store, which all reach before (``env_rank.py``).
"""

import fcntl
import os
import re
import socket
import struct
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import RunError

from .store_values import read_word

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

LOOPBACK = "127.0.0.1"
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"

_ADDRESS_AND_PORT = re.compile(r"[0-9A-Fa-f.:%]{2,80} [0-9]{1,5}")
_CONNECT_S = 10.0
_DISCARD_PORT = 9  # any will do: nothing is sent
_SIOCGIFCONF = 0x8912  # linux/sockios.h: name and IPv4 address of every interface
_ENTRY_BYTES, _NAME_BYTES, _ADDRESS_BYTES = 40, 16, slice(20, 24)  # struct ifreq on 64 bits
_MOST_ENTRIES = 1024


def own_address(host: str) -> str:
    """Return the address of this machine from which a host is reached; "" where there is no way to it."""
    with suppress(OSError):
        for family, kind, _, _, where in socket.getaddrinfo(host, _DISCARD_PORT, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0])
    return ""


def choose_address(addresses: Sequence[str]) -> str:
    """Have gloo listen where the other ranks reach this one; give the address, "" where all are on one machine.

    The user's word (``GLOO_SOCKET_IFNAME``) comes first.

    Args:
        addresses: From which every rank reaches the first host; on that host it may be one of loopback.

    Raises:
        RunError: where this machine has no way to the others.
    """
    outside = next((address for address in addresses if address and not is_loopback(address)), None)
    if outside is None:
        os.environ.setdefault(INTERFACE_VARIABLE, loopback_interface())
        return ""
    own = own_address(outside)
    if not own:
        raise RunError(f"this machine has no way to {outside}, where another rank is; every one must reach every other")
    name = interface_of(own)
    if name is not None:
        chosen = os.environ.setdefault(INTERFACE_VARIABLE, name)
        return own if chosen == name else next((its for other, its in _interfaces() if other == chosen), own)
    return own


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an address of this machine; None where the system does not say."""
    return next((name for name, its in _interfaces() if its == address), None)


def check_reach(store: "Store", rank: int, world_size: int, own: str, *, patience_s: float = _CONNECT_S) -> None:
    """Check that this rank reaches one of every other machine; every rank calls it.

    Args:
        store: Of the run.
        rank: This one.
        world_size: Ranks in all.
        own: Address of this rank; those with the same one are on one machine.
        patience_s: How long to try.

    Raises:
        RunError: naming the rank that is not reached, and its address.
    """
    with _answering(own) as listener:
        store.set(f"reach/{rank}", f"{own} {listener.getsockname()[1]}")
        met = {own}
        for other in range(world_size):
            said = read_word(store, f"reach/{other}", _ADDRESS_AND_PORT, "an address and a port")
            address, _, port = said.partition(" ")
            if address not in met:
                met.add(address)
                _connect(rank, other, address, int(port), patience_s)
        store.set(f"reached/{rank}", "1")
        store.wait([f"reached/{other}" for other in range(world_size)])


@contextmanager
def _answering(own: str) -> Iterator[socket.socket]:
    """Listen, and close every connection that comes."""
    with socket.create_server((own, 0), family=_family(own)) as listener:

        def answer() -> None:
            with suppress(OSError):  # it was shut: all have reached all
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=answer, name="reach", daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _connect(rank: int, other: int, address: str, port: int, patience_s: float) -> None:
    try:
        socket.create_connection((address, port), timeout=patience_s).close()
    except OSError as error:
        raise RunError(
            f"rank {rank} cannot reach rank {other} at {address}: {error.strerror or error}; every machine must reach "
            f"every other, on any port (where {address} is the wrong one of its addresses, set {INTERFACE_VARIABLE} "
            f"there to the interface to use)"
        ) from error


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yield name and address of every interface, as Linux lists them."""
    if sys.platform != "linux":
        return
    entries = array("B", bytes(_MOST_ENTRIES * _ENTRY_BYTES))
    where, length = entries.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        told = fcntl.ioctl(any_socket, _SIOCGIFCONF, struct.pack("iP", length, where))
    for at in range(0, struct.unpack("iP", told)[0], _ENTRY_BYTES):
        entry = entries[at : at + _ENTRY_BYTES].tobytes()
        yield entry[:_NAME_BYTES].partition(b"\0")[0].decode(), socket.inet_ntop(socket.AF_INET, entry[_ADDRESS_BYTES])
    with suppress(OSError):  # where there is no IPv6
        for line in Path("/proc/net/if_inet6").read_text("ascii").splitlines():
            number, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))


def is_loopback(address: str) -> bool:
    """Tell whether an address is this machine's to itself."""
    return address in ("localhost", "::1") or address.startswith("127.")


def loopback_interface() -> str:
    """Return the name of the loopback interface: ``lo`` on Linux, ``lo0`` on macOS."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name.startswith("lo")), "lo")
