"""Who may connect to a port that gloo opens: processes of this user on this machine, and the other machines of the run.

gloo says nothing of its ports and lets nobody ask. But the system drops packets for a socket by a rule that its owner
sets (a classic BPF program, which needs no privilege), and lists every connection with the user it belongs to. So while
ranks connect::

    port opens                       rule: drop all
    a rank's address is in the store rule: + that machine, where it is another
    a connection from here is asked  rule: + its port, where it is this user's; the system asks again after a second
    all are connected                rule: drop all, for good

Left out: systems other than Linux, where everybody may connect and the greeting (``strangers.py``) tells who did.
"""

import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ctypes import addressof, create_string_buffer
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from heterps_compile.runtime.c10d import KeptStore, Store

_ATTACH_FILTER, _ACCEPTS = 26, 30  # SO_ATTACH_FILTER and SO_ACCEPTCONN, asm-generic/socket.h
_LOAD_WORD, _LOAD_HALF, _EQUALS, _RETURN = 0x20, 0x28, 0x15, 0x06  # linux/bpf_common.h
_ALL_BYTES = 0xFFFFFFFF
_NETWORK_HEADER = 0xFFF00000  # SKF_NET_OFF: loads count from the network header; others from that of TCP
_SOURCE_AT = {socket.AF_INET: 12, socket.AF_INET6: 8}
_INSTRUCTION = struct.Struct("HBBI")
_TABLES = {socket.AF_INET: Path("/proc/net/tcp"), socket.AF_INET6: Path("/proc/net/tcp6")}
_ASKED = ("02", "01")  # a connection that is asked for, and one that is there
_LOOK_S = 0.01

_Source = tuple[bytes, int]
"""An address and a port, 0 for any."""


class PortGuard:
    """Guards the ports that this process opens while a block runs."""

    def __init__(self, *, stands: bool) -> None:
        """Set up.

        Args:
            stands: Whether to let nobody in but ranks; else everybody, until :meth:`shut`.
        """
        self._stands = stands and sys.platform == "linux"
        self._before = {inode for _, inode in _listening()}
        self._ports: dict[int, _Port] = {}
        self._machines: set[bytes] = set()
        self._one_at_a_time = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="port guard", daemon=True)

    def __enter__(self) -> "PortGuard":
        if self._stands:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._stands:
            self._thread.join()
        for port in self._ports.values():
            port.copy.close()

    def look(self) -> str:
        """Guard what has been opened since the last time; give an address that it is on, "" where it is none."""
        with self._one_at_a_time:
            for descriptor, inode in _listening():
                if inode not in self._before and inode not in self._ports:
                    self._ports[inode] = _Port(socket.socket(fileno=os.dup(descriptor)))
            for port in self._ports.values():
                port.admit(self._machines)
            return next((port.address for port in self._ports.values()), "")

    def know(self, address: str) -> None:
        """Let in the machine of another rank."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self._one_at_a_time:
            self._machines.add(socket.inet_pton(family, address.partition("%")[0]))

    def shut(self) -> None:
        """Drop whatever comes to these ports from now on; connections that are there stay."""
        self._over.set()
        if self._stands:
            self._thread.join()
        for descriptor, inode in _listening():
            if inode not in self._before:
                with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                    _drop_all_but(copy, ())

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look()


class _Port:
    """A port that listens."""

    def __init__(self, copy: socket.socket) -> None:
        """Let nobody in, and put out who was there before anybody could know of it.

        Args:
            copy: Of its socket.
        """
        self.copy, self.family = copy, copy.family
        self.address, self._number = copy.getsockname()[:2]
        self._own = socket.inet_pton(self.family, self.address.partition("%")[0])
        self._admitted: frozenset[_Source] | None = None

    def admit(self, machines: set[bytes]) -> None:
        """Let in other machines, and connections that this user's processes ask for; put out all others."""
        wanted = frozenset({*self._asked_for(), *((machine, 0) for machine in machines if machine != self._own)})
        if wanted != self._admitted:
            self._admitted = wanted
            _drop_all_but(self.copy, sorted(wanted))
        for line in _accepted(self.family, self._number):
            with line, suppress(OSError):
                address, number = line.getpeername()[:2]
                packed = socket.inet_pton(self.family, address.partition("%")[0])
                if not {(packed, number), (packed, 0)} & wanted:
                    line.shutdown(socket.SHUT_RDWR)

    def _asked_for(self) -> Iterator[_Source]:
        user, here = str(os.geteuid()), _as_listed(self._own, self._number)
        with suppress(OSError):
            for row in _TABLES[self.family].read_text("ascii").splitlines()[1:]:
                (
                    _,
                    source,
                    target,
                    state,
                    *_,
                ) = words = row.split()
                if target == here and state in _ASKED and words[7] == user:
                    address, _, number = source.partition(":")
                    yield _from_listed(address), int(number, 16)


