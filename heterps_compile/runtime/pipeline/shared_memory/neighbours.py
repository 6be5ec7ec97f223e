"""The ranks of one machine, which tell each other in shared memory what lies there.

A rank has a table in its arena for each of the others, with a mailbox for every tag. Two ranks map it::

    rank 0                              table for rank 1                     rank 1
    fills a buffer                      tag | place | bytes
    writes its mailbox, rings  ---->    16  | 0     |                        waits for mailbox 17,
                                        17  | 12288 | 8192     <-------      reads the buffer, makes the place 0

A mailbox takes one message: the next waits until that of the step before has been taken, so that no rank is more than a
step ahead of those who read from it. Nothing else makes a sender wait.

A rank that waits spins on the mailbox for a moment, then sleeps (``spin.py``). The table says that it sleeps; then it
is woken by a doorbell (an eventfd). A processor may read ahead of what it writes: who writes a mailbox and then reads
that nobody sleeps may have read it too early. So the first sleep is short, and ends with a look.

A socket would do for a doorbell, but Linux takes a process that sends on one to be about to sleep and wakes the other
on the same core, where both compute for milliseconds. Sockets are there to meet and to notice who leaves; they are
abstract ones, which have no file, and the system says which user is on the other side.

Left out: what lies where (``arena.py``); ranks of other machines and users, and processors that reorder writes
(``over_gloo.py``).
"""

import mmap
import os
import platform
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from heterps_compile.errors import RunError
from heterps_compile.runtime.c10d import PrefixStore, default_store

from .arena import Arena, check_place
from .spin import Spin, WaitPolicy

WAIT = WaitPolicy()

_SOCKETS = Path("/proc/net/unix")
_IN_ORDER = ("x86_64", "AMD64")
SLEEPS = -1
"""In a table: whether who reads it sleeps."""

_MAILBOX_BYTES = 16
_NUMBER_BYTES = 8
_GREETING = struct.Struct("<qq")  # rank, place of the table for the other
_CREDENTIALS = struct.Struct("3i")

