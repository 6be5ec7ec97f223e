"""The ranks of one machine, which tell each other in shared memory what lies there.

A rank has a table in its memory for each of the others, with a row for every tag. Two ranks map it::

    rank 0                              table for rank 1                     rank 1
    fills a slab                        tag | place | bytes
    writes its row, rings  ------->     16  | 0     |                        waits for row 17,
                                        17  | 12288 | 8192     <-------      reads the slab, makes the place 0

A row takes one message: the next waits until that of the step before has been taken, so that no rank is more than a
step ahead of those who read from it. Nothing else makes a sender wait.

Where every rank has a core of its own, a rank that waits looks at the row again and again for a moment before it
sleeps: a process that sleeps takes longer to wake than most messages are late. It is woken by a bell (an eventfd). A
socket would do, but Linux takes a process that sends on one to be about to sleep and wakes the other on the same core,
where both compute for milliseconds. Sockets are there to meet and to notice who leaves; they are abstract ones, which
have no file, and the system says which user is on the other side.

Left out: what lies where (``shared_slab.py``); ranks of other machines and users, and processors that reorder writes
(``links.py``).
"""

import mmap
import os
import platform
import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

import torch.distributed as dist

from heterps_compile.errors import RunError

from .shared_slab import OwnMemory, SharedSlab, check_place

_PATIENCE_S = 1800.0  # whoever launched the ranks notices long before that one of them is gone
_LOOK_S = 500e-6
_NAP_S = 100e-6

_IN_ORDER = ("x86_64", "AMD64")
_ROW_BYTES = 16
_GREETING = struct.Struct("<qq")  # rank, place of the table for the other
_CREDENTIALS = struct.Struct("3i")

_made: Counter[int] = Counter()


def machine() -> str:
    """Give the same text to processes that can be neighbours, "" where there can be none."""
    if not hasattr(os, "memfd_create") or platform.machine() not in _IN_ORDER:
        return ""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        network = Path("/proc/self/ns/net").stat()
    except OSError:
        return ""
    return f"{boot}/{network.st_dev}-{network.st_ino}/{os.getuid()}"


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """What a rank has of another.

    Attributes:
        line: Ends when it leaves.
        memory: Descriptor of what it writes.
        bell: Descriptor of what wakes it.
        told: The table that it reads: place and bytes, by tag.
        tells: The table that it writes.
    """

    line: socket.socket
    memory: int
    bell: int
    told: memoryview
    tells: memoryview


