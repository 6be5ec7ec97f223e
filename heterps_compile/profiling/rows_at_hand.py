"""Rows of served tables without servers: they are there when a stage looks them up.

What a look-up takes beside the arithmetic on its rows (which rows they are, whose, where) is a part of what a table on
servers costs (``cost/served_rows.py``); a clock that is to measure the stage alone stops meanwhile.

Left out: when rows are put together (``served_chain.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps_compile.runtime.servers.pending_pull import Lookup, Rows, distinct_rows
from heterps_compile.runtime.servers.served_table import PullsRows, ServedTable, pulled
from heterps_compile.runtime.servers.spec import TableSpec
from heterps_compile.runtime.servers.tiered_cache import Ints

from .clock import Now


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that are served.

    Attributes:
        tables: In order.
    """

    tables: tuple[TableSpec, ...]


@dataclass(frozen=True, slots=True)
class _LookUps:
    """The look-ups of a pass: table and ids of each, the distinct rows of every table, and where in them each id is."""

    asked: Sequence[tuple[int, Ints]]
    distinct: Sequence[Ints]
    positions: Sequence[Sequence[Ints]]


class RowsAtHand(PullsRows):
    """Stands for the client of parameter servers: every look-up is finished at once.

    Attributes:
        stopped_s: For how long the clock has stood still.
    """

    def __init__(self, weights: Mapping[str, Tensor], now: Now) -> None:
        """Take the tables by name; their numbers are the places there."""
        self._spec = Tables(
            tuple(
                TableSpec(name, weight.shape[0], weight.shape[1], Path(), weight.requires_grad)
                for name, weight in weights.items()
            )
        )
        self._weights, self._now = list(weights.values()), now
        self._known: dict[int, _LookUps] = {}
        self._inputs = 0
        self._seen: list[tuple[int, Ints]] = []
        self._rows: list[Rows] = []
        self._used: list[Rows] = []
        self._stops = 0
        self.stopped_s = 0.0

    @property
    def spec(self) -> Tables:
        """Return the tables."""
        return self._spec

    def begin(self, inputs: Mapping[str, Any]) -> None:
        """Put the rows together that a pass over these inputs looked up before, as a pull does."""
        self._inputs, self._seen, self._used = id(inputs), [], []
        known = self._known.get(self._inputs)
        self._rows = [] if known is None else self._put_together(known)

    def end(self) -> None:
        """Note what was looked up."""
        if self._inputs not in self._known:
            self._known[self._inputs] = self._look_ups(self._seen)

    def look_up(self, table: int, ids: Tensor, finish: Callable[[Tensor, Tensor, Ints], Any]) -> Lookup:
        """Finish a look-up of rows that are at hand; of ids that are others than before they are put together now."""
        flat: Ints = ids.detach().cpu().reshape(-1).to(torch.int64).numpy()
        place = len(self._seen)
        self._seen.append((table, flat))
        rows = self._at_hand(place, table, flat) or self._put_together(self._look_ups([(table, flat)]))[0]
        self._used.append(rows)
        found = Lookup(table, flat, finish, torch.is_grad_enabled())
        found.result = finish(rows.weights, torch.from_numpy(rows.positions), rows.distinct)
        return found

    def pull(self) -> None:
        """Do nothing: no look-up waits."""

    def gradients(self) -> "dict[str, list[tuple[Tensor, Tensor]]]":
        """Return by table the rows that the last pass looked up, each with its gradient."""
        found: dict[str, list[tuple[Tensor, Tensor]]] = {}
        leaves = {id(rows.weights): (table, rows) for (table, _), rows in zip(self._seen, self._used, strict=True)}
        for table, rows in leaves.values():
            if rows.weights.grad is not None:
                name = self._spec.tables[table].name
                found.setdefault(name, []).append((torch.from_numpy(rows.distinct), rows.weights.grad))
        return found

    def run(self, func: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Run the function of a look-up on its rows, while the clock goes on."""
        began_s = self._now()
        result = func(**given)
        self.stopped_s -= self._now() - began_s
        return result

    def stop(self) -> None:
        """Have the clock stand still until its :meth:`go`, but for what is run on rows; may be nested."""
        self._stops += 1
        if self._stops == 1:
            self.stopped_s -= self._now()

    def go(self) -> None:
        """Have the clock go on."""
        self._stops -= 1
        if self._stops == 0:
            self.stopped_s += self._now()

    def _at_hand(self, place: int, table: int, ids: Ints) -> Rows | None:
        if place >= len(self._rows):
            return None
        asked = self._known[self._inputs].asked[place]
        return self._rows[place] if asked[0] == table and np.array_equal(asked[1], ids) else None

    def _look_ups(self, asked: Sequence[tuple[int, Ints]]) -> _LookUps:
        return _LookUps(tuple(asked), *distinct_rows(asked, len(self._weights)))

    def _put_together(self, known: _LookUps) -> list[Rows]:
        """Return the rows of each look-up, copied; those of one table share one leaf of the autograd graph."""
        leaves = []
        for weight, rows in zip(self._weights, known.distinct, strict=True):
            leaf = weight.detach()[torch.from_numpy(rows).to(weight.device)].cpu()
            leaves.append(leaf.requires_grad_() if weight.requires_grad and torch.is_grad_enabled() else leaf)
        next_of = [iter(parts) for parts in known.positions]
        return [Rows(leaves[table], next(next_of[table]), known.distinct[table]) for table, _ in known.asked]


class TimedTable(ServedTable):
    """A served table of rows at hand: the clock stands still while it is found which rows a look-up needs."""

    def __init__(self, client: RowsAtHand, _number: int, _device: torch.device) -> None:
        """Keep whose rows they are; the stand-in is made by then."""
        super().__init__()
        self.at_hand = client

    def run(self, func: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """Run the function of a look-up while the clock goes on."""
        return self.at_hand.run(func, given)

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look up, and give plain tensors."""
        given = (*args, *(kwargs or {}).values())
        rows = next(each for each in given if isinstance(each, TimedTable)).at_hand
        rows.stop()
        try:
            return pulled(super().__torch_function__(func, types, args, kwargs))
        finally:
            rows.go()
