"""The loss of a batch on a rank of the last stage: what is trained of every micro-batch, and the means that are told.

A batch has M micro-batches of as many samples each. Without weights the trained loss is the mean over the micro-batches
of what ``loss()`` gives; with ``sample_weight()`` it is the weighted mean over all samples of the batch::

    trained     (1 / M) sum_m loss(m)         sum_i w_i l_i / W     with  W = sum_i w_i  over the whole batch
    backward    begins with 1 / M             begins with 1 / W, of the sum of w_i l_i over the micro-batch

W is known before the first backward: the ranks of the last stage read all their micro-batches as a step begins, and
add their weights up with one all-reduce. So gradients need no more division after it, and clipping, scaling for
float16 and parameter servers see those of the weighted mean.

Every micro-batch has a place of its own in what is summed over the ranks, and the sum is rounded once: the means told
are the same bits on every rank and under every layout.

A step whose replicas wait for each other anyway waits for its losses too, which have been on their way since the last
forward. Where replicas step alone (``local``, ``shadow``) nothing else makes a step wait: its losses are summed beside
the steps after it, and told once they are there.

Left out: checks of what ``loss()`` gives (``loss_values.py``).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.runtime.loss_values import (
    LossValues,
    loss_values,
    refuse_other_names,
    sample_weights,
    sum_of,
    total_weight,
)

from .layout import Layout
from .rank_group import PendingWork, RankGroup, share_names
from .rank_parts import Loss, SampleWeight
from .recorder import StepResult
from .world import make_group

_MOST_ON_THE_WAY = 64
"""Steps; a replica that is so far ahead of the slowest waits for it, or its memory would fill up with losses."""


@dataclass(slots=True)
class SummedLosses:
    """The losses of one step, which may still be on their way.

    Attributes:
        names: Of the losses after the first, which is that of the batch.
        divisor: Of all losses.
        table: Their sum over the ranks, float64, shape [micro-batches, losses].
        work: The sum on its way; None for one rank.
    """

    names: tuple[str, ...]
    divisor: float
    table: Tensor
    work: PendingWork | None

    @property
    def are_known(self) -> bool:
        """Return whether :meth:`means` does not wait, since the sum is there or has failed."""
        return self.work is None or self.work.is_completed()

    def settle(self) -> None:
        """Wait for the sum.

        Raises:
            RuntimeError: of the group, if another rank is gone.
        """
        if self.work is not None:
            self.work.wait()
            self.work = None

    def means(self) -> tuple[float, dict[str, float]]:
        """Wait for the sum; return the loss of the batch, and those that have names.

        Raises:
            RuntimeError: of the group, if another rank is gone.
        """
        self.settle()
        loss, *others = (sum_of(column) / self.divisor for column in self.table.T.tolist())
        return loss, dict(zip(self.names, others, strict=True))


class BatchLoss:
    """Losses of one step after the other, on a rank of the last stage.

    Attributes:
        divisor: What the losses that are trained are divided by: the count of micro-batches, or the batch's weight.
        is_weighted: Whether samples have weights, so that :meth:`weigh` is called as a step begins.
    """

    def __init__(
        self, loss: Loss, sample_weight: SampleWeight | None, layout: Layout, rank: int, *, is_scaled: bool = False
    ) -> None:
        """Take the functions of the training file.

        Args:
            loss: Of a micro-batch.
            sample_weight: Of its samples; None for the plain mean.
            layout: Of the ranks.
            rank: This one.
            is_scaled: Whether a step whose loss is not finite is skipped, so that it is not refused.
        """
        self._loss, self._weight, self._rank, self._is_scaled = loss, sample_weight, rank, is_scaled
        self._micro_batches, self._size, self._samples = layout.micro_batches, layout.micro_batch_size, layout.batch
        self.divisor: float = layout.micro_batches
        self.is_weighted = sample_weight is not None
        self._on_the_way: deque[SummedLosses] = deque()
        self._begun: SummedLosses | None = None
        self._names: tuple[str, ...] | None = None
        self._is_agreed = False
        self._told: dict[int, list[Tensor]] = {}
        self._weights: dict[int, Tensor] = {}

    def weigh(self, micro_batch: int, columns: Mapping[str, Tensor]) -> None:
        """Ask for the weights of the samples of a micro-batch.

        Raises:
            RunError: where they are none.
        """
        assert self._weight is not None, "asked where samples have weights"  # noqa: S101 - see is_weighted
        first = micro_batch * self._size
        self._weights[micro_batch] = sample_weights(self._weight(columns), self._size, first, "the step")

    def sum_weights(self, group: RankGroup | None) -> None:
        """Add up the weights of the whole batch, once all micro-batches of this rank have theirs.

        Args:
            group: The replicas of the last stage; None where there is one.

        Raises:
            RunError: where all of them are zero, on every rank of the group.
        """
        totals = torch.zeros(self._micro_batches, dtype=torch.float64)
        for micro_batch, weights in self._weights.items():
            totals[micro_batch] = weights.sum()
        if group is not None:
            group.sum(totals).wait()
        self.divisor = total_weight(totals.tolist(), f"the {self._samples:,} samples of the step")

    def of(self, micro_batch: int, outputs: Any, columns: Mapping[str, Tensor]) -> Tensor:
        """Return the loss of a micro-batch that is trained, to be divided by :attr:`divisor`.

        Raises:
            RunError: where ``loss()`` gives something else than a loss, or other names than before.
        """
        weighted = self._size if self.is_weighted else None
        found = loss_values(self._loss(outputs, columns), weighted, is_scaled=self._is_scaled)
        names = self._names
        if names is None:
            self._names = names = tuple(found.parts)
        refuse_other_names(found.parts, names, ("here", "before"))
        if not found.total.requires_grad:
            raise RunError("the loss depends on no parameter, so that there is nothing to train; compute it with torch")
        trained = self._weighed(micro_batch, found)
        parts = [trained.parts[name].detach() for name in names]
        self._told[micro_batch] = [trained.total.detach(), *parts]
        return trained.total

    def _weighed(self, micro_batch: int, found: LossValues) -> LossValues:
        if not self.is_weighted:
            return found
        weights = self._weights.pop(micro_batch)

        def weighed(values: Tensor) -> Tensor:
            wide = values.to(torch.promote_types(values.dtype, torch.float32))
            return (wide * weights.to(wide)).sum()

        return LossValues(weighed(found.total), {name: weighed(part) for name, part in found.parts.items()})

    def begin(self, group: RankGroup | None) -> None:
        """Begin to sum the losses of the step, after the last forward of this rank; not before names are agreed on.

        Replicas must not wait for each other here: the last backward of one may be what the last forward of another
        waits for.

        Args:
            group: The replicas of the last stage; None where there is one.
        """
        if self._is_agreed:
            self._begun = self._add(group)

    def means(self, group: RankGroup | None) -> SummedLosses:
        """Return the loss of the whole batch and those that have names, and begin the next one.

        Args:
            group: The replicas of the last stage; None where there is one.

        Raises:
            RunError: where the replicas have losses of other names.
        """
        if self._begun is None:
            self._agree(group)
        found, self._begun = self._begun or self._add(group), None
        return found

    def settle(self) -> None:
        """Wait until all losses so far are summed.

        Raises:
            RuntimeError: of the group, if another rank is gone.
        """
        while self._on_the_way:
            self._on_the_way.popleft().settle()

    def _add(self, group: RankGroup | None) -> SummedLosses:
        names = self._names or ()
        table = torch.zeros(self._micro_batches, 1 + len(names), dtype=torch.float64)
        for micro_batch, told in self._told.items():
            table[micro_batch] = torch.tensor([one.item() for one in told], dtype=torch.float64)
        self._told.clear()
        one = SummedLosses(names, self.divisor, table, None if group is None else group.sum(table))
        self._on_the_way.append(one)
        while self._on_the_way and (self._on_the_way[0].are_known or len(self._on_the_way) > _MOST_ON_THE_WAY):
            self._on_the_way.popleft().settle()
        return one

    def _agree(self, group: RankGroup | None) -> None:
        """Agree on the names of the losses with the other replicas, in the first step."""
        assert self._names is not None, "a rank of the last stage has a micro-batch"  # noqa: S101
        if group is None or self._is_agreed:
            return
        first, *others = share_names(group, self._names, self._rank)
        for replica, names in enumerate(others, 1):
            refuse_other_names(names, first, (f"on replica {replica} of the last stage", "on replica 0"))
        self._is_agreed = True
        if self._names != first:
            places = [0, *(1 + self._names.index(name) for name in first)]
            self._told = {key: [told[place] for place in places] for key, told in self._told.items()}
            self._names = first


class SharedLoss:
    """The losses of a step, brought to every rank of the pipeline from the last stage."""

    def __init__(self, layout: Layout, rank: int) -> None:
        """Join the others; every rank of the pipeline does so.

        Args:
            layout: Of the pipeline.
            rank: This one.
        """
        self._rank, self._source = rank, layout.ranks_of(layout.stage_count - 1)[0]
        self._names: tuple[str, ...] | None = None
        self._group = make_group(range(layout.world_size)) if layout.world_size > 1 else None

    def is_wanted(self, here: bool) -> bool:
        """Tell whether any rank wants the loss; all ranks ask, and hear the same."""
        if self._group is None:
            return here
        wanted = torch.tensor([int(here)])
        self._group.maximum(wanted).wait()
        return bool(wanted.item())

    def of_all(self, result: StepResult) -> StepResult:
        """Return what a step came to with its losses, given them where this rank knows them; the same on every rank."""
        if self._group is None:
            return result
        if self._names is None:
            self._names = share_names(self._group, tuple(result.losses), self._rank)[self._source]
        summed = torch.zeros(1 + len(self._names), dtype=torch.float64)
        if self._rank == self._source:
            summed += torch.tensor([result.loss, *(result.losses[name] for name in self._names)], dtype=torch.float64)
        self._group.sum(summed).wait()
        loss, *others = summed.tolist()
        return replace(result, loss=loss, losses=MappingProxyType(dict(zip(self._names, others, strict=True))))