def _as_listed(address: bytes, number: int) -> str:
    """Return an address as the system lists it: words of four bytes in this machine's order."""
    words = struct.unpack(f">{len(address) // 4}I", address)
    return "".join(f"{socket.ntohl(word):08X}" for word in words) + f":{number:04X}"


def _from_listed(text: str) -> bytes:
    words = [socket.htonl(int(text[at : at + 8], 16)) for at in range(0, len(text), 8)]
    return struct.pack(f">{len(words)}I", *words)


def _drop_all_but(listener: socket.socket, sources: Sequence[_Source]) -> None:
    """Have the system drop what comes to a socket from anywhere but these sources."""
    program: list[bytes] = []
    at = _NETWORK_HEADER + _SOURCE_AT[listener.family]
    for address, number in sources:
        tests = [(_LOAD_WORD, at + 4 * place, word) for place, (word,) in enumerate(struct.iter_unpack(">I", address))]
        tests += [(_LOAD_HALF, 0, number)] if number else []
        left = 2 * len(tests) + 1
        for load, where, expected in tests:
            left -= 2
            program += [_INSTRUCTION.pack(load, 0, 0, where), _INSTRUCTION.pack(_EQUALS, 0, left, expected)]
        program.append(_INSTRUCTION.pack(_RETURN, 0, 0, _ALL_BYTES))
    program.append(_INSTRUCTION.pack(_RETURN, 0, 0, 0))
    content = b"".join(program)
    kept = create_string_buffer(content, len(content))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", len(program), addressof(kept)))


def own_sockets() -> Iterator[tuple[int, socket.socket]]:
    """Yield descriptor and a copy of every TCP socket of this process, where the system tells."""
    if sys.platform != "linux":
        return
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                copy = socket.socket(fileno=os.dup(int(name)))
                if copy.family in _TABLES and copy.type == socket.SOCK_STREAM:
                    yield int(name), copy
                else:
                    copy.close()


def _listening() -> Iterator[tuple[int, int]]:
    """Yield descriptor and inode of every socket of this process that listens."""
    for descriptor, copy in own_sockets():
        with copy:
            if copy.getsockopt(socket.SOL_SOCKET, _ACCEPTS):
                yield descriptor, os.fstat(copy.fileno()).st_ino


def _accepted(family: int, number: int) -> Iterator[socket.socket]:
    """Yield copies of the connections that came to a port of this process."""
    for _, copy in own_sockets():
        is_one = copy.family == family and not copy.getsockopt(socket.SOL_SOCKET, _ACCEPTS)
        if is_one and copy.getsockname()[1] == number:
            yield copy
        else:
            copy.close()


def guarded_store(store: Store, guard: PortGuard, rank: int, size: int) -> Store:
    """Return a store that has new ports guarded before it tells anybody of them.

    Args:
        store: What the members meet in.
        guard: Of this one's ports.
        rank: Of this one.
        size: How many there are.
    """
    return _GuardedStore(store, guard, rank, size)


class _GuardedStore(KeptStore):
    """What a group meets in: what it sets is its address, what it waits for are those of others."""

    def __init__(self, store: Any, guard: PortGuard, rank: int, size: int) -> None:
        super().__init__()
        self._store, self._guard, self._rank = store, guard, rank
        self._unknown = set(range(size)) - {rank}

    def set(self, key: str, value: str | bytes) -> None:
        """Guard the port, then say where it is."""
        address = self._guard.look()
        if address:
            self._store.set(f"guarded/{self._rank}", address)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Wait for what another says."""
        value = bytes(self._store.get(key))
        self._hear()
        return value

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until others have said something."""
        if timeout is None:
            self._store.wait(list(keys))
        else:
            self._store.wait(list(keys), timeout)
        self._hear()

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for what several others say."""
        values = [bytes(value) for value in self._store.multi_get(list(keys))]
        self._hear()
        return values

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Say several things."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether others have said something."""
        return bool(self._store.check(list(keys)))

    def add(self, key: str, value: int) -> int:
        """Add to a number and give it."""
        return int(self._store.add(key, value))

    def append(self, key: str, value: str | bytes) -> None:
        """Add to the end of a value."""
        self._store.append(key, value)

    def has_extended_api(self) -> bool:
        """Tell whether several values can be asked for at once."""
        return False

    def _hear(self) -> None:
        for other in sorted(self._unknown):
            if self._store.check([f"guarded/{other}"]):
                self._guard.know(bytes(self._store.get(f"guarded/{other}")).decode("ascii"))
                self._unknown.discard(other)
