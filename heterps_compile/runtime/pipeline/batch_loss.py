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

What ``loss()`` gives for some samples, of a step or of a validation (``validation/metrics.py``)::

    loss() gives                     without sample_weight()         with it
    a tensor of one element          the mean over the samples       refused
    a tensor of one for each sample  refused                         l_i, of which the weighted mean is taken
    a dict of such, by name          their sum is trained, each is told

Nothing is broadcast: a shape that is not the one expected is refused.
"""

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from heterps_compile.errors import RunError
from heterps_compile.escape import printable, shorten
from heterps_compile.runtime.validation.best import LOSS
from heterps_compile.runtime.validation.result import METRIC_NAME
from heterps_compile.units import counted

from .layout import Layout
from .rank_group import PendingWork, RankGroup, share_names
from .rank_parts import Loss, SampleWeight
from .recorder import StepResult
from .world import make_group

_MOST_ON_THE_WAY = 64
"""Steps; a replica that is so far ahead of the slowest waits for it, or its memory would fill up with losses."""

_SHOWN = 60
_LEAST_TOTAL, _LARGEST_TOTAL = 2.0**-126, 2.0**126  # what float32 divides by without loss


@dataclass(frozen=True, slots=True)
class LossValues:
    """What ``loss()`` gave.

    Attributes:
        total: That is trained: the only loss, or the sum of those by name; of no dimension, or one for each sample.
        parts: By name; empty where there is one loss without a name.
    """

    total: Tensor
    parts: Mapping[str, Tensor]


def loss_values(found: Any, weighted_samples: int | None = None, *, is_scaled: bool = True) -> LossValues:
    """Check what ``loss()`` gave.

    Args:
        found: That it gave.
        weighted_samples: How many values it must give, where samples are weighted; None for one number, the mean.
        is_scaled: Whether values may be infinite or NaN, as a step with such a loss is skipped.

    Raises:
        RunError: where it is something else, not finite, or a dict with a name that cannot be shown.
    """
    if not is_scaled:
        for name, value in found.items() if isinstance(found, Mapping) else [("", found)]:
            _refuse_not_finite(name, value)
    if not isinstance(found, Mapping):
        return LossValues(_checked(None, found, weighted_samples), {})
    if not found:
        raise RunError("the loss gives an empty dict; it must have one loss or more by name, whose sum is trained")
    for name in found:
        if not isinstance(name, str) or not METRIC_NAME.fullmatch(name) or not METRIC_NAME.fullmatch(loss_metric(name)):
            raise RunError(
                f"the loss gives a dict with the name {printable(shorten(repr(name), _SHOWN))}; a name has up to "
                f"{64 - len(loss_metric(''))} letters, digits, spaces and _.@+/- and begins with a letter"
            )
    parts = {name: _checked(name, value, weighted_samples) for name, value in found.items()}
    first, *others = parts.values()
    total = first
    for other in others:
        total = total + other
    return LossValues(total, parts)


def loss_metric(name: str) -> str:
    """Return what a loss of this name is called among the metrics of a validation."""
    return f"{LOSS}/{name}"


def refuse_other_names(names: Iterable[str], first: Iterable[str], places: tuple[str, str]) -> None:
    """Refuse losses of other names than those of the first micro-batch.

    Args:
        names: That there are.
        first: That there were.
        places: Where the one and the other are.

    Raises:
        RunError: with both.
    """
    now, then = tuple(names), tuple(first)
    if set(now) != set(then):
        raise RunError(
            f"the loss gives {_listed(now)} {places[0]}, and {_listed(then)} {places[1]}; give the same names for "
            f"every micro-batch"
        )


def sample_weights(found: Any, samples: int, first: int, of: str) -> Tensor:
    """Check what ``sample_weight()`` gave; return it in float64, without a gradient.

    Args:
        found: That it gave.
        samples: For which it must have one number each.
        first: Number of the first of them.
        of: Among what: "the step".

    Raises:
        RunError: where it is something else, or one of them is negative or not finite.
    """
    if not isinstance(found, Tensor) or found.is_complex() or tuple(found.shape) != (samples,):
        raise RunError(
            f"sample_weight() of the training file gives {_shown(found)} for {counted(samples, 'sample')}; it must "
            f"give one number for each, a tensor of shape [{samples}]"
        )
    weights = found.detach().double()
    wrong = (~(weights.isfinite() & (weights >= 0))).nonzero().flatten().tolist()
    if wrong:
        raise RunError(
            f"sample_weight() of the training file gives {float(weights[wrong[0]]):g} for sample "
            f"{first + wrong[0]:,} of {of}; a weight is a finite number of 0 or more"
        )
    return weights


def total_weight(weights: Iterable[float], of: str) -> float:
    """Add up the weights that a weighted mean is divided by, with one rounding.

    Args:
        weights: Sums of some samples each.
        of: What samples they are: "the 12 samples of a step".

    Raises:
        RunError: where they are all zero, or their sum cannot be divided by.
    """
    total = math.fsum(weights)
    if not total:
        raise RunError(
            f"sample_weight() of the training file gives 0 for each of {of}, which have no weighted mean then; leave "
            f"such samples out of the data, or give one of them a weight"
        )
    if not _LEAST_TOTAL <= total <= _LARGEST_TOTAL:
        raise RunError(
            f"sample_weight() of the training file gives weights that add up to {total:.3g} for {of}, and float32 "
            f"divides by {_LEAST_TOTAL:.3g} to {_LARGEST_TOTAL:.3g}; multiply all of them by a number"
        )
    return total


def sum_of(numbers: Iterable[float]) -> float:
    """Add numbers up with one rounding; one that is not finite makes the sum so."""
    values = list(numbers)
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def _refuse_not_finite(name: Any, value: Any) -> None:
    if hasattr(value, "isfinite") and not bool(value.isfinite().all()):
        shown = f"{printable(shorten(repr(name), _SHOWN))} " if name else ""
        raise RunError(
            f"the loss {shown}is {float(value.detach().sum())}; look at the data of that micro-batch, lower the "
            f"learning rate, or go on from an earlier checkpoint (--resume)"
        )


def _checked(name: str | None, value: Any, weighted_samples: int | None) -> Tensor:
    """Return a loss of no dimension, or with one value for each sample where these are weighted."""
    which = "the loss gives" if name is None else f"the loss gives, as {name!r},"
    if weighted_samples is None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise RunError(f"{which} {_shown(value)}; it must be one number as a tensor, the mean over the micro-batch")
        return value.reshape(())
    if not isinstance(value, Tensor) or tuple(value.shape) != (weighted_samples,):
        raise RunError(
            f"{which} {_shown(value)} for {counted(weighted_samples, 'sample')}, and the training file has "
            f"sample_weight(); it must give one value for each sample, a tensor of shape [{weighted_samples}] "
            f"(reduction='none'), of which the run takes the weighted mean"
        )
    return value


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"a tensor of shape {list(shape)}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names)) or "one number without a name"


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
