"""A worker's connection to the shards, each of which lies on one server or has copies on several.

::

    send shard 0  ------>  server 0, server 1        every holder
    ask  shard 0  ------>  server 0                  the first that lives
                  x        server 0 is gone          what it has not answered is asked again of the next, in order
    ask  shard 0  -------------------->  server 1

Every request says up to which step the pushes must be in, and a holder has every push from this very worker, once: so
an answer that never came can be asked for again, of anybody who holds the shard, and nothing is pushed twice.

Which server is gone is known for good: nobody speaks to it again, and ``on_gone`` tells the others, who give it up too.

Left out: who holds what (``copies.py``), how buffers travel (``server_link.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from heterps_compile.errors import RunError

from .copies import Copies
from .protocol import address
from .server_link import Connection, ServerGoneError, Wait

Call = tuple[int, Tensor, Tensor]
"""A shard, a request, where its answer goes."""


class Link(Protocol):
    """A worker's connection to all shards."""

    def send(self, shard: int, request: Tensor) -> None:
        """Begin to send a request to all who hold a shard."""
        ...

    def ask(self, calls: Sequence[Call]) -> Wait:
        """Begin to send requests; give what waits for the answers, which are to be waited for in this order."""
        ...

    def flush(self) -> None:
        """Wait until all requests are on their way."""
        ...

    def answering(self, shard: int) -> int:
        """Return the rank that answers for a shard."""
        ...


@dataclass(slots=True, eq=False)
class _Asked:
    """What was asked of a shard and has not been answered.

    Attributes:
        shard, request, out: Of the call.
        rank: Who was asked.
        buffer: Where the answer arrives; one of its own for every holder that is asked.
        wait: Waits for it.
    """

    shard: int
    request: Tensor
    out: Tensor
    rank: int = -1
    buffer: Tensor = field(default_factory=lambda: torch.empty(0))
    wait: Wait = lambda: None


class HoldersLink:
    """The connection of a worker to the holders of all shards."""

    def __init__(
        self, copies: Copies, connection: Connection, on_gone: Callable[[int], object] = lambda rank: None
    ) -> None:
        """Connect nothing yet.

        Args:
            copies: Who holds what.
            connection: To servers by their ranks.
            on_gone: Is told the rank of a server that is gone, once, where the run goes on without it.
        """
        self._copies, self._connection, self._on_gone = copies, connection, on_gone
        self._asked: list[_Asked] = []
        self._gone: dict[int, ServerGoneError] = {}

    def answering(self, shard: int) -> int:
        """Return the rank that answers for a shard.

        Raises:
            RunError: where all who held it are gone.
        """
        return self._living(shard)[0]

    def send(self, shard: int, request: Tensor) -> None:
        """Begin to send a request to all who hold a shard.

        Raises:
            RunError: where all of them are gone.
        """
        address(request, shard)
        for rank in self._living(shard):
            try:
                self._connection.send(rank, request)
            except ServerGoneError as error:
                self._lose(error)

    def ask(self, calls: Sequence[Call]) -> Wait:
        """Begin to send requests; give what waits for the answers.

        Raises:
            RunError: where all who hold a shard are gone; so does the wait.
        """
        asked = [_Asked(*call) for call in calls]
        for one in asked:
            address(one.request, one.shard)
            self._begin(one)
            self._asked.append(one)

        def wait() -> None:
            for one in asked:
                self._finish(one)

        return wait

    def flush(self) -> None:
        """Wait until all requests are on their way to those that live.

        Raises:
            RunError: where all who hold a shard are gone.
        """
        while faults := self._connection.flush():
            for fault in faults:
                self._lose(fault)

    def _living(self, shard: int) -> list[int]:
        holders = self._copies.holders[shard]
        living = [rank for rank in holders if rank not in self._gone]
        if not living:
            others = " and ".join(f"rank {rank}" for rank in holders[1:])
            also = f", and so is {others}, which had a copy of its rows" if others else ""
            last = self._gone[holders[-1]]
            raise RunError(
                f"parameter server {shard} (rank {holders[0]}) is gone or silent for too long{also} ({last}); its own "
                f"last words say why"
            ) from last
        return living

    def _begin(self, one: _Asked) -> None:
        while True:
            one.rank = self.answering(one.shard)
            one.buffer = one.out if self._copies.count == 1 else torch.empty_like(one.out)
            try:
                one.wait = self._connection.ask(one.rank, one.request, one.buffer)
            except ServerGoneError as error:
                self._lose(error)
            else:
                return

    def _finish(self, one: _Asked) -> None:
        while True:
            try:
                one.wait()
            except ServerGoneError as error:
                self._lose(error)
            else:
                break
        if one.buffer is not one.out:
            one.out.copy_(one.buffer)
        self._asked.remove(one)

    def _lose(self, fault: ServerGoneError) -> None:
        """Ask others for what a server has not answered, in the order in which it was asked."""
        if fault.rank in self._gone:
            return
        self._gone[fault.rank] = fault
        for one in self._asked:
            if one.rank == fault.rank:
                self._begin(one)
        for shard in self._copies.shards_of(fault.rank):
            self._living(shard)
        self._on_gone(fault.rank)
