"""A worker's side of the parameter servers.

Look-ups are known before a stage runs (``ahead.py``), or are collected until one of them is needed; then all of them
become one pull: per table the distinct rows, per server one request and one answer. Rows that a micro-batch pulled are
leaves of its autograd graph; after the backward of a step their gradients are summed over micro-batches and look-ups
and pushed, one message a server.

Left out: pulling for the next micro-batch while this one is computed; what a look-up makes of its rows
(``served.py``).
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.record import Recorder, Recorders

from .link import GroupLink, Link
from .protocol import Kind, pack_request, wire_dtype
from .saved import write_manifest
from .shard import sum_rows
from .spec import ServerSpec
from .tiers import Floats, Ints


@dataclass(slots=True)
class Lookup:
    """Rows that somebody will need; made by :meth:`Client.look_up`.

    Attributes:
        table: Number of the table.
        ids: Row numbers of the table, flat.
        finish: Makes the result of the pulled rows [distinct, width], of where in them each id is, and of the ids.
        wants_gradient: Whether autograd was on.
        result: What ``finish`` gave; None until pulled.
    """

    table: int
    ids: Ints
    finish: Callable[[Tensor, Tensor, Ints], Any]
    wants_gradient: bool
    result: Any = None


@dataclass(frozen=True, slots=True)
class _Rows:
    """What was pulled for one look-up.

    Attributes:
        weights: [distinct, width], shared by all look-ups in the table.
        positions: Where in them each id is.
        distinct: Their row numbers.
    """

    weights: Tensor
    positions: Ints
    distinct: Ints


def _flat(ids: Tensor) -> Ints:
    return ids.detach().cpu().reshape(-1).to(torch.int64).numpy()


def _finish(lookup: Lookup, rows: _Rows) -> None:
    with torch.set_grad_enabled(lookup.wants_gradient):
        lookup.result = lookup.finish(rows.weights, torch.from_numpy(rows.positions), rows.distinct)


class Client:
    """Pulls rows and pushes gradients for the stages of one rank; a step hook of the engine.

    Attributes:
        spec: What the servers hold.
    """

    def __init__(
        self, spec: ServerSpec, rank: int, *, link: Link | None = None, recorder: Recorder | None = None
    ) -> None:
        """Connect nothing yet.

        Args:
            spec: The same on all ranks.
            rank: This worker's, one of ``spec.workers``.
            link: To the servers; None for one over the group of all ranks.
            recorder: Is told of time spent waiting for rows.
        """
        self.spec = spec
        self._rank = rank
        self._link: Link = link or GroupLink(spec.ranks)
        self._recorder: Recorder = recorder or Recorders()
        self._step = spec.first_step
        self._pushed = spec.first_step - 1
        self._collected: list[Lookup] = []
        self._ahead: dict[int, deque[tuple[Ints, _Rows]]] = {}  # by table: ids of look-ups to come, and their rows
        self._leaves: list[tuple[int, Ints, Tensor]] = []  # table, distinct rows, their weights

    def before_step(self, step: int) -> None:
        """Begin a step; what the step before left is dropped."""
        self._step = step
        self._leaves.clear()
        self._collected.clear()
        self._ahead.clear()

    def after_backward(self, step: int) -> None:
        """Push the step's gradients, summed over its micro-batches; returns before they have arrived.

        Raises:
            RunError: where a server is gone.
        """
        rows_of: list[list[Ints]] = [[] for _ in self.spec.tables]
        gradients_of: list[list[Floats]] = [[] for _ in self.spec.tables]
        for number, distinct, leaf in self._leaves:
            if leaf.grad is not None:
                rows_of[number].append(distinct)
                gradients_of[number].append(leaf.grad.numpy())
        self._leaves.clear()
        summed: list[tuple[Ints, Floats]] = []
        for table, rows, gradients in zip(self.spec.tables, rows_of, gradients_of, strict=True):
            if len(rows) == 1:
                summed.append((rows[0], gradients[0]))
            elif rows:
                summed.append(sum_rows(np.concatenate(rows), np.concatenate(gradients)))
            else:
                summed.append((np.empty(0, np.int64), np.empty((0, table.width), np.float32)))
        self._link.flush()  # of the step before
        for index in range(self.spec.count):
            mine = [rows % self.spec.count == index for rows, _ in summed]
            ints, _ = self._asked([rows for rows, _ in summed], mine)
            floats = [gradients[is_mine] for (_, gradients), is_mine in zip(summed, mine, strict=True)]
            self._link.send(index, pack_request(Kind.PUSH, self._rank, step, ints, floats=floats, wire=self.spec.wire))
        self._pushed = step

    def look_up(self, table: int, ids: Tensor, finish: Callable[[Tensor, Tensor, Ints], Any]) -> Lookup:
        """Ask for rows without waiting for them.

        Args:
            table: Number of the table in the spec.
            ids: Row numbers, any shape.
            finish: See :class:`Lookup`.
        """
        lookup = Lookup(table, _flat(ids), finish, torch.is_grad_enabled())
        ahead = self._ahead.get(table)
        if ahead and np.array_equal(ahead[0][0], lookup.ids):
            _finish(lookup, ahead.popleft()[1])
        else:
            self._collected.append(lookup)
        return lookup

    def pull_ahead(self, tables: Sequence[int], ids: Sequence[Tensor]) -> None:
        """Get the rows of look-ups that are about to come, in this order for each table.

        Args:
            tables: Numbers of the tables, one for each look-up.
            ids: Row numbers, any shape.

        Raises:
            RunError: where an id is no row of its table, or a server is gone.
        """
        flat = [_flat(one) for one in ids]
        found = self._rows_of(list(zip(tables, flat, strict=True)), torch.is_grad_enabled())
        self._ahead = {}
        for table, one, rows in zip(tables, flat, found, strict=True):
            self._ahead.setdefault(table, deque()).append((one, rows))

    def pull(self) -> None:
        """Get the rows of all look-ups collected so far, and finish them.

        Raises:
            RunError: where an id is no row of its table, or a server is gone.
        """
        lookups, self._collected = self._collected, []
        asked = [(lookup.table, lookup.ids) for lookup in lookups]
        found = self._rows_of(asked, any(lookup.wants_gradient for lookup in lookups))
        for lookup, rows in zip(lookups, found, strict=True):
            _finish(lookup, rows)

    def _rows_of(self, asked: Sequence[tuple[int, Ints]], wants_gradient: bool) -> list["_Rows"]:
        """Pull the rows of several look-ups at once; those of one table share one leaf."""
        ids_of: list[list[Ints]] = [[] for _ in self.spec.tables]
        for table, ids in asked:
            ids_of[table].append(ids)
        distinct: list[Ints] = []
        positions: list[list[Ints]] = []
        for number, mine in enumerate(ids_of):
            ids = np.concatenate(mine) if mine else np.empty(0, np.int64)
            rows, inverse = np.unique(ids, return_inverse=True)
            self._check(number, rows)
            distinct.append(rows)
            positions.append(np.split(inverse.reshape(-1), np.cumsum([len(one) for one in mine])[:-1]))
        leaves = [torch.from_numpy(weights) for weights in self._fetch(distinct)]
        for number, leaf in enumerate(leaves):
            if wants_gradient and self.spec.tables[number].trained and ids_of[number]:
                leaf.requires_grad_()
                self._leaves.append((number, distinct[number], leaf))
        next_of = [iter(parts) for parts in positions]
        return [_Rows(leaves[table], next(next_of[table]), distinct[table]) for table, _ in asked]

    def save(self, folder: Path) -> None:
        """Have the servers write their tables as they are after the last step that this worker has pushed.

        One worker calls this, the others go on; with a staleness, what they push in the meantime may be in it.

        Raises:
            RunError: where a server is gone or the folder cannot be written.
        """
        name = np.frombuffer(os.fsencode(folder.absolute()), np.uint8).astype(np.int64)
        updates = [torch.empty(len(self.spec.tables), dtype=torch.int64) for _ in self.spec.ranks]
        self._exchange(Kind.SAVE, self._pushed, [(index, [name], out) for index, out in enumerate(updates)])
        write_manifest(folder, self.spec, self._pushed + 1, updates[0].tolist())

    def close(self) -> None:
        """Tell the servers that this worker needs nothing more; they end when all workers have.

        Raises:
            RunError: where a server is gone.
        """
        for index in range(self.spec.count):
            self._link.send(index, pack_request(Kind.STOP, self._rank, self._pushed))
        self._link.flush()

    def _check(self, number: int, rows: Ints) -> None:
        table = self.spec.tables[number]
        if len(rows) and (rows[0] < 0 or rows[-1] >= table.rows):
            wrong = int(rows[0] if rows[0] < 0 else rows[-1])
            raise RunError(
                f"step {self._step} looks up row {wrong:,} of table {table.shown}, which has rows 0 to "
                f"{table.rows - 1:,}; check the data, or build the model with more rows"
            )

    def _fetch(self, distinct: Sequence[Ints]) -> list[Floats]:
        """Give the weights of distinct rows, table by table."""
        count, dtype = self.spec.count, wire_dtype(self.spec.wire)
        weights = [
            np.empty((len(rows), t.width), np.float32) for rows, t in zip(distinct, self.spec.tables, strict=True)
        ]
        masks = [[rows % count == index for rows in distinct] for index in range(count)]
        calls = []
        for index, mine in enumerate(masks):
            ints, sizes = self._asked(distinct, mine)
            out = torch.empty(sum(n * t.width for n, t in zip(sizes, self.spec.tables, strict=True)), dtype=dtype)
            calls.append((index, ints, out))
        self._exchange(Kind.PULL, self._pushed - self.spec.staleness, calls)
        for (*_, out), mine in zip(calls, masks, strict=True):
            flat, at = out.float().numpy(), 0
            for part, is_mine in zip(weights, mine, strict=True):
                size = int(np.count_nonzero(is_mine)) * part.shape[1]
                part[is_mine] = flat[at : at + size].reshape(-1, part.shape[1])
                at += size
        return weights

    def _asked(self, distinct: Sequence[Ints], mine: Sequence[np.ndarray]) -> tuple[list[Ints], list[int]]:
        """Give the int64 part of a request to one server, and how many rows of every table it names."""
        rows = [every[is_mine] // self.spec.count for every, is_mine in zip(distinct, mine, strict=True)]
        sizes = [len(part) for part in rows]
        return [np.array(sizes, np.int64), *rows], sizes

    def _exchange(self, kind: Kind, step: int, calls: Sequence[tuple[int, list[Ints], Tensor]]) -> None:
        """Ask servers and wait for all answers; a server that has nothing to answer is left in peace."""
        began_s = time.perf_counter()
        asked = [(index, pack_request(kind, self._rank, step, ints), out) for index, ints, out in calls if out.numel()]
        self._link.exchange(asked)
        ended_s = time.perf_counter()
        self._recorder.waited(self._step, "pull", began_s, ended_s)
        for index, _, out in asked:
            self._recorder.message(self._step, self.spec.ranks[index], self._rank, out.nbytes, began_s, ended_s)
