"""How requests and answers travel: point to point over ``torch.distributed`` (gloo), with tags.

Nothing is pickled: ``torch.distributed.rpc``, which pickles every call, is not used.

Left out: what the buffers say (``protocol.py``).
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line

from .protocol import FIRST_BYTES, Request, request_bytes, unpack_request

Wait = Callable[[], None]
"""Waits for answers."""

Call = tuple[int, Tensor, Tensor]
"""Number of a server, request, buffer for the answer."""

_REQUEST_TAG, _REST_TAG, _ANSWER_TAG = 7001, 7002, 7003


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


class ServersLink:
    """The connection of a worker to all servers over a process group."""

    def __init__(self, ranks: Sequence[int], group: dist.ProcessGroup | None = None) -> None:
        """Connect nothing yet: the group is connected already.

        Args:
            ranks: Of the servers, by their number.
            group: None for all ranks.
        """
        self._ranks, self._group = ranks, group
        self._sent: list[tuple[int, Tensor, dist.Work]] = []

    def send(self, server: int, request: Tensor) -> None:
        """Begin to send a request; its buffer is kept until it is sent.

        Raises:
            RunError: if the server is gone.
        """
        self._begin(server, request[:FIRST_BYTES], _REQUEST_TAG)
        if len(request) > FIRST_BYTES:
            self._begin(server, request[FIRST_BYTES:], _REST_TAG)

    def ask(self, calls: Sequence[Call]) -> Wait:
        """Begin to send requests; return a function that waits for the answers.

        Raises:
            RunError: if a server is gone; so does the wait.
        """
        asked: list[tuple[int, dist.Work | None]] = []
        for server, request, out in calls:
            try:
                asked.append((server, dist.irecv(out, self._ranks[server], group=self._group, tag=_ANSWER_TAG)))
            except RuntimeError as error:
                raise self._gone(server, error) from error
            self.send(server, request)

        def wait() -> None:
            for server, work in asked:
                self._wait(server, work)

        return wait

    def flush(self) -> None:
        """Wait until all requests are sent.

        Raises:
            RunError: if a server is gone.
        """
        sent, self._sent = self._sent, []
        for server, _, work in sent:
            self._wait(server, work)

    def _begin(self, server: int, part: Tensor, tag: int) -> None:
        try:
            work = dist.isend(part, self._ranks[server], group=self._group, tag=tag)
        except RuntimeError as error:
            raise self._gone(server, error) from error
        if work is not None:
            self._sent.append((server, part, work))

    def _wait(self, server: int, work: dist.Work | None) -> None:
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise self._gone(server, error) from error

    def _gone(self, server: int, error: RuntimeError) -> RunError:
        return RunError(
            f"parameter server {server} (rank {self._ranks[server]}) is gone or silent for too long "
            f"({one_line(str(error))[:200]}); its own last words say why"
        )


class WorkersLink:
    """A server's connection to its workers."""

    def __init__(self, wire: str, group: dist.ProcessGroup | None = None) -> None:
        """Connect nothing yet.

        Args:
            wire: Type of floats in requests.
            group: None for all ranks.
        """
        self._wire, self._group = wire, group
        self._first = torch.empty(FIRST_BYTES, dtype=torch.uint8)
        self._answers: dict[int, tuple[dist.Work | None, Tensor]] = {}  # one at a time is on its way to a worker

    def receive(self) -> Request:
        """Wait for a request from anybody.

        Raises:
            RunError: where what came is no request, or the group has failed.
        """
        try:
            source = dist.recv(self._first, None, group=self._group, tag=_REQUEST_TAG)
            buffer = torch.empty(request_bytes(self._first, self._wire), dtype=torch.uint8)
            buffer[:FIRST_BYTES] = self._first[: len(buffer)]
            if len(buffer) > FIRST_BYTES:
                dist.recv(buffer[FIRST_BYTES:], source, group=self._group, tag=_REST_TAG)
        except RuntimeError as error:
            raise self._lost(error) from error
        return unpack_request(buffer, self._wire)

    def answer(self, worker: int, answer: Tensor) -> None:
        """Begin to send an answer.

        Raises:
            RunError: where the worker is gone.
        """
        try:
            self._finish(worker)
            work = dist.isend(answer, worker, group=self._group, tag=_ANSWER_TAG)
        except RuntimeError as error:
            raise self._lost(error) from error
        self._answers[worker] = work, answer

    def flush(self) -> None:
        """Wait until all answers are on their way.

        Raises:
            RunError: where a worker is gone.
        """
        try:
            for worker in list(self._answers):
                self._finish(worker)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _finish(self, worker: int) -> None:
        work, _ = self._answers.pop(worker, (None, None))
        if work is not None:
            work.wait()

    @staticmethod
    def _lost(error: RuntimeError) -> RunError:
        return RunError(
            f"a parameter server cannot go on: a worker is gone or silent for too long ({one_line(str(error))[:200]})"
        )
