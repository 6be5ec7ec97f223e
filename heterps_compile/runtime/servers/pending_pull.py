"""Rows that a worker needs, from the look-ups that need them to the tensors that the servers' answers make.

Look-ups of one table share its distinct rows: each is asked for once, and all of them read one tensor::

    ids of two look-ups    [7 3 7]  [3 9]
    distinct rows           3 7 9                of servers 0 and 1:  - - -   and   3 7 9  (row mod servers)
    positions              [1 0 1]  [0 2]

Left out: who sends what when (``client.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .server_link import Wait
from .tiered_cache import Ints


@dataclass(slots=True)
class Lookup:
    """Rows that somebody will need; made by ``Client.look_up``.

    Attributes:
        table: Number of the table.
        ids: Row numbers of the table, flat.
        finish: Makes the result of the pulled rows [distinct, width], of where in them each id is, and of the ids.
        wants_gradient: Whether autograd was on.
        pulled: Where its rows are noted for a repetition of the forward; None where there is none.
        result: What ``finish`` gave; None until pulled.
    """

    table: int
    ids: Ints
    finish: Callable[[Tensor, Tensor, Ints], Any]
    wants_gradient: bool
    pulled: "PulledOnce | None" = None
    result: Any = None


@dataclass(slots=True)
class PulledOnce:
    """The rows of a look-up in a forward that will be repeated; the repetition reads them again.

    Attributes:
        is_ahead: Whether they were there when they were looked up, so that its result was made at once.
        rows: They; None until pulled.
    """

    is_ahead: bool
    rows: "Rows | None" = None


@dataclass(frozen=True, slots=True)
class Rows:
    """What was pulled for one look-up.

    Attributes:
        weights: [distinct, width], shared by all look-ups in the table.
        positions: Where in them each id is.
        distinct: Their row numbers.
    """

    weights: Tensor
    positions: Ints
    distinct: Ints


@dataclass(frozen=True, slots=True)
class PendingPull:
    """Rows of several look-ups that are on their way.

    Attributes:
        lookups: Table and ids of each.
        distinct: By table the rows asked for.
        positions: By table, for each of its look-ups, where in them each id is.
        answers: By server which of the distinct rows of every table it has, and where its answer goes.
        wait: Waits for the answers.
        began_s: When they were asked for.
    """

    lookups: Sequence[tuple[int, Ints]]
    distinct: Sequence[Ints]
    positions: Sequence[Sequence[Ints]]
    answers: Sequence[tuple[Sequence[np.ndarray], Tensor]]
    wait: Wait
    began_s: float

    def is_of(self, tables: Sequence[int], ids: Sequence[Ints]) -> bool:
        """Say whether these are the rows of those look-ups, in that order."""
        return [table for table, _ in self.lookups] == list(tables) and all(
            np.array_equal(mine, theirs) for (_, mine), theirs in zip(self.lookups, ids, strict=True)
        )

    def weights(self, widths: Sequence[int]) -> list[Tensor]:
        """Put the answers together, which must have come; by table [distinct, width]."""
        weights = [torch.empty(len(rows), width) for rows, width in zip(self.distinct, widths, strict=True)]
        for mine, out in self.answers:
            flat, at = out.float().numpy(), 0
            for part, is_mine in zip(weights, mine, strict=True):
                size = int(np.count_nonzero(is_mine)) * part.shape[1]
                part.numpy()[is_mine] = flat[at : at + size].reshape(-1, part.shape[1])
                at += size
        return weights


def distinct_rows(lookups: Sequence[tuple[int, Ints]], tables: int) -> tuple[list[Ints], list[list[Ints]]]:
    """Return by table the distinct rows of its look-ups, in order, and where in them each id of each look-up is."""
    ids_of: list[list[Ints]] = [[] for _ in range(tables)]
    for table, ids in lookups:
        ids_of[table].append(ids)
    distinct: list[Ints] = []
    positions: list[list[Ints]] = []
    for mine in ids_of:
        ids = np.concatenate(mine) if mine else np.empty(0, np.int64)
        rows, inverse = np.unique(ids, return_inverse=True)
        distinct.append(rows)
        positions.append(np.split(inverse.reshape(-1), np.cumsum([len(one) for one in mine])[:-1]))
    return distinct, positions
