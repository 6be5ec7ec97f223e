"""The ranks of one machine: their memory, their doorbells, and who leaves.

Ranks meet once. Every rank has one arena, which the others map, and one doorbell (an eventfd), by which the others wake
it. Both are passed over a socket. Tables of mailboxes are opened over the same sockets later (``mailboxes.py``).

A socket would do for a doorbell, but Linux takes a process that sends on one to be about to sleep and wakes the other
on the same core, where both compute for milliseconds. Sockets are there to meet and to notice who leaves; they are
abstract ones, which have no file, and the system says which user is on the other side.

A doorbell is for one thread: a thread that waits by itself has neighbours of its own.

Left out: what the arenas contain (``arena.py``); ranks of other machines and users, and processors that reorder writes
(``over_gloo.py``).
"""

import mmap
import os
import platform
import select
import socket
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import Store

from .arena import Arena, check_place, map_bytes
from .spin import WaitPolicy

WAIT = WaitPolicy()

_SOCKETS = Path("/proc/net/unix")
_IN_ORDER = ("x86_64", "AMD64")
_RANK = struct.Struct("<q")
_TABLE = struct.Struct("<qq")  # its place in the arena, its bytes
_CREDENTIALS = struct.Struct("3i")
_RETRY_S = 0.01


def machine() -> str:
    """Return a text that is the same in all processes that can be neighbours; "" where there can be none."""
    if not hasattr(os, "memfd_create") or platform.machine() not in _IN_ORDER:
        return ""
    return f"user-{os.getuid()}" if os.access(_SOCKETS, os.R_OK) else ""


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """What a rank has of another.

    Attributes:
        connection: Ends when it leaves.
        arena: Descriptor of what it writes.
        doorbell: Descriptor of what wakes it.
        mapped: Memory of its arena, by place.
    """

    connection: socket.socket
    arena: int
    doorbell: int
    mapped: dict[int, Tensor] = field(default_factory=dict)