_made: Counter[int] = Counter()


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
        outbox: The table that it reads: place and bytes, by tag.
        inbox: The table that it writes.
    """

    connection: socket.socket
    arena: int
    doorbell: int
    outbox: memoryview
    inbox: memoryview


class Neighbours:
    """The connections of one rank to the others of its machine.

    Attributes:
        ranks: Those others.
        are_all: Whether all ranks of the pipeline are on one machine; the same on every rank.
        arena: What this rank writes.
    """

    arena: Arena

    def __init__(self, world_size: int, rank: int, tags: int, *, wait: WaitPolicy = WAIT) -> None:
        """Connect; waits for the others, of which every one does the same.

        Args:
            world_size: Ranks of the pipeline.
            rank: This one.
            tags: How many there are, from 0.
            wait: How this rank waits.

        Raises:
            RunError: where they do not meet.
        """
        store = PrefixStore(f"neighbours-{world_size}-{_made[world_size]}", default_store())
        _made[world_size] += 1
        mine, name = machine(), token_hex(16)
        self._others: dict[int, _Neighbour] = {}
        self._gone: set[int] = set()
        listener = _listen(name, world_size, wait.patience_s) if mine else None
        store.set(str(rank), f"{mine} {name}")
        said = [store.get(str(other)).decode("ascii").split(" ") for other in range(world_size)]
        here = _names_here() if mine else set()
        names = {other: its_name for other, (its, its_name) in enumerate(said) if its == mine and its_name in here}
        self.are_all = len(names) == world_size
        self.ranks = tuple(other for other in names if other != rank)
        self._wait = wait
        self._spin = Spin(wait, has_core=listener is not None and len(names) <= len(os.sched_getaffinity(0)))
        if listener is not None:
            with listener:
                self._meet(rank, listener, {other: names[other] for other in self.ranks}, tags)

    def _meet(self, rank: int, listener: socket.socket, names: Mapping[int, str], tags: int) -> None:
        """Connect to lower ranks, let higher ones connect, and exchange arenas and doorbells with all of them."""
        self.arena, self._doorbell = Arena(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._doorbell, select.POLLIN)
        table_bytes = tags * _MAILBOX_BYTES + _NUMBER_BYTES
        tables = {other: self.arena.reserve(table_bytes) for other in names}
        connections: dict[int, socket.socket] = {}

        def greet(other: int) -> None:
            socket.send_fds(
                connections[other], [_GREETING.pack(rank, tables[other])], [self.arena.descriptor, self._doorbell]
            )

        def know(other: int, place: int, arena: int, doorbell: int) -> None:
            check_place(arena, place, table_bytes, f"rank {other}")
            outbox, inbox = (
                memoryview(mmap.mmap(descriptor, table_bytes, offset=offset)).cast("q")
                for descriptor, offset in ((self.arena.descriptor, tables[other]), (arena, place))
            )
            self._others[other] = _Neighbour(connections[other], arena, doorbell, outbox, inbox)
            self._poller.register(connections[other], 0)  # for its end alone

        try:
            for other in [r for r in names if r < rank]:
                connections[other] = _new_socket(self._wait.patience_s)
                connections[other].connect(f"\0{names[other]}")
                if not _is_own(connections[other]):
                    raise OSError(f"another user's process answers in the place of rank {other}")
                greet(other)
            while len(connections) < len(names):
                line, _ = listener.accept()
                line.settimeout(self._wait.patience_s)
                if not _is_own(line):
                    line.close()
                    continue
                other, *rest = _greeting(line)
                connections[other] = line
                greet(other)
                know(other, *rest)
            for other in [r for r in names if r < rank]:
                know(*_greeting(connections[other]))
        except (OSError, KeyError, ValueError, struct.error) as error:
            raise RunError(f"rank {rank} does not meet the other ranks of this machine: {error}") from error

    def arena_of(self, rank: int) -> int:
        """Return the descriptor of what a neighbour writes."""
        return self._others[rank].arena

    def outbox(self, rank: int) -> memoryview:
        """Return the mailboxes that tell a neighbour what lies where."""
        return self._others[rank].outbox

    def inbox(self, rank: int) -> memoryview:
        """Return the mailboxes by which a neighbour tells it."""
        return self._others[rank].inbox

    def ring(self, rank: int) -> None:
        """Wake a neighbour."""
        os.eventfd_write(self._others[rank].doorbell, 1)

    def close(self) -> None:
        """Leave; what was told can still be read."""
        for other in self._others.values():
            other.connection.close()

    def wait_for(self, rank: int, mailbox: int) -> None:
        """Wait until a neighbour has written a mailbox.

        Raises:
            RunError: where it is gone.
        """
        inbox, spin, wait = self._others[rank].inbox, self._spin, self._wait
        began_s = time.perf_counter()
        while not inbox[mailbox]:
            if time.perf_counter() - began_s > spin.longest_s:
                break
        else:
            spin.found()
            return
        spin.in_vain()
        inbox[SLEEPS], asleep_s = 1, time.perf_counter()
        while not inbox[mailbox]:
            is_seen = time.perf_counter() - asleep_s > wait.first_sleep_s
            self._sleep(wait.patience_s if is_seen else wait.first_sleep_s)
            self._give_up(rank, began_s, is_over=bool(inbox[mailbox]))
        inbox[SLEEPS] = 0

    def wait_until_taken(self, rank: int, mailbox: int) -> None:
        """Wait until a neighbour has taken what a mailbox tells of; it does not say when.

        Raises:
            RunError: where it is gone.
        """
        outbox = self._others[rank].outbox
        began_s = time.perf_counter()
        while outbox[mailbox]:
            if time.perf_counter() - began_s > self._spin.longest_s:
                self._sleep(0)
                time.sleep(self._wait.back_off_s)
                self._give_up(rank, began_s, is_over=not outbox[mailbox])

    def _give_up(self, rank: int, began_s: float, *, is_over: bool) -> None:
        """Raise an error where waiting has no end."""
        waited_s = time.perf_counter() - began_s
        if rank in self._gone and not is_over:
            raise RunError(f"rank {rank} is gone: connection closed by peer")
        if waited_s > self._wait.patience_s:
            raise RunError(f"rank {rank} did nothing for {waited_s / 60:.0f} minutes; look at what it printed")

    def _sleep(self, at_most_s: float) -> None:
        """Sleep until somebody rings or leaves, or for so long."""
        for descriptor, _ in self._poller.poll(1000 * at_most_s):
            if descriptor == self._doorbell:
                os.eventfd_read(descriptor)
            else:
                self._gone.update(r for r, other in self._others.items() if other.connection.fileno() == descriptor)
                self._poller.unregister(descriptor)


def _new_socket(patience_s: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(patience_s)
    return made


def _listen(name: str, ranks: int, patience_s: float) -> socket.socket:
    listener = _new_socket(patience_s)
    listener.bind(f"\0{name}")
    listener.listen(ranks)
    return listener


def _names_here() -> set[str]:
    """Return the names of all sockets that can be reached: a clone of a machine has its boot id, but not these."""
    return {line.rpartition("@")[2] for line in _SOCKETS.read_text("utf-8", "replace").splitlines()}


def _is_own(line: socket.socket) -> bool:
    """Tell whether a process of this user is on the other side."""
    _, user, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


def _greeting(line: socket.socket) -> tuple[int, int, int, int]:
    """Return the rank on the other side, the place of its table, its arena and its doorbell."""
    content, (arena, doorbell), _, _ = socket.recv_fds(line, _GREETING.size, 2, socket.MSG_CMSG_CLOEXEC)
    rank, place = _GREETING.unpack(content)
    return rank, place, arena, doorbell
