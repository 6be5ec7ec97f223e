"""Losses of steps on their way over the replicas of the last stage, which sum them.

A step whose replicas wait for each other anyway waits for its losses too, which have been travelling since the last
forward. Where replicas step alone (``local``, ``shadow``) nothing else makes a step wait, so that its losses are summed
beside the steps after it, those of several steps in one message, and told once they are there::

    step      0     1     2     3     4     5     6
    begun           |           |           |
    known                 0 1          2 3         4 5        of two steps together

Left out: what is summed (``batch_loss.py``).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_compile.runtime.loss_values import sum_of

from .rank_group import Group

MOST_TOGETHER = 8
"""Steps whose losses are summed in one message: so many of them at most are told late for nothing but that."""

_MOST_ON_THE_WAY = 1000
"""Sums; a replica that is so far ahead of the slowest waits for it, or its memory would fill up with them."""


class _Sum:
    """Tables of some steps, [steps, micro-batches, losses], and their sum over the ranks."""

    def __init__(self) -> None:
        self._tables: list[Tensor] = []
        self._work: dist.Work | None = None
        self._is_begun = False
        self._summed = torch.empty(0)

    def add(self, table: Tensor) -> int:
        """Take in a step; return its place."""
        self._tables.append(table)
        return len(self._tables) - 1

    def __len__(self) -> int:
        return len(self._tables)

    def begin(self, group: Group | None) -> None:
        """Begin to sum."""
        self._summed, self._is_begun = torch.stack(self._tables), True
        if group is not None:
            self._work = group.sum(self._summed)

    @property
    def is_done(self) -> bool:
        """Return whether it is there, or has failed."""
        return self._is_begun and (self._work is None or self._work.is_completed())

    def of(self, place: int) -> Tensor:
        """Wait for it, and return that of a step.

        Raises:
            RuntimeError: where it has not begun, or another rank is gone.
        """
        if not self._is_begun:
            raise RuntimeError("losses are waited for before their sum has begun")
        if self._work is not None:
            self._work.wait()
            self._work = None
        return self._summed[place]


@dataclass(frozen=True, slots=True)
class SummedLosses:
    """The losses of one step, which may still be on their way.

    Attributes:
        names: Of the losses behind the first, which is that of the batch.
        divisor: Of all.
        sum: That they are in.
        place: There.
    """

    names: tuple[str, ...]
    divisor: float
    sum: _Sum
    place: int

    @property
    def are_known(self) -> bool:
        """Return whether they are there, so that :meth:`means` does not wait."""
        return self.sum.is_done

    def means(self) -> tuple[float, dict[str, float]]:
        """Wait for them; return the loss of the batch, and those that have names.

        Raises:
            RuntimeError: of the group, where another rank is gone.
        """
        loss, *others = (sum_of(column) / self.divisor for column in self.sum.of(self.place).T.tolist())
        return loss, dict(zip(self.names, others, strict=True))


class LossSums:
    """The sums of one step after the other; every rank of the group makes the same ones in the same order."""

    def __init__(self) -> None:
        self._open = _Sum()
        self._on_the_way: deque[_Sum] = deque()

    def add(self, group: Group | None, losses: tuple[Tensor, Sequence[str], float], together: int = 1) -> SummedLosses:
        """Take in a step, and begin a sum once it has as many steps as go together.

        Args:
            group: The replicas of the last stage; None where there is one.
            losses: Of this rank, [micro-batches, losses]; names of all but the first; and what divides them.
            together: So many steps.
        """
        table, names, divisor = losses
        one = SummedLosses(tuple(names), divisor, self._open, self._open.add(table))
        if len(self._open) >= together:
            self._begin(group)
        return one

    def settle(self, group: Group | None) -> None:
        """Wait until all losses so far are summed; every rank of the group calls it after the same step."""
        if len(self._open):
            self._begin(group)
        while self._on_the_way:
            self._on_the_way.popleft().of(0)

    def _begin(self, group: Group | None) -> None:
        self._open.begin(group)
        self._on_the_way.append(self._open)
        self._open = _Sum()
        while self._on_the_way and (self._on_the_way[0].is_done or len(self._on_the_way) > _MOST_ON_THE_WAY):
            self._on_the_way.popleft().of(0)
