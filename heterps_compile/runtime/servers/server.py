"""A parameter server: one rank that holds a shard of every table and answers the workers.

Synchronous (staleness 0)::

    worker 0   push 4 ------.            pull 5 --.
    worker 1         push 4 --.  pull 5 .....     |
    server                    apply 4   answer  answer      gradients of a step are summed over the workers, in order
                                                            of their ranks, and applied once

With a staleness of s steps every push is applied as it comes, and a pull waits only for what may not be older. Pushes
of steps after a checkpoint wait until that is written: it holds every push of the steps before, once, and none of those
after.

Where the norm of the whole model is clipped, a push has two phases::

    worker 0   push 4   norm 4 --.            scale 4 x 0.7 --.  pull 5 --.
    worker 1   push 4 --.        |  (all ranks agree)         |           |
    server           sum 4    answer squares               apply 4     answer

Left out: the other side (``client.py``), what a message looks like (``protocol.py``). A server does not notice that a
worker has died: it waits for its next word, and whoever started the run ends it.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heterps_compile.errors import RunError

from .growing_shard import GrowingShard
from .make_growing import make_growing
from .protocol import Kind, Request, pack_floats, wire_dtype
from .saved_counts import SavedCounts, pack_counts, pack_saved
from .saved_tables import ShardName, fill_shard, read_saved, write_shard
from .server_link import WorkersLink
from .shard import Shard, sum_rows
from .spec import ServerSpec, allot_memory, record_bytes, shard_rows
from .tiered_cache import Floats, Ints, TieredCache

Answer = tuple[int, Tensor]  # the worker, and what it is sent


@dataclass(frozen=True, slots=True)
class _Summed:
    """What was pushed for one step, by one worker or by all of them.

    Attributes:
        step: Which.
        lr: The learning rate it is applied with.
        parts: By table the distinct rows, in order, and their gradients.
    """

    step: int
    lr: float
    parts: list[tuple[Ints, Floats]]


class Server:
    """The shard of every table that has one number, and which requests wait for which pushes.

    Attributes:
        index: The number.
        shards: One of every table.
        is_over: Whether every worker has said that it needs nothing more.
    """

    def __init__(self, spec: ServerSpec, index: int) -> None:
        """Make the shards and fill them, from the compiled stages or from a checkpoint.

        Args:
            spec: The same on all ranks.
            index: The number of the shards.

        Raises:
            InputError: where the checkpoint cannot be read.
            RunError: where the tables do not fit into memory and disk, or their rows cannot be read.
        """
        self._spec, self.index = spec, index
        rows = [shard_rows(table.rows, spec.count, index) for table in spec.tables]
        needs = [count * record_bytes(t, spec.optimizer.states) for count, t in zip(rows, spec.tables, strict=True)]
        allotted = allot_memory(tuple(needs), spec.memory_bytes)
        saved = None if spec.resume is None else read_saved(spec.resume)
        self.shards: list[Shard | GrowingShard] = []
        for table, count, memory_bytes in zip(spec.tables, rows, allotted, strict=True):
            if table.growth is not None:
                self.shards.append(make_growing(table, index, spec, saved))
                continue
            shard = Shard(table, count, spec.optimizer, memory_bytes=memory_bytes, directory=spec.directory)
            fill_shard(shard, index, spec, saved)
            self.shards.append(shard)
        self._arrived = dict.fromkeys(spec.workers, spec.first_step - 1)
        self._applied = dict.fromkeys(spec.workers, spec.first_step - 1)
        self._stopped: set[int] = set()
        self._unscaled: _Summed | None = None  # the last step's, until somebody says what to multiply it by
        self._after_saving: list[Request] = []
        every = spec.save_every
        self._last_before_saving = None if every is None else (spec.first_step // every + 1) * every - 1
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
        return sum(shard.memory_bytes for shard in self.shards)

    def handle(self, request: Request) -> list[Answer]:
        """Do what a request asks and give the answers that are ready, to it or to those that have waited.

        Raises:
            RunError: where the request cannot be right, or a checkpoint cannot be written.
        """
        if request.worker not in self._arrived:
            raise RunError(f"rank {request.worker} is no worker of these parameter servers; do all ranks agree?")
        if request.kind is Kind.STOP:
            self._stopped.add(request.worker)
            return []
        if request.kind is Kind.PUSH:
            self._take(request)
        elif request.kind is Kind.SCALE:
            self._scale(request)
        else:
            self._waiting.append(request)
        answers: list[Answer] = []
        is_more = True
        while is_more:  # a checkpoint that is written lets pushes in, for which others may have waited
            waiting, self._waiting = self._waiting, []
            is_ready = [self._is_ready(one) for one in waiting]
            self._waiting = [one for one, ready in zip(waiting, is_ready, strict=True) if not ready]
            answers += [(o.worker, self._answer(o)) for o, ready in zip(waiting, is_ready, strict=True) if ready]
            is_more = any(is_ready)
        return answers

    def _is_ready(self, request: Request) -> bool:
        """Say whether the pushes that a request waits for are in: applied, but for what asks for their norm."""
        if request.kind is Kind.NORM:
            return self._unscaled is not None and self._unscaled.step == request.step
        return request.step <= min(self._applied.values())

    def _answer(self, request: Request) -> Tensor:
        if request.kind is Kind.PULL:
            return self._pull(request)
        if request.kind is Kind.COUNT:
            return pack_counts(self._counts())
        return self._save(request) if request.kind is Kind.SAVE else self._squares()

    def _take(self, push: Request) -> None:
        expected = self._arrived[push.worker] + 1
        if push.step != expected:
            raise RunError(f"rank {push.worker} pushed step {push.step} to a parameter server that expects {expected}")
        self._arrived[push.worker] = push.step
        if self._spec.staleness != 0:
            self._take_alone(push)
            return
        parts = self._parts.setdefault(push.step, {})
        parts[push.worker] = push
        if len(parts) == len(self._arrived):
            summed = self._sum([parts[worker] for worker in sorted(parts)])
            del self._parts[push.step]
            if self._spec.clips:
                self._unscaled = summed
            else:
                self._apply(summed)
                self._applied = dict.fromkeys(self._applied, push.step)

    def _take_alone(self, push: Request) -> None:
        """Apply one worker's push, or put it by until the checkpoint of the steps before it is written."""
        if self._last_before_saving is not None and push.step > self._last_before_saving:
            self._after_saving.append(push)
            return
        self._apply(self._sum([push]))
        self._applied[push.worker] = push.step

    def _scale(self, request: Request) -> None:
        """Apply the step whose gradients were held."""
        held = self._unscaled
        if held is None or held.step != request.step:
            raise RunError(
                f"rank {request.worker} scales the gradients of step {request.step}, which the parameter server does "
                f"not hold; do all ranks agree?"
            )
        factor = request.number
        if factor != 1:
            held = replace(held, parts=[(rows, gradients * np.float32(factor)) for rows, gradients in held.parts])
        self._unscaled = None
        self._apply(held)
        self._applied = dict.fromkeys(self._applied, held.step)

    def _squares(self) -> Tensor:
        assert self._unscaled is not None  # noqa: S101 - it was ready
        squares = [np.square(gradients.astype(np.float64)).sum() for _, gradients in self._unscaled.parts]
        return torch.tensor(squares, dtype=torch.float64)

    def _sum(self, pushes: list[Request]) -> "_Summed":
        """Sum what some workers pushed for one step, in their order."""
        summed = []
        for parts in zip(*[self._gradients(push) for push in pushes], strict=True):
            if len(parts) == 1:  # what one worker pushes is distinct and in order already
                summed.append(parts[0])
            else:
                rows, gradients = (np.concatenate(of_all) for of_all in zip(*parts, strict=True))
                summed.append(sum_rows(rows, gradients))
        return _Summed(pushes[0].step, pushes[0].number, summed)

    def _apply(self, summed: "_Summed") -> None:
        for shard, (rows, gradients) in zip(self.shards, summed.parts, strict=True):
            shard.push(rows, gradients, summed.lr, summed.step)

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
            fits = not len(rows) or shard.table.growth is not None or (rows[0] >= 0 and rows[-1] < shard.rows)
            if not fits or not bool((rows[1:] > rows[:-1]).all()):
                raise RunError(
                    f"rank {request.worker} named rows of table {shard.table.shown} that are none or in no order"
                )
        return by_table

    def _save(self, request: Request) -> Tensor:
        folder = Path(os.fsdecode(request.ints.astype(np.uint8).tobytes()))
        written = ShardName(self.index, self._spec.count, request.step + 1)
        names = [written.of_table(number) for number in range(len(self.shards))]
        hashes = [write_shard(folder / name, shard) for name, shard in zip(names, self.shards, strict=True)]
        self._go_on_after(request.step)
        return pack_saved(self._counts(), hashes)

    def _counts(self) -> list[SavedCounts]:
        return [
            SavedCounts(shard.updates, shard.rows, shard.new_rows, shard.evicted, shard.waiting)
            if isinstance(shard, GrowingShard)
            else SavedCounts(shard.updates, shard.rows)
            for shard in self.shards
        ]

    def _go_on_after(self, step: int) -> None:
        """Take the pushes that waited until the checkpoint of a step was written."""
        if self._last_before_saving is None or self._spec.save_every is None or step < self._last_before_saving:
            return
        self._last_before_saving += self._spec.save_every
        waited, self._after_saving = self._after_saving, []
        for push in waited:
            self._take_alone(push)

    def figures(self) -> Mapping[str, int]:
        """Return counts of what the server did: bytes in memory, rows read from and written to the cold tier."""
        tiers = [shard.tier for shard in self.shards if isinstance(shard, Shard)]
        cold = [tier for tier in tiers if isinstance(tier, TieredCache)]
        return {
            "memory_bytes": self.memory_bytes,
            "table_bytes": sum(shard.row_bytes for shard in self.shards),
            "cold_reads": sum(tier.reads for tier in cold),
            "cold_writes": sum(tier.writes for tier in cold),
        }


def serve_forever(spec: ServerSpec, rank: int, *, heard: Callable[[int], None] | None = None) -> Server:
    """Serve until every worker has closed its client.

    Args:
        spec: The same on all ranks.
        rank: This server's, one of ``spec.ranks``.
        heard: Is told the step of every request, after it was handled: a sign of life.

    Returns:
        The server, as it is at the end.

    Raises:
        InputError: where a checkpoint cannot be read.
        RunError: where tables do not fit, a request cannot be right, or a worker is gone.
    """
    link = WorkersLink(spec)
    server = Server(spec, spec.ranks.index(rank))
    while not server.is_over:
        request = link.receive()
        for worker, answer in server.handle(request):
            link.answer(worker, answer)
        if heard is not None:
            heard(request.step)
    link.flush()
    return server
