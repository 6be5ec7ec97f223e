"""Tables of mailboxes in which ranks of one machine say where in shared memory a message is.

A rank has a table in its arena for each of its peers, with a mailbox for every tag. Two ranks map it::

    rank 0                              table for rank 1                     rank 1
    fills a buffer                      tag | place | bytes
    writes its mailbox, rings  ---->    16  | 0     |                        waits for mailbox 17,
                                        17  | 12288 | 8192     <-------      reads the buffer, makes the place 0

A mailbox takes one message: the next waits until that of the step before has been taken, so that no rank is more than a
step ahead of those who read from it. Nothing else makes a sender wait.

A rank that waits spins on the mailbox for a moment, then sleeps (``spin.py``). The table says that it sleeps; then it
is woken by its doorbell. A processor may read ahead of what it writes: a rank that writes a mailbox and then reads that
the reader does not sleep may have read it too early. So the first sleep is short, and ends with a look.

Left out: how ranks meet (``neighbours.py``), what the buffers contain (``endpoints.py``, ``memory_group.py``).
"""

import os
import time
from collections.abc import Mapping, Sequence

from heterps_compile.errors import RunError

from .neighbours import Neighbours
from .spin import Spin, WaitPolicy

SLEEPS = -1
"""In a table: whether its reader sleeps."""

_MAILBOX_BYTES = 16
_NUMBER_BYTES = 8


class Mailboxes:
    """The mailboxes between one rank and some neighbours; each of these opens its own in the same order.

    Attributes:
        neighbours: Of the rank.
    """

    def __init__(
        self, neighbours: Neighbours, peers: Sequence[int], tags: int, *, patience_s: float | None = None
    ) -> None:
        """Open them; waits for the peers.

        Args:
            neighbours: Of the rank.
            peers: Some of them.
            tags: The number of mailboxes, whose tags begin at 0.
            patience_s: After which a rank that waits gives up; None for that of the neighbours.

        Raises:
            RunError: where a peer is gone.
        """
        self.neighbours = neighbours
        self._wait: WaitPolicy = neighbours.wait
        self._patience_s = neighbours.wait.patience_s if patience_s is None else patience_s
        self._spin = Spin(self._wait, has_core=bool(peers) and len(neighbours.ranks) < len(os.sched_getaffinity(0)))
        self._out, self._in = neighbours.open_tables(peers, tags * _MAILBOX_BYTES + _NUMBER_BYTES)

    def outbox(self, rank: int) -> memoryview:
        """Return the mailboxes that a peer reads."""
        return self._out[rank]

    def inbox(self, rank: int) -> memoryview:
        """Return the mailboxes that a peer writes."""
        return self._in[rank]

    def post(self, peer: int, mailbox: int, place: int, size_bytes: int) -> None:
        """Say where a message is, once the one before it in this mailbox has been taken.

        Raises:
            RunError: where the peer is gone.
        """
        outbox = self._out[peer]
        if outbox[mailbox]:
            self._wait_until_taken(peer, mailbox)
        outbox[mailbox + 1] = size_bytes
        outbox[mailbox] = place  # last: with it the message is there
        if outbox[SLEEPS]:
            self.neighbours.ring(peer)

    def wait_for(self, mailboxes: Mapping[int, int]) -> int:
        """Wait until one of some mailboxes is written; return the peer that wrote it.

        Args:
            mailboxes: By peer.

        Raises:
            RunError: where one of the peers is gone.
        """
        boxes = [(peer, self._in[peer], mailbox) for peer, mailbox in mailboxes.items()]
        spin, wait = self._spin, self._wait
        began_s = time.perf_counter()
        while True:
            for peer, inbox, mailbox in boxes:
                if inbox[mailbox]:
                    spin.found()
                    return peer
            if time.perf_counter() - began_s > spin.longest_s:
                break
        spin.in_vain()
        for _, inbox, _ in boxes:
            inbox[SLEEPS] = 1
        asleep_s = time.perf_counter()
        while not any(inbox[mailbox] for _, inbox, mailbox in boxes):
            is_seen = time.perf_counter() - asleep_s > wait.first_sleep_s
            self.neighbours.sleep(self._patience_s if is_seen else wait.first_sleep_s)
            for peer, inbox, mailbox in boxes:
                self._give_up(peer, began_s, is_over=bool(inbox[mailbox]))
        for _, inbox, _ in boxes:
            inbox[SLEEPS] = 0
        return next(peer for peer, inbox, mailbox in boxes if inbox[mailbox])

    def _wait_until_taken(self, peer: int, mailbox: int) -> None:
        """Wait until a peer has taken a message; it does not say when.

        Raises:
            RunError: where it is gone.
        """
        outbox = self._out[peer]
        began_s = time.perf_counter()
        while outbox[mailbox]:
            if time.perf_counter() - began_s > self._spin.longest_s:
                self.neighbours.sleep(0)
                time.sleep(self._wait.back_off_s)
                self._give_up(peer, began_s, is_over=not outbox[mailbox])

    def _give_up(self, rank: int, began_s: float, *, is_over: bool) -> None:
        """Raise an error where waiting has no end."""
        waited_s = time.perf_counter() - began_s
        if rank in self.neighbours.gone and not is_over:
            raise RunError(f"rank {rank} is gone: connection closed by peer")
        if waited_s > self._patience_s:
            raise RunError(f"rank {rank} did nothing for {waited_s / 60:.0f} minutes; look at what it printed")