class Neighbours:
    """The connections of one rank to the others of its machine.

    Attributes:
        ranks: Those others.
        rank: This one.
        arena: What this rank writes.
        gone: Those of the others that were seen to leave.
        wait: How this rank waits.
    """

    arena: Arena

    def __init__(self, store: Store, ranks: Sequence[int], rank: int, *, wait: WaitPolicy = WAIT) -> None:
        """Connect; waits for the others, of which every one does the same.

        Args:
            store: Of this meeting alone.
            ranks: That may be neighbours.
            rank: This one of them.
            wait: How this rank waits.

        Raises:
            RunError: where they do not meet.
        """
        mine, name = machine(), token_hex(16)
        self.rank, self.wait, self.gone = rank, wait, set[int]()
        self._others: dict[int, _Neighbour] = {}
        self._descriptors: list[int] = []
        listener = _listen(name, len(ranks), wait.patience_s) if mine else None
        store.set(str(rank), f"{mine} {name}")
        said = {other: store.get(str(other)).decode("utf-8", "replace").partition(" ") for other in ranks}
        here = _names_here() if mine else set()
        names = {other: its_name for other, (its, _, its_name) in said.items() if its == mine and its_name in here}
        self.ranks = tuple(other for other in names if other != rank)
        if listener is not None:
            with listener:
                self._meet(listener, {other: names[other] for other in self.ranks})

    def _meet(self, listener: socket.socket, names: Mapping[int, str]) -> None:
        """Connect to lower ranks, let higher ones connect, and exchange arenas and doorbells with all of them."""
        self.arena, self._doorbell = Arena(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptors = [self.arena.descriptor, self._doorbell]
        self._poller = select.poll()
        self._poller.register(self._doorbell, select.POLLIN)
        lower = [other for other in names if other < self.rank]
        try:
            lines = [_connect(names[other], other, self.wait.patience_s) for other in lower]
            for line in lines:
                self._greet(line)
            while len(lines) < len(names):
                line, _ = listener.accept()
                line.settimeout(self.wait.patience_s)
                if _is_own(line):
                    self._greet(line)
                    lines.append(line)
                else:
                    line.close()
            for line in lines:
                content, (arena, doorbell), _, _ = socket.recv_fds(line, _RANK.size, 2, socket.MSG_CMSG_CLOEXEC)
                self._others[_RANK.unpack(content)[0]] = _Neighbour(line, arena, doorbell)
                self._poller.register(line, 0)  # for its end alone
        except (OSError, ValueError, struct.error) as error:
            raise _unmet(self.rank, error) from error

    def _greet(self, line: socket.socket) -> None:
        socket.send_fds(line, [_RANK.pack(self.rank)], [self.arena.descriptor, self._doorbell])

    def have(self, ranks: Collection[int]) -> bool:
        """Return whether all of some ranks are on this machine; every one of them gets the same."""
        return all(other == self.rank or other in self._others for other in ranks)

    def open_tables(self, peers: Sequence[int], size_bytes: int) -> tuple[dict[int, memoryview], dict[int, memoryview]]:
        """Open memory of a size between this rank and each of some others, which all do the same in the same order.

        Returns:
            By rank what it reads and this rank writes, and the reverse.

        Raises:
            RunError: where a peer is gone or opens another size.
        """
        places = {peer: self.arena.reserve(size_bytes) for peer in peers}
        out: dict[int, memoryview] = {}
        into: dict[int, memoryview] = {}
        peer = self.rank
        try:
            for peer in peers:
                self._others[peer].connection.send(_TABLE.pack(places[peer], size_bytes))
            for peer in peers:
                content = self._others[peer].connection.recv(_TABLE.size)
                if not content:
                    raise ConnectionResetError
                place, its_bytes = _TABLE.unpack(content)
                if its_bytes != size_bytes:
                    raise OSError(f"rank {peer} opens {its_bytes} bytes, this rank {size_bytes}")
                check_place(self._others[peer].arena, place, size_bytes, f"rank {peer}")
                for tables, arena, at in (
                    (out, self.arena.descriptor, places[peer]),
                    (into, self._others[peer].arena, place),
                ):
                    tables[peer] = memoryview(mmap.mmap(arena, size_bytes, offset=at)).cast("q")
        except ConnectionError as error:
            raise RunError(f"rank {peer} is gone: connection closed by peer") from error
        except (OSError, ValueError, struct.error) as error:
            raise _unmet(self.rank, error) from error
        return out, into

    def arena_of(self, rank: int) -> int:
        """Return the descriptor of what a neighbour writes."""
        return self._others[rank].arena

    def memory_of(self, rank: int, place: int, size_bytes: int) -> Tensor:
        """Return memory that a neighbour wrote, as bytes, where it is."""
        mapped = self._others[rank].mapped
        found = mapped.get(place)
        if found is None or found.numel() < size_bytes:
            at_least = max(size_bytes, 1)  # no memory of 0 bytes can be mapped
            check_place(self._others[rank].arena, place, at_least, f"rank {rank}")
            found = mapped[place] = map_bytes(self._others[rank].arena, place, at_least)
        return found[:size_bytes]

    def ring(self, rank: int) -> None:
        """Wake a neighbour."""
        os.eventfd_write(self._others[rank].doorbell, 1)

    def close(self) -> None:
        """Leave; what was written can still be read where it is mapped."""
        for other in self._others.values():
            other.connection.close()
            self._descriptors += [other.arena, other.doorbell]
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._others, self._descriptors = {}, []

    def sleep(self, at_most_s: float) -> None:
        """Sleep until another rank rings or leaves, or for a time."""
        for descriptor, _ in self._poller.poll(1000 * at_most_s):
            if descriptor == self._doorbell:
                os.eventfd_read(descriptor)
            else:
                self.gone.update(r for r, other in self._others.items() if other.connection.fileno() == descriptor)
                self._poller.unregister(descriptor)


def _unmet(rank: int, error: Exception) -> RunError:
    return RunError(f"rank {rank} does not meet the other ranks of this machine: {error}")


def _listen(name: str, ranks: int, patience_s: float) -> socket.socket:
    listener = _new_socket(patience_s)
    listener.bind(f"\0{name}")
    listener.listen(ranks)
    return listener


def _connect(name: str, rank: int, patience_s: float) -> socket.socket:
    line, deadline_s = _new_socket(patience_s), time.monotonic() + patience_s
    while True:
        try:
            line.connect(f"\0{name}")
            break
        except BlockingIOError:  # others are in front, of another user too, whom the listener turns away
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_RETRY_S)
    if not _is_own(line):
        raise OSError(f"another user's process answers in the place of rank {rank}")
    return line


def _new_socket(patience_s: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(patience_s)
    return made


def _names_here() -> set[str]:
    """Return the names of all sockets that can be reached: a clone of a machine has its boot id, but not these."""
    return {line.rpartition("@")[2] for line in _SOCKETS.read_text("utf-8", "replace").splitlines()}


def _is_own(line: socket.socket) -> bool:
    """Tell whether a process of this user is on the other side."""
    _, user, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())
