"""What stages take of a step on one kind of unit, whatever the other stages are.

A step of M micro-batches with a stage in n rounds lasts no less than (``passes/placement/steps/step_segments.py``)::

    max( pull, before_f ) + max( n w,  after + max( f + n b, n f + b ) ) + max( sync, before_b )

where what micro-batches take before and behind the stage is what the quicker of the kinds of a set takes for every
layer, and the way of values over the cuts on either side. Of a way a stage takes a part upon itself, while it moves
data: half of what it moves, or all where it is the first or the last. The delay between two stages is what is left of
the way, so that from the first forward on, through stages that compute for c and move for m (``schedule/load.py``)::

    begin(s) = sum over r < s of c + m + delay  >=  sum over r < s of c + way  -  part(s) m(s)

and back through their backwards, where these take no less than the forwards, likewise. Of the cuts that a stage does
not touch nothing is counted. For a number of micro-batches all runs of layers with all numbers of replicas that matter
are kept without what is around them.

Where no stage is shared, a set has E units in all and k of them are the stage's, the two schedules say more of a stage
with others behind it. Under GPipe a replica of the last stage, of at most e = E - k, ends its forwards before its first
backward; under 1F1B at most p = E / k micro-batches are under way in a replica at once (both rounded up)::

    GPipe   begin + (floor((M - e) / k) + 1) f + round + n b + end
    1F1B    begin + ceil(n / p) (f + round + b) + ((n - 1) mod p) b + end

In a stage that two kinds share, all replicas are one ring over the slower network, of at least two, and of no fewer
than it takes the quicker kind to work off the micro-batches: with w the time of one there and S of the gradients::

    T >= a + S (1 - 1 / k),  k >= 2,  k >= M w / (T - before)          a: all but the sum, as of a stage of one kind,
                                                                       with messages and the optimizer's step

Left out: cuts further away; whole machines, which prices have (``sets.py``); the units of a step (``step_bounds.py``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.passes.placement.steps.step_segments import Around, StepSegments, busy_at_least_s, class_times

Small = NDArray[np.float32]
"""Of what there is much of."""

_BELOW = np.float32(1 - 1e-6)  # what sums of such numbers are rounded by, at the most


@dataclass(frozen=True, eq=False)
class LayerParts:
    """What one of M equal parts of a batch takes in every block of the chain, at the least; [n] each.

    Attributes:
        forward_s, backward_s: Where the gradients are made anew or added to, whichever is quicker; inf where none may.
    """

    forward_s: Floats
    backward_s: Floats

    def quicker(self, other: "LayerParts") -> "LayerParts":
        """Return the least of two kinds."""
        return LayerParts(
            np.minimum(self.forward_s, other.forward_s), np.minimum(self.backward_s, other.backward_s)
        )  # fmt: skip

    def around(self) -> Around:
        """Return what the stages before and behind a position take at the least."""
        forward_s, backward_s = _sums(self.forward_s), _sums(self.backward_s)
        both_s = forward_s + backward_s
        return Around(forward_s, backward_s, both_s[-1] - both_s)

    @property
    def whole_s(self) -> float:
        """Return what a micro-batch takes through all layers: no step is shorter."""
        return float(self.around().after_s[0])


def _sums(each: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.where(np.isfinite(each), each, 0.0))])


def _between(each: Floats, first: Ints, end: Ints) -> Floats:
    sums = _sums(each)
    return np.asarray(sums[end] - sums[first], np.float64)


def parts_of(segments: StepSegments, count: int) -> LayerParts:
    """Return what parts of a batch take on the one type of a problem."""
    part, chain = segments.of.parts(count), segments.chain
    is_usable = chain.usable_blocks()[0]
    times = (part.forward_s, np.minimum(part.backward_s, part.accumulate_s))
    forward_s, backward_s = (np.where(is_usable, np.diff(chain.prefix_sums(each)[0]), np.inf) for each in times)
    return LayerParts(forward_s, backward_s)


@dataclass(frozen=True, eq=False)
class StageTimes:
    """What all runs of blocks [R] of a chain take with M micro-batches on one kind of unit.

    Attributes:
        count: M.
        length: Blocks of the chain.
        first, end: [R], sorted by these.
        parts: Of the blocks.
        units, most: [A], the fewest replicas of every class, ascending, and the most.
        turns: [A], n, which is the same for all of a class.
        pull_s, busy_s, forward_s, backward_s, sync_s: [R, A], parts of the formula; inf where there is no such stage.
        from_s, to_s: [R, A], the ways of a micro-batch from the stage before and to the next, less the own part of it.
        way_from_s, way_to_s: [R], all of these ways.
        is_back: Whether gradients come back over them in no less time.
        gradients_s: [R], what ever more replicas take to sum the gradients, without latencies.
        own_s: [R], what two replicas do by themselves behind that at the least, the optimizer's step among it.
        latency_s: Of a message to another machine.
    """

    count: int
    length: int
    first: Ints
    end: Ints
    parts: LayerParts
    units: Floats
    most: Floats
    turns: Floats
    pull_s: Small
    busy_s: Small
    forward_s: Small
    backward_s: Small
    sync_s: Small
    from_s: Small
    to_s: Small
    way_from_s: Floats
    way_to_s: Floats
    is_back: bool
    gradients_s: Floats
    own_s: Floats
    latency_s: float

    @property
    def rounds(self) -> Floats:
        """Return [B], all numbers of rounds in which a replica may take its micro-batches, descending."""
        return np.unique(-(-self.count // np.arange(1, self.count + 1)))[::-1].astype(np.float64)

    def least_s(self, around: Around, total: int | None = None) -> Small:
        """Return [R, A], the least step with a stage that has no more replicas than those of its class.

        With ``total`` of plans without shared stages on so many units at the most.
        """
        least_s = self._least_of_class_s(around, self.between_s(around, total))
        return np.minimum.accumulate(least_s * _BELOW, axis=1)

    def between_s(self, around: Around, total: int | None) -> Small:
        """Return [R, A], the least from the first forward of a stage to its last backward; arguments as above."""
        round_s = around.after_s[self.end][:, None].astype(np.float32) + (1 + self.is_back) * self.to_s
        turns = self.turns.astype(np.float32)
        found = np.maximum(self.forward_s + turns * self.backward_s, turns * self.forward_s + self.backward_s)
        found += round_s
        np.maximum(found, self.busy_s, out=found)
        if total is not None:
            self._raise_by_schedules(found, round_s, total)
        return np.asarray(found, np.float32)

    def _least_of_class_s(self, around: Around, between_s: Small) -> Small:
        before_s, end_s = (
            each[self.first][:, None].astype(np.float32) for each in (around.before_s, around.before_backward_s)
        )
        least_s = between_s + np.maximum(self.pull_s, before_s + self.from_s)
        least_s += np.maximum(self.sync_s, end_s + self.from_s if self.is_back else end_s)
        return np.asarray(least_s, np.float32)

    def _raise_by_schedules(self, least_s: Small, round_s: Small, total: int) -> None:
        """Raise [R, A] what is between the first forward and the last backward of stages with others behind them."""
        inner = np.flatnonzero(self.end < self.length)
        if not len(inner):
            return
        others, turns = np.minimum(total - self.units, self.count), self.turns
        forwards = np.clip(np.floor((self.count - others) / self.most) + 1, 1, turns)
        under_way = np.ceil(total / self.units)
        trips, rest = np.ceil(turns / under_way), (turns - 1) % under_way
        forward_s, backward_s, round_s = self.forward_s[inner], self.backward_s[inner], round_s[inner]
        gpipe_s = forwards.astype(np.float32) * forward_s + round_s + turns.astype(np.float32) * backward_s
        taking_turns_s = trips.astype(np.float32) * (forward_s + round_s + backward_s)
        taking_turns_s += np.multiply(
            rest, backward_s, out=np.zeros_like(backward_s), where=rest > 0, casting="same_kind"
        )
        least_s[inner] = np.maximum(least_s[inner], np.minimum(gpipe_s, taking_turns_s))
        least_s[np.ix_(inner, np.flatnonzero(others < 1))] = np.inf

    def shared_least_s(self, around: Around, quicker: LayerParts, gradients_s: Floats, behind_s: Floats) -> Small:
        """Return [R, B], the least step with a stage that is shared, in which each unit here takes so many rounds.

        Args:
            around: As above.
            quicker: Of its kinds.
            gradients_s: [R], what ever more replicas of the slower of its kinds take to sum the gradients.
            behind_s: [R], what two of them take besides: the messages, and what each does by itself.
        """
        first, end, rounds = self.first, self.end, self.rounds

        def between(each: Floats) -> Floats:
            return _between(each, first, end)[:, None]

        forward_s, backward_s = between(self.parts.forward_s), between(self.parts.backward_s)
        from_s, to_s = (self.way_from_s, self.way_to_s) if self.is_back else np.zeros((2, len(first)))
        before_s = (around.before_s[first] + from_s)[:, None]
        end_s = (around.before_backward_s[first] + from_s)[:, None]
        rest_s = (around.after_s[end] + 2 * to_s)[:, None]
        alone_s = before_s + busy_at_least_s(rounds, forward_s, backward_s, forward_s + backward_s, rest_s)
        works_s = self.count * (between(quicker.forward_s) + between(quicker.backward_s))
        sum_s = gradients_s[:, None]
        ratio = np.divide(sum_s, works_s, out=np.zeros_like(sum_s), where=works_s > 0)  # all at once for no work
        own_s = alone_s + behind_s[:, None]
        of_many_s = np.where(works_s > 0, (own_s + sum_s + ratio * before_s) / (1 + ratio), 0.0)
        least_s = np.maximum(np.maximum(alone_s + end_s, own_s + sum_s / 2), of_many_s).astype(np.float32) * _BELOW
        is_none = ~np.isfinite(self.busy_s).any(axis=1)
        least_s[is_none] = np.inf
        return np.minimum.accumulate(least_s, axis=1)


def shared_least_s(first: StageTimes, second: StageTimes, quicker: LayerParts) -> tuple[Small, Small]:
    """Return [R, B], the least steps with a shared stage, in which a unit of either kind takes so many rounds."""
    gradients_s, own_s = np.maximum(first.gradients_s, second.gradients_s), np.maximum(first.own_s, second.own_s)
    behind_s = own_s + np.where(gradients_s > 0, 2 * max(first.latency_s, second.latency_s), 0.0)
    given = quicker.around(), quicker, gradients_s, behind_s
    return first.shared_least_s(*given), second.shared_least_s(*given)


def stage_times(segments: StepSegments, count: int) -> StageTimes:
    """Return what stages take with so many micro-batches on the one type of a problem; O(runs * sqrt(count))."""
    length = segments.chain.length
    first, end = np.triu_indices(length)
    end = end + 1
    row: Ints = segments.first * length - segments.first * (segments.first - 1) // 2 + segments.end - segments.first - 1
    times = class_times(segments, count)
    runs, rounds = len(first), times.rounds
    found = []
    for each in (times.pull_s, rounds * times.both_s, times.forward_s, times.backward_s, times.sync_s):
        known = np.full((runs, len(rounds)), np.inf, np.float32)
        known[row] = np.where(times.is_any, each, np.inf)
        found.append(known)
    pull_s, busy_s, forward_s, backward_s, sync_s = found
    ways_s = np.zeros((2, runs))
    ways_s[:, row] = _ways_s(segments, count)
    own_part = np.where((first == 0) | (end == length), 1.0, 0.5)[:, None]
    moving_s = np.zeros((runs, len(rounds)))
    moving_s[row] = times.moving_s
    moving_s *= own_part
    from_s, to_s = (np.maximum(0.0, each[:, None] - moving_s).astype(np.float32) for each in ways_s)
    parts = parts_of(segments, count)
    gradients_s, own_s = np.zeros((2, runs))
    gradients_s[row] = _sums_of(segments, segments.of.problem.sync_s)
    own_s[row] = _own_s(segments)
    units = np.asarray(times.fewest[0], np.float64)
    return StageTimes(
        count=count,
        length=length,
        first=first,
        end=end,
        parts=parts,
        units=units,
        most=np.append(units[1:] - 1, max(units[-1], count)),
        turns=np.asarray(rounds, np.float64),
        pull_s=pull_s,
        busy_s=busy_s,
        forward_s=forward_s,
        backward_s=backward_s,
        sync_s=sync_s,
        from_s=from_s,
        to_s=to_s,
        way_from_s=ways_s[0],
        way_to_s=ways_s[1],
        is_back=bool(np.all(parts.forward_s <= parts.backward_s * (1 + 1e-12))),
        gradients_s=gradients_s,
        own_s=own_s,
        latency_s=segments.of.networks[0].latency_s,
    )


def _sums_of(segments: StepSegments, of_layers: Floats) -> Floats:
    """Return [N], sums of what layers take on the one type."""
    sums = segments.chain.prefix_sums(of_layers)[0]
    return np.asarray(np.maximum(sums[segments.end] - sums[segments.first], 0.0), np.float64)


def _own_s(segments: StepSegments) -> Floats:
    """Return [N], what two replicas do by themselves behind the last backward, or more of them at the least."""
    own, least = segments.of.own, np.zeros(len(segments.type))
    if own is None or not segments.of.training:
        return least
    least += _sums_of(segments, own.update_s)
    if segments.of.problem.rules is None:
        least += own.handling[0].time_s(lambda table: _sums_of(segments, table), np.full(len(least), 2.0))
    return least


def _ways_s(segments: StepSegments, count: int) -> Floats:
    """Return [2, N], the ways of micro-batches over the cuts before and behind every segment, in one direction."""
    of, found = segments.of, segments.way_bytes[np.stack([segments.first, segments.end])]
    way_s = of.way_latency_s[0, 0] + found * of.way_seconds_per_byte[0, 0] / count
    return np.where(found > 0, way_s, 0.0)
