"""A worker's side of the parameter servers.

Look-ups are known before a stage runs (``trace_lookups.py``), or are collected until one of them is needed; then they
become one pull: per table the distinct rows, per server one request and one answer. Rows that a micro-batch pulled are
leaves of its autograd graph; after the backward of a step their gradients are summed over micro-batches and look-ups
and pushed, one message a server.

Rows can be requested before the stage runs on them, as soon as its inputs are known (``row_prefetch.py`` says when).
They are under way while something else is computed::

    worker    | ask 0 | ask 1 | wait 0, compute 0 | ask 2 | wait 1, compute 1 | ...
    server            | answer 0 | answer 1 |             | answer 2 |

Left out: how ids become requests and answers rows (``pending_pull.py``); what a look-up makes of its rows
(``served_table.py``).
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps_compile.backends.repeated_forward import RepeatedForward, running_forward
from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.recorder import Recorder, Recorders

from .pending_pull import Lookup, PendingPull, PulledOnce, Rows, distinct_rows
from .protocol import Kind, pack_number, pack_request, wire_dtype
from .saved_counts import SavedCounts, add_counts, counted_numbers, saved_numbers, unpack_counts, unpack_saved
from .saved_tables import write_manifest
from .server_link import Link, ServersLink, Wait
from .shard import sum_rows
from .spec import ServerSpec
from .tiered_cache import Floats, Ints


@dataclass(frozen=True, slots=True)
class _KnownLookups:
    """Look-ups of a stage that are known from its inputs.

    Attributes:
        inputs: Names of all inputs of the stage, in order.
        tables: Numbers of the tables, one for each look-up.
        compute: Gives the ids of each.
    """

    inputs: tuple[str, ...]
    tables: tuple[int, ...]
    compute: Callable[..., Sequence[Tensor]]


def _flat(ids: Tensor) -> Ints:
    return ids.detach().cpu().reshape(-1).to(torch.int64).numpy()


def _finish(lookup: Lookup, rows: Rows) -> None:
    if lookup.pulled is not None:
        lookup.pulled.rows = rows
    with torch.set_grad_enabled(lookup.wants_gradient):
        lookup.result = lookup.finish(rows.weights, torch.from_numpy(rows.positions), rows.distinct)


def _look_up_again(forward: RepeatedForward, lookup: Lookup) -> Lookup:
    """Look up, in the repetition of a forward, rows that the forward has pulled, and make of them what it did when."""
    pulled: PulledOnce = forward.take()
    assert pulled.rows is not None, "a forward ends with all its rows"  # noqa: S101 - served_table.py sees to that
    if pulled.is_ahead:
        _finish(lookup, pulled.rows)
    else:
        forward.waiting.append((lookup, pulled.rows))
    return lookup


class Client:
    """Pulls rows and pushes gradients for the stages of one rank; a step hook of the engine.

    Attributes:
        spec: What the servers hold.
        learning_rate: Of the pushes to come.
        on_counts: Is told the numbers of rows of every table after so many steps, with every checkpoint and in the end,
            on the worker that speaks for all; None for nobody.
    """

    def __init__(
        self, spec: ServerSpec, rank: int, *, link: Link | None = None, recorder: Recorder | None = None
    ) -> None:
        """Connect; waits for the other workers and the servers.

        Args:
            spec: The same on all ranks.
            rank: This worker's, one of ``spec.workers``.
            link: To the servers; None for one between the ranks of the world.
            recorder: Is told of time spent waiting for rows.
        """
        self.spec = spec
        self._rank = rank
        self._link: Link = link or ServersLink(spec)
        self._recorder: Recorder = recorder or Recorders()
        self._step = spec.first_step
        self._pushed = spec.first_step - 1
        self._collected: list[Lookup] = []
        self._prefetched: dict[int, deque[tuple[Ints, Rows]]] = {}  # by table: ids of look-ups to come, and their rows
        self._leaves: list[tuple[int, Ints, Tensor]] = []  # table, distinct rows, their weights
        self._known: list[_KnownLookups] = []
        self._pending: list[PendingPull] = []
        self._squares: tuple[list[Tensor], Wait] | None = None
        self.learning_rate = spec.optimizer.lr
        self._counted: int | None = None  # after which push rows were counted last
        self.on_counts: Callable[[int, Sequence[SavedCounts]], object] | None = None

    def before_step(self, step: int) -> None:
        """Begin a step; what the step before left is dropped."""
        self._step = step
        self._leaves.clear()
        self._collected.clear()
        self._prefetched.clear()

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
            named, _ = self._named([rows for rows, _ in summed], mine)
            ints = [pack_number(self.learning_rate), *named]
            floats = [gradients[is_mine] for (_, gradients), is_mine in zip(summed, mine, strict=True)]
            self._link.send(index, pack_request(Kind.PUSH, self._rank, step, ints, floats=floats, wire=self.spec.wire))
        self._pushed = step
        if self.spec.clips and self.is_first:  # before pulls of the next step, which are answered after it
            answers = [torch.empty(len(self.spec.tables), dtype=torch.float64) for _ in self.spec.ranks]
            wait = self._send(Kind.NORM, step, [(index, [], out) for index, out in enumerate(answers)])
            self._squares = answers, wait

    @property
    def is_first(self) -> bool:
        """Say whether this is the worker that speaks for all of them: saves, and scales gradients."""
        return self.spec.workers[0] == self._rank

    @property
    def places(self) -> int:
        """Return how many sums of squares there are: one of every table."""
        return len(self.spec.tables)

    def squares(self) -> list[float]:
        """Return the sum of squares of every table's gradients of the step, summed over all workers.

        Raises:
            RunError: where a server is gone.
        """
        assert self._squares is not None  # noqa: S101 - after_backward has asked
        answers, wait = self._squares
        self._squares = None
        wait()
        self._link.flush()
        return [math.fsum(of_servers) for of_servers in zip(*(one.tolist() for one in answers), strict=True)]

    def scale(self, factor: float) -> None:
        """Have the servers apply the gradients of the step, multiplied by a factor.

        Raises:
            RunError: where a server is gone.
        """
        for index in range(self.spec.count):
            self._link.send(index, pack_request(Kind.SCALE, self._rank, self._pushed, [pack_number(factor)]))

    def look_up(self, table: int, ids: Tensor, finish: Callable[[Tensor, Tensor, Ints], Any]) -> Lookup:
        """Request rows without waiting for them.

        Args:
            table: Number of the table in the spec.
            ids: Row numbers, any shape.
            finish: See :class:`Lookup`.
        """
        forward = running_forward()
        if forward is not None and forward.is_repetition:
            return _look_up_again(forward, Lookup(table, _flat(ids), finish, torch.is_grad_enabled()))
        prefetched, flat = self._prefetched.get(table), _flat(ids)
        is_ahead = prefetched is not None and bool(prefetched) and np.array_equal(prefetched[0][0], flat)
        pulled = None if forward is None else PulledOnce(is_ahead)
        lookup = Lookup(table, flat, finish, torch.is_grad_enabled(), pulled)
        if forward is not None:
            forward.fetched.append(pulled)
        if prefetched and is_ahead:
            _finish(lookup, prefetched.popleft()[1])
        else:
            self._collected.append(lookup)
        return lookup

    def expect(
        self, inputs: Sequence[str], tables: Sequence[int], compute: Callable[..., Sequence[Tensor]]
    ) -> Callable[..., None]:
        """Note look-ups that are known from the inputs of a stage, so that they can be prefetched.

        Args:
            inputs: Names of its inputs, in order.
            tables: Numbers of the tables, one for each look-up, in the order in which each is looked up.
            compute: Gives the ids of each from the inputs.

        Returns:
            What is to be called with the inputs right before the stage runs: it gets their rows.
        """
        self._known.append(_KnownLookups(tuple(inputs), tuple(tables), compute))
        return lambda *values: self._get_rows(tables, compute(*values))

    def prefetch(self, values: Mapping[str, Any]) -> None:
        """Request the rows of the look-ups that these inputs make known, without waiting for them.

        They are those that a pull would get now. What cannot be right is left for the stage to find out.

        Args:
            values: By name of the input.

        Raises:
            RunError: where a server is gone.
        """
        for stage in self._known:
            if stage.inputs and all(name in values for name in stage.inputs):
                ids = [_flat(one) for one in stage.compute(*(values[name] for name in stage.inputs))]
                if all(self._are_rows(table, rows) for table, rows in zip(stage.tables, ids, strict=True)):
                    self._pending.append(self._request(list(zip(stage.tables, ids, strict=True))))

    def _get_rows(self, tables: Sequence[int], ids: Sequence[Tensor]) -> None:
        """Get the rows of look-ups that are about to come, in this order for each table; not for a repetition."""
        forward = running_forward()
        if forward is not None and forward.is_repetition:
            return
        flat = [_flat(one) for one in ids]
        pending = next((one for one in self._pending if one.is_of(tables, flat)), None)
        if pending is None:
            pending = self._request(list(zip(tables, flat, strict=True)))
        else:
            self._pending.remove(pending)
        found = self._rows_of(pending, torch.is_grad_enabled())
        self._prefetched = {}
        for table, one, rows in zip(tables, flat, found, strict=True):
            self._prefetched.setdefault(table, deque()).append((one, rows))

    def pull(self) -> None:
        """Get the rows of all look-ups collected so far, and finish them.

        Raises:
            RunError: where an id is no row of its table, or a server is gone.
        """
        forward = running_forward()
        if forward is not None and forward.is_repetition:
            for lookup, rows in forward.waiting:
                _finish(lookup, rows)
            forward.waiting.clear()
            return
        lookups, self._collected = self._collected, []
        pending = self._request([(lookup.table, lookup.ids) for lookup in lookups])
        found = self._rows_of(pending, any(lookup.wants_gradient for lookup in lookups))
        for lookup, rows in zip(lookups, found, strict=True):
            _finish(lookup, rows)

    def _request(self, lookups: Sequence[tuple[int, Ints]]) -> PendingPull:
        """Request the rows of several look-ups at once."""
        distinct, positions = distinct_rows(lookups, len(self.spec.tables))
        for number, rows in enumerate(distinct):
            self._check(number, rows)
        dtype, answers, calls = wire_dtype(self.spec.wire), [], []
        for index in range(self.spec.count):
            mine = [rows % self.spec.count == index for rows in distinct]
            ints, sizes = self._named(distinct, mine)
            out = torch.empty(sum(n * t.width for n, t in zip(sizes, self.spec.tables, strict=True)), dtype=dtype)
            answers.append((mine, out))
            calls.append((index, ints, out))
        began_s = time.perf_counter()
        wait = self._send(Kind.PULL, self._pushed - self.spec.staleness, calls)
        return PendingPull(lookups, distinct, positions, answers, wait, began_s)

    def _rows_of(self, pending: PendingPull, wants_gradient: bool) -> list[Rows]:
        """Wait for the answers, and return the rows of each look-up; those of one table share one leaf."""
        self._wait(pending.wait, pending.began_s, [out for _, out in pending.answers])
        weights = pending.weights([table.width for table in self.spec.tables])
        for number, leaf in enumerate(weights):
            if wants_gradient and self.spec.tables[number].trained and pending.positions[number]:
                leaf.requires_grad_()
                self._leaves.append((number, pending.distinct[number], leaf))
        next_of = [iter(parts) for parts in pending.positions]
        return [Rows(weights[table], next(next_of[table]), pending.distinct[table]) for table, _ in pending.lookups]

    def save(self, folder: Path) -> dict[str, str]:
        """Have the servers write their tables as they are after the last step that this worker has pushed.

        One worker calls this, the others go on. With a staleness, what they push in the meantime may be in it, unless
        this is a step of ``save_every``.

        Returns:
            SHA-256 of the files of the folder, by name.

        Raises:
            RunError: where a server is gone or the folder cannot be written.
        """
        name = np.frombuffer(os.fsencode(folder.absolute()), np.uint8).astype(np.int64)
        answers = [torch.empty(saved_numbers(len(self.spec.tables)), dtype=torch.int64) for _ in self.spec.ranks]
        began_s = time.perf_counter()
        wait = self._send(Kind.SAVE, self._pushed, [(index, [name], out) for index, out in enumerate(answers)])
        self._wait(wait, began_s, answers)
        said = [unpack_saved(answer) for answer in answers]
        self._tell_counts([shard.counts for shard in said])
        return write_manifest(folder, self.spec, self._pushed + 1, said)

    def _tell_counts(self, of_shards: Sequence[Sequence[SavedCounts]]) -> None:
        if self.on_counts is not None:
            self._counted = self._pushed
            counts = [add_counts(of_table) for of_table in zip(*of_shards, strict=True)]
            self.on_counts(self._pushed + 1, counts)

    def _count(self) -> None:
        """Learn how many rows there are after the last step."""
        answers = [torch.empty(counted_numbers(len(self.spec.tables)), dtype=torch.int64) for _ in self.spec.ranks]
        self._send(Kind.COUNT, self._pushed, [(index, [], out) for index, out in enumerate(answers)])()
        self._tell_counts([unpack_counts(answer) for answer in answers])

    def close(self) -> None:
        """Tell the servers that this worker needs nothing more; they end when all workers have.

        Raises:
            RunError: where a server is gone.
        """
        for pending in self._pending:  # of a step that nobody runs any more
            pending.wait()
        self._pending.clear()
        if self.on_counts is not None and self.is_first and self._counted != self._pushed:
            self._count()
        for index in range(self.spec.count):
            self._link.send(index, pack_request(Kind.STOP, self._rank, self._pushed))
        self._link.flush()

    def _are_rows(self, number: int, ids: Ints) -> bool:
        table = self.spec.tables[number]
        return not len(ids) or table.growth is not None or bool(ids.min() >= 0 and ids.max() < table.rows)

    def _check(self, number: int, rows: Ints) -> None:
        if not self._are_rows(number, rows):
            table = self.spec.tables[number]
            wrong = int(rows[0] if rows[0] < 0 else rows[-1])
            raise RunError(
                f"step {self._step} looks up row {wrong:,} of table {table.shown}, which has rows 0 to "
                f"{table.rows - 1:,}; check the data, or build the model with more rows"
            )

    def _named(self, distinct: Sequence[Ints], mine: Sequence[np.ndarray]) -> tuple[list[Ints], list[int]]:
        """Return the int64 part of a request to one server, and how many rows of every table it names."""
        rows = [
            every[is_mine] if table.growth is not None else every[is_mine] // self.spec.count
            for every, is_mine, table in zip(distinct, mine, self.spec.tables, strict=True)
        ]
        sizes = [len(part) for part in rows]
        return [np.array(sizes, np.int64), *rows], sizes

    def _send(self, kind: Kind, step: int, calls: Sequence[tuple[int, list[Ints], Tensor]]) -> Wait:
        """Begin to ask servers; one that has nothing to answer is left in peace."""
        return self._link.ask(
            [(index, pack_request(kind, self._rank, step, ints), out) for index, ints, out in calls if out.numel()]
        )

    def _wait(self, wait: Wait, began_s: float, outs: Sequence[Tensor]) -> None:
        """Wait for the answers of all servers."""
        waiting_s = time.perf_counter()
        wait()
        self._link.flush()
        ended_s = time.perf_counter()
        self._recorder.waited(self._step, "pull", waiting_s, ended_s)
        for index, out in enumerate(outs):
            if out.numel():
                self._recorder.message(self._step, self.spec.ranks[index], self._rank, out.nbytes, began_s, ended_s)
