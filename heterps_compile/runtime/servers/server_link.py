"""How requests and answers travel: point to point, through shared memory on one machine, else over gloo with tags.

Nothing is pickled: ``torch.distributed.rpc``, which pickles every call, is not used.

Left out: what the buffers say (``protocol.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Protocol

import torch
from torch import Tensor

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.escape import one_line
from heterps_compile.runtime.pipeline.rank_group import GlooGroup
from heterps_compile.runtime.pipeline.shared_memory.memory_group import MemoryGroup
from heterps_compile.runtime.pipeline.world import world
from heterps_compile.runtime.sync.collective import Work

from .protocol import FIRST_BYTES, Kind, Request, request_bytes, unpack_request
from .spec import ServerSpec

Wait = Callable[[], None]
"""Waits for answers."""

Call = tuple[int, Tensor, Tensor]
"""Number of a server, request, buffer for the answer."""

_REQUEST_TAG, _REST_TAG, _ANSWER_TAG = 7001, 7002, 7003
_PATIENCE = timedelta(days=7)  # a server waits for its workers however long a validation takes


class Link(Protocol):
    """The connection of a worker to all servers."""

    def send(self, server: int, request: Tensor) -> None:
        """Begin to send a request to one server."""
        ...

    def ask(self, calls: Sequence[Call]) -> Wait:
        """Begin to send requests; return a function that waits for the answers, to be called in this order."""
        ...

    def flush(self) -> None:
        """Wait until all requests are sent."""
        ...


class _MemoryWires(MemoryGroup):
    """Ranks of one machine."""

    def send(self, content: Tensor, target: int) -> list[Work]:
        return [self.start_send(content, target)]


class _GlooWires(GlooGroup):
    """Ranks of several machines. A server that waits for any worker receives the first bytes of a request alone."""

    wire = "float32"

    def send(self, content: Tensor, target: int) -> list[Work]:
        works: list[Work] = [super().start_send(content[:FIRST_BYTES], target, _REQUEST_TAG)]
        if len(content) > FIRST_BYTES:
            works.append(super().start_send(content[FIRST_BYTES:], target, _REST_TAG))
        return works

    def take_any(self, sources: Sequence[int]) -> Tensor:
        first = torch.empty(FIRST_BYTES, dtype=torch.uint8)
        source = self.receive_any(first, _REQUEST_TAG)
        content = torch.empty(request_bytes(first, self.wire), dtype=torch.uint8)
        content[:FIRST_BYTES] = first[: len(content)]
        if len(content) > FIRST_BYTES:
            self.start_receive(content[FIRST_BYTES:], source, _REST_TAG).wait()
        return content


def _connect(spec: ServerSpec) -> _MemoryWires | _GlooWires:
    """Connect this rank, a worker or a server; waits for all others."""
    own, ranks = world(), (*spec.workers, *spec.ranks)
    if own.neighbours.have(ranks):
        peers = spec.workers if own.rank in spec.ranks else spec.ranks
        return _MemoryWires(own.neighbours, ranks, peers=peers, patience_s=_PATIENCE.total_seconds())
    wires = _GlooWires(own.next_store(ranks), ranks, own.rank, _PATIENCE)
    wires.wire = spec.wire
    return wires


@contextmanager
def _blaming(peer: str, hint: str = "") -> Iterator[None]:
    """Let an error of a connection name the peer.

    Raises:
        RunError: in place of that error.
    """
    try:
        yield
    except (RuntimeError, HeterpsError) as error:
        reason = one_line(str(error))[:200]
        raise RunError(f"{peer} is gone or silent for too long ({reason}){hint}") from error


class ServersLink:
    """The connection of a worker to all servers."""

    def __init__(self, spec: ServerSpec) -> None:
        """Connect; waits for the other workers and the servers.

        Args:
            spec: The same on all ranks.

        Raises:
            RunError: where they do not meet.
        """
        self._ranks, self._wires = spec.ranks, _connect(spec)
        self._sent: list[tuple[int, Tensor, Work]] = []

    def send(self, server: int, request: Tensor) -> None:
        """Begin to send a request; its buffer is kept until it is sent.

        Raises:
            RunError: if the server is gone.
        """
        with self._blaming(server):
            self._sent += [(server, request, work) for work in self._wires.send(request, self._ranks[server])]

    def ask(self, calls: Sequence[Call]) -> Wait:
        """Begin to send requests; return a function that waits for the answers.

        Raises:
            RunError: if a server is gone; so does the wait.
        """
        asked: list[tuple[int, Work]] = []
        for server, request, out in calls:
            with self._blaming(server):
                asked.append((server, self._wires.start_receive(out, self._ranks[server])))
            self.send(server, request)

        def wait() -> None:
            for server, work in asked:
                with self._blaming(server):
                    work.wait()

        return wait

    def flush(self) -> None:
        """Wait until all requests are sent.

        Raises:
            RunError: if a server is gone.
        """
        sent, self._sent = self._sent, []
        for server, _, work in sent:
            with self._blaming(server):
                work.wait()

    def _blaming(self, server: int) -> AbstractContextManager[None]:
        return _blaming(f"parameter server {server} (rank {self._ranks[server]})", "; its own last words say why")


class WorkersLink:
    """A server's connection to its workers."""

    def __init__(self, spec: ServerSpec) -> None:
        """Connect; waits for the workers and the other servers.

        Args:
            spec: The same on all ranks.

        Raises:
            RunError: where they do not meet.
        """
        self._wire, self._wires = spec.wire, _connect(spec)
        self._heard = list(spec.workers)  # by the time since their last request, without those that have stopped
        self._answers: dict[int, tuple[Work, Tensor]] = {}  # one at a time is on its way to a worker

    def receive(self) -> Request:
        """Wait for a request from any worker that has not stopped.

        Raises:
            RunError: where a message is no request, or a worker is gone.
        """
        with self._blaming():
            content = self._wires.take_any(self._heard)
        request = unpack_request(content, self._wire)
        if request.worker in self._heard:
            self._heard.remove(request.worker)
            if request.kind is not Kind.STOP:
                self._heard.append(request.worker)
        return request

    def answer(self, worker: int, answer: Tensor) -> None:
        """Begin to send an answer.

        Raises:
            RunError: where the worker is gone.
        """
        self._finish(worker)
        with self._blaming():
            self._answers[worker] = self._wires.start_send(answer, worker), answer

    def flush(self) -> None:
        """Wait until all answers are on their way.

        Raises:
            RunError: where a worker is gone.
        """
        for worker in list(self._answers):
            self._finish(worker)

    def _finish(self, worker: int) -> None:
        if worker in self._answers:
            with self._blaming():
                self._answers.pop(worker)[0].wait()

    @staticmethod
    def _blaming() -> AbstractContextManager[None]:
        return _blaming("a parameter server cannot go on: a worker")
