"""How requests and answers travel: point to point over ``torch.distributed`` (gloo), with tags.

Nothing is pickled: ``torch.distributed.rpc``, which pickles every call, is not used.

Left out: what the buffers say (``protocol.py``).
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.escape import one_line

from .protocol import FIRST_BYTES, Request, request_bytes, shard_of, unpack_request

Wait = Callable[[], None]
"""Waits for answers."""

_REQUEST_TAG, _REST_TAG, _ANSWER_TAG = 7001, 7002, 7003  # an answer's has the number of the shard added


class ServerGoneError(RunError):
    """A server's connection broke.

    Attributes:
        rank: Of the server.
    """

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(why)
        self.rank = rank


class Connection(Protocol):
    """A worker's connection to servers, each by its rank."""

    def send(self, rank: int, request: Tensor) -> None:
        """Begin to send a request."""
        ...

    def ask(self, rank: int, request: Tensor, out: Tensor) -> Wait:
        """Begin to send a request; give what waits for its answer.

        A server answers what is asked of one shard in the order in which it was asked; so are answers to be waited for.
        """
        ...

    def flush(self) -> list[ServerGoneError]:
        """Wait until all requests are on their way, or say that they never will be."""
        ...


class GroupConnection:
    """The connection over a process group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Connect nothing yet: the group is there already.

        Args:
            group: None for all ranks.
        """
        self._group = group
        self._sent: list[tuple[int, Tensor, dist.Work]] = []

    def send(self, rank: int, request: Tensor) -> None:
        """Begin to send a request; the buffer is kept until it is gone.

        Raises:
            ServerGoneError: where the server is gone.
        """
        self._begin(rank, request[:FIRST_BYTES], _REQUEST_TAG)
        if len(request) > FIRST_BYTES:
            self._begin(rank, request[FIRST_BYTES:], _REST_TAG)

    def ask(self, rank: int, request: Tensor, out: Tensor) -> Wait:
        """Begin to send a request; give what waits for its answer.

        Raises:
            ServerGoneError: where the server is gone; so does the wait.
        """
        try:
            work = dist.irecv(out, rank, group=self._group, tag=_ANSWER_TAG + shard_of(request))
        except RuntimeError as error:
            raise _gone(rank, error) from error
        self.send(rank, request)
        return partial(self._wait, rank, work)

    def flush(self) -> list[ServerGoneError]:
        """Wait until all requests are on their way, or say that they never will be."""
        sent, self._sent = self._sent, []
        faults: dict[int, ServerGoneError] = {}
        for rank, _, work in sent:
            try:
                self._wait(rank, work)
            except ServerGoneError as error:
                faults.setdefault(rank, error)
        return list(faults.values())

    def _begin(self, rank: int, part: Tensor, tag: int) -> None:
        try:
            work = dist.isend(part, rank, group=self._group, tag=tag)
        except RuntimeError as error:
            raise _gone(rank, error) from error
        if work is not None:
            self._sent.append((rank, part, work))

    @staticmethod
    def _wait(rank: int, work: dist.Work | None) -> None:
        try:
            if work is not None:
                work.wait()
        except RuntimeError as error:
            raise _gone(rank, error) from error


def _gone(rank: int, error: RuntimeError) -> ServerGoneError:
    gone = ServerGoneError(rank, one_line(str(error))[:200])
    gone.__cause__ = error
    return gone


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

    def answer(self, worker: int, shard: int, answer: Tensor) -> None:
        """Begin to send an answer to what was asked of a shard.

        Raises:
            RunError: where the worker is gone.
        """
        try:
            self._finish(worker)
            work = dist.isend(answer, worker, group=self._group, tag=_ANSWER_TAG + shard)
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