class Neighbours:
    """The connections of one rank to the others of its machine.

    Attributes:
        ranks: Those others.
        are_all: Whether all ranks of the pipeline are on one machine; the same on every rank.
        memory: What this rank writes.
    """

    memory: OwnMemory

    def __init__(self, world_size: int, rank: int, tags: int) -> None:
        """Connect; waits for the others, of which every one does the same.

        Args:
            world_size: Ranks of the pipeline.
            rank: This one.
            tags: How many there are, from 0.

        Raises:
            RunError: where they do not meet.
        """
        store = dist.distributed_c10d._get_default_store()
        store = dist.distributed_c10d.PrefixStore(f"neighbours-{world_size}-{_made[world_size]}", store)
        _made[world_size] += 1
        mine, name = machine(), token_hex(16)
        self._others: dict[int, _Neighbour] = {}
        self._gone: set[int] = set()
        listener = _listen(name, world_size) if mine else None
        store.set(str(rank), f"{mine} {name}")
        said = [store.get(str(other)).decode("ascii").split(" ") for other in range(world_size)]
        names = {other: its_name for other, (its, its_name) in enumerate(said) if mine and its == mine}
        self.are_all = len(names) == world_size
        self.ranks = tuple(other for other in names if other != rank)
        self._look_s = _LOOK_S if listener is not None and len(names) <= len(os.sched_getaffinity(0)) else 0.0
        if listener is not None:
            with listener:
                self._meet(rank, listener, {other: names[other] for other in self.ranks}, tags)

    def _meet(self, rank: int, listener: socket.socket, names: Mapping[int, str], tags: int) -> None:
        """Connect to lower ranks, let higher ones connect, and exchange memories and bells with all of them."""
        self.memory, self._bell = OwnMemory(), os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._bell, select.POLLIN)
        tables = {other: self.memory.reserve(tags * _ROW_BYTES) for other in names}
        lines: dict[int, socket.socket] = {}

        def greet(other: int) -> None:
            socket.send_fds(lines[other], [_GREETING.pack(rank, tables[other])], [self.memory.descriptor, self._bell])

        def know(other: int, place: int, memory: int, bell: int) -> None:
            check_place(memory, place, tags * _ROW_BYTES, f"rank {other}")
            told, tells = (
                memoryview(mmap.mmap(descriptor, tags * _ROW_BYTES, offset=offset)).cast("q")
                for descriptor, offset in ((self.memory.descriptor, tables[other]), (memory, place))
            )
            self._others[other] = _Neighbour(lines[other], memory, bell, told, tells)
            self._poller.register(lines[other], 0)  # for its end alone

        try:
            for other in [r for r in names if r < rank]:
                lines[other] = _new_socket()
                lines[other].connect(f"\0{names[other]}")
                greet(other)
            while len(lines) < len(names):
                line, _ = listener.accept()
                line.settimeout(_PATIENCE_S)
                if not _is_own(line):
                    line.close()
                    continue
                other, *rest = _greeting(line)
                lines[other] = line
                greet(other)
                know(other, *rest)
            for other in [r for r in names if r < rank]:
                know(*_greeting(lines[other]))
        except (OSError, KeyError, ValueError, struct.error) as error:
            raise RunError(f"rank {rank} does not meet the other ranks of this machine: {error}") from error

    def memory_of(self, rank: int) -> int:
        """Give the descriptor of what a neighbour writes."""
        return self._others[rank].memory

    def put(self, rank: int, tag: int, slab: SharedSlab) -> None:
        """Tell a neighbour of a message that lies in a slab.

        Raises:
            RunError: where it is gone.
        """
        to = self._others[rank]
        table, row = to.told, 2 * tag
        if table[row]:
            self._wait(rank, lambda: not table[row], is_told=False)
        table[row + 1] = slab.size_bytes
        table[row] = slab.place  # last: with it the message is there
        os.eventfd_write(to.bell, 1)

    def take(self, rank: int, tag: int) -> tuple[int, int]:
        """Wait for a message of a neighbour; give where it lies in its memory, and how many bytes it has.

        Raises:
            RunError: where the neighbour is gone.
        """
        table, row = self._others[rank].tells, 2 * tag
        if not table[row]:
            self._wait(rank, lambda: bool(table[row]), is_told=True)
        place, size_bytes = table[row], table[row + 1]
        table[row] = 0
        return place, size_bytes

    def close(self) -> None:
        """Leave; what was told can still be read."""
        for other in self._others.values():
            other.line.close()

    def _wait(self, rank: int, is_so: Callable[[], bool], *, is_told: bool) -> None:
        """Wait for a neighbour, which rings when it is so or does not."""
        began_s = time.perf_counter()
        while not is_so():
            waited_s = time.perf_counter() - began_s
            if waited_s < self._look_s:
                continue
            if waited_s > _PATIENCE_S:
                raise RunError(f"rank {rank} did nothing for {waited_s / 60:.0f} minutes; look at what it printed")
            self._rest(is_told=is_told)
            if rank in self._gone and not is_so():
                raise RunError(f"rank {rank} is gone: connection closed by peer")

    def _rest(self, *, is_told: bool) -> None:
        """Sleep until somebody rings or leaves, or for a moment."""
        for descriptor, _ in self._poller.poll(1000 * _PATIENCE_S if is_told else 0):
            if descriptor == self._bell:
                os.eventfd_read(descriptor)
            else:
                self._gone.update(r for r, other in self._others.items() if other.line.fileno() == descriptor)
                self._poller.unregister(descriptor)
        if not is_told:
            time.sleep(_NAP_S)


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.settimeout(_PATIENCE_S)
    return made


def _listen(name: str, ranks: int) -> socket.socket:
    listener = _new_socket()
    listener.bind(f"\0{name}")
    listener.listen(ranks)
    return listener


def _is_own(line: socket.socket) -> bool:
    """Tell whether a process of this user is on the other side."""
    _, user, _ = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return bool(user == os.getuid())


def _greeting(line: socket.socket) -> tuple[int, int, int, int]:
    """Give the rank on the other side, the place of its table, its memory and its bell."""
    content, (memory, bell), _, _ = socket.recv_fds(line, _GREETING.size, 2, socket.MSG_CMSG_CLOEXEC)
    rank, place = _GREETING.unpack(content)
    return rank, place, memory, bell
