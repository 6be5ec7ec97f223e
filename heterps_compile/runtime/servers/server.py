"""A parameter server: one rank that holds a shard of every table and answers the workers.

Synchronous (staleness 0)::

    worker 0   push 4 ------.            pull 5 --.
    worker 1         push 4 --.  pull 5 .....     |
    server                    apply 4   answer  answer      gradients of a step are summed over the workers, in order
                                                            of their ranks, and applied once

With a staleness of s steps every push is applied as it comes, and a pull waits only for what may not be older.

Left out: the other side (``client.py``), what a message looks like (``protocol.py``). A server does not notice that a
worker has died: it waits for its next word, and whoever started the run ends it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.errors import RunError

from .protocol import Kind, Request, pack_floats, wire_dtype
from .saved_tables import fill_shard, pack_saved, read_saved, shard_file, write_shard
from .server_link import WorkersLink
from .shard import Shard, sum_rows
from .spec import FLOAT_BYTES, ServerSpec, allot_memory, record_bytes, shard_rows
from .tiered_cache import Floats, Ints, TieredCache

Answer = tuple[int, Tensor]  # the worker, and what it is sent


class Server:
    """The shards of one server, and which requests wait for which pushes.

    Attributes:
        index: Which server.
        shards: Its shard of every table.
        is_over: Whether every worker has said that it needs nothing more.
    """

    def __init__(self, spec: ServerSpec, index: int) -> None:
        """Make the shards and fill them, from the compiled stages or from a checkpoint.

        Raises:
            InputError: where the checkpoint cannot be read.
            RunError: where the tables do not fit into memory and disk, or their rows cannot be read.
        """
        self._spec, self.index = spec, index
        rows = [shard_rows(table.rows, spec.count, index) for table in spec.tables]
        needs = [count * record_bytes(t, spec.optimizer.states) for count, t in zip(rows, spec.tables, strict=True)]
        allotted = allot_memory(tuple(needs), spec.memory_bytes)
        saved = None if spec.resume is None else read_saved(spec.resume)
        self.shards: list[Shard] = []
        for table, count, memory_bytes in zip(spec.tables, rows, allotted, strict=True):
            shard = Shard(table, count, spec.optimizer, memory_bytes=memory_bytes, directory=spec.directory)
            fill_shard(shard, index, spec.count, spec.optimizer, saved)
            self.shards.append(shard)
        self._pushed = dict.fromkeys(spec.workers, spec.first_step - 1)
        self._stopped: set[int] = set()
        # Pushes of steps that are not complete yet, by worker. A worker that needs no row of this server may be ahead.
        self._parts: dict[int, dict[int, Request]] = {}
        self._waiting: list[Request] = []

    @property
    def is_over(self) -> bool:
        """Say whether every worker has said that it needs nothing more."""
        return len(self._stopped) == len(self._spec.workers)

    @property
    def memory_bytes(self) -> int:
        """Return what the tables, their state and their index take in memory."""
        return sum(shard.tier.memory_bytes for shard in self.shards)

    def handle(self, request: Request) -> list[Answer]:
        """Do what a request asks and give the answers that are ready, to it or to those that have waited.

        Raises:
            RunError: where the request cannot be right, or a checkpoint cannot be written.
        """
        if request.worker not in self._pushed:
            raise RunError(f"rank {request.worker} is no worker of these parameter servers; do all ranks agree?")
        if request.kind is Kind.STOP:
            self._stopped.add(request.worker)
            return []
        if request.kind is not Kind.PUSH:
            self._waiting.append(request)
        else:
            self._take(request)
        complete = min(self._pushed.values())
        ready = [waiting for waiting in self._waiting if waiting.step <= complete]
        self._waiting = [waiting for waiting in self._waiting if waiting.step > complete]
        return [(one.worker, self._pull(one) if one.kind is Kind.PULL else self._save(one)) for one in ready]

    def _take(self, push: Request) -> None:
        expected = self._pushed[push.worker] + 1
        if push.step != expected:
            raise RunError(f"rank {push.worker} pushed step {push.step} to a parameter server that expects {expected}")
        self._pushed[push.worker] = push.step
        if self._spec.staleness:
            self._apply([push])
            return
        parts = self._parts.setdefault(push.step, {})
        parts[push.worker] = push
        if len(parts) == len(self._pushed):
            self._apply([parts[worker] for worker in sorted(parts)])
            del self._parts[push.step]

    def _apply(self, pushes: list[Request]) -> None:
        by_push = [self._gradients(push) for push in pushes]
        for shard, *parts in zip(self.shards, *by_push, strict=True):
            rows, gradients = parts[0]
            if len(parts) > 1:  # what one worker pushes is distinct and in order already
                rows, gradients = sum_rows(
                    np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
                )
            shard.push(rows, gradients)

    def _gradients(self, push: Request) -> list[tuple[Ints, Floats]]:
        rows = self._rows(push)
        sizes = [len(mine) * shard.table.width for mine, shard in zip(rows, self.shards, strict=True)]
        if sum(sizes) != len(push.floats):
            raise RunError(f"rank {push.worker} pushed {len(push.floats)} numbers for rows that have {sum(sizes)}")
        parts = np.split(push.floats, np.cumsum(sizes)[:-1])
        return [
            (mine, part.reshape(len(mine), shard.table.width))
            for mine, part, shard in zip(rows, parts, self.shards, strict=True)
        ]

    def _pull(self, request: Request) -> Tensor:
        parts: list[Floats] = []
        for rows, shard in zip(self._rows(request), self.shards, strict=True):
            if len(rows):
                part = np.empty((len(rows), shard.table.width), np.float32)
                shard.pull(rows, part)
                parts.append(part)
        dtype = wire_dtype(self._spec.wire)
        if len(parts) == 1 and dtype is torch.float32:
            return torch.from_numpy(parts[0]).view(-1)
        answer = torch.empty(sum(part.size for part in parts), dtype=dtype)
        pack_floats(parts, answer)
        return answer

    def _rows(self, request: Request) -> list[Ints]:
        by_table = request.rows(len(self.shards))
        for rows, shard in zip(by_table, self.shards, strict=True):
            if len(rows) and not (rows[0] >= 0 and rows[-1] < shard.rows and bool((rows[1:] > rows[:-1]).all())):
                raise RunError(
                    f"rank {request.worker} named rows of table {shard.table.shown} that are none or in no order"
                )
        return by_table

    def _save(self, request: Request) -> Tensor:
        folder = Path(os.fsdecode(request.ints.astype(np.uint8).tobytes()))
        names = [
            shard_file(number, self.index, self._spec.count, request.step + 1) for number in range(len(self.shards))
        ]
        hashes = [write_shard(folder / name, shard) for name, shard in zip(names, self.shards, strict=True)]
        return pack_saved([shard.updates for shard in self.shards], hashes)

    def figures(self) -> Mapping[str, int]:
        """Return counts of what the server did: bytes in memory, rows read from and written to the cold tier."""
        tiers = [shard.tier for shard in self.shards]
        cold = [tier for tier in tiers if isinstance(tier, TieredCache)]
        return {
            "memory_bytes": self.memory_bytes,
            "table_bytes": sum(shard.rows * shard.record_width * FLOAT_BYTES for shard in self.shards),
            "cold_reads": sum(tier.reads for tier in cold),
            "cold_writes": sum(tier.writes for tier in cold),
        }


def serve_forever(
    spec: ServerSpec,
    rank: int,
    *,
    group: dist.ProcessGroup | None = None,
    heard: Callable[[int], None] | None = None,
) -> Server:
    """Serve until every worker has closed its client.

    Args:
        spec: The same on all ranks.
        rank: This server's, one of ``spec.ranks``.
        group: In which workers and servers are; None for all ranks. Its timeout must be longer than a step.
        heard: Is told the step of every request, after it was handled: a sign of life.

    Returns:
        The server as it is at the end.

    Raises:
        InputError: where a checkpoint cannot be read.
        RunError: where tables do not fit, a request cannot be right, or a worker is gone.
    """
    server = Server(spec, spec.ranks.index(rank))
    link = WorkersLink(spec.wire, group)
    while not server.is_over:
        request = link.receive()
        for worker, answer in server.handle(request):
            link.answer(worker, answer)
        if heard is not None:
            heard(request.step)
    link.flush()
    return server
