"""How long one micro-batch of a step occupies one replica of a stage, for some counts of them and in between.

Times are known for some counts. Between these they are read off a straight line over the samples of a micro-batch,
beyond them the line goes on (``cost/profile.py`` draws it). A plan keeps the counts at which the line bends.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isclose

from heterps_compile.cost.interpolation import interpolate

_SAME_TIME = 1e-12  # of rounding: relative to the time


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """How long one of so many micro-batches occupies one replica.

    Attributes:
        count: Micro-batches in the step.
        forward_s, backward_s: Of one of them; in inference there is no backward.
        moving_s: Part of the forward in which data moves and nothing is computed.
        delay_s: From the end of its forward until the next stage can begin, and back with the gradients.
        overlap_s: Part of that way in which either stage is occupied.
    """

    count: int
    forward_s: float
    backward_s: float = 0.0
    moving_s: float = 0.0
    delay_s: float = 0.0
    overlap_s: float = 0.0

    @property
    def way_s(self) -> float:
        """Compute the time on the wire to the next stage."""
        return self.delay_s + self.overlap_s

    @property
    def whole_s(self) -> float:
        """Return forward and backward."""
        return self.forward_s + self.backward_s

    def worked_s(self, backward_factor: float) -> float:
        """Return forward and backward under a schedule whose backwards take longer."""
        return self.forward_s + self.backward_s * backward_factor

    def recomputed(self) -> "MicroBatch":
        """Return the times with one more forward's computation in the backward, beside what moves there."""
        if self.forward_s <= 0:
            return self
        moving_s = self.moving_s * self.backward_s / self.forward_s
        again_s = max(0.0, self.forward_s - self.moving_s - moving_s)
        return replace(self, backward_s=self.backward_s + again_s)


def mean_micro_batch(each: Sequence[MicroBatch], shares: Sequence[float]) -> MicroBatch:
    """Return the mean of micro-batches on several device types by their parts of a batch; least data moves besides."""

    def mean(times_s: Iterable[float]) -> float:
        return sum(share * time_s for share, time_s in zip(shares, times_s, strict=True))

    return MicroBatch(
        each[0].count,
        mean(one.forward_s for one in each),
        mean(one.backward_s for one in each),
        min(one.moving_s for one in each),
        mean(one.delay_s for one in each),
        mean(one.overlap_s for one in each),
    )


def micro_batch_of(known: Sequence[MicroBatch], count: int) -> MicroBatch:
    """Read the times of one of so many micro-batches off those that are known.

    Args:
        known: By count, ascending; all times are 0 where there are none.
        count: Micro-batches in the step.
    """
    for each in known:
        if each.count == count:
            return each

    def read_off(time_of: Callable[[MicroBatch], float]) -> float:
        return interpolate([(1 / each.count, time_of(each)) for each in reversed(known)], 1 / count)

    return MicroBatch(
        count,
        read_off(lambda each: each.forward_s),
        read_off(lambda each: each.backward_s),
        delay_s=read_off(lambda each: each.delay_s),
        overlap_s=read_off(lambda each: each.overlap_s),
    )


def without_straight(known: Sequence[MicroBatch], kept: Collection[int]) -> tuple[MicroBatch, ...]:
    """Leave out the counts whose times the others give.

    Args:
        known: By count, ascending.
        kept: Counts that stay; so do the first and the last.
    """
    found = list(known[:1])
    for each, following in pairwise(known[1:]):
        if each.count in kept or not _is_between(each, found[-1], following):
            found.append(each)
    return (*found, *known[1:][-1:])


def _is_between(each: MicroBatch, fewer: MicroBatch, more: MicroBatch) -> bool:
    line = micro_batch_of((fewer, more), each.count)
    pairs = (
        (each.forward_s, line.forward_s),
        (each.backward_s, line.backward_s),
        (each.delay_s, line.delay_s),
        (each.overlap_s, line.overlap_s),
    )
    return all(isclose(*pair, rel_tol=_SAME_TIME) for pair in pairs)
