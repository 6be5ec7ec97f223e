"""Segments as stages of a step: the least that a micro-batch takes in each, and how long every step with it lasts.

For M micro-batches the busiest of k replicas takes n = ceil(M / k) of them. The replicas with one n are a *class*, of
which the fewest are the cheapest; what a micro-batch takes is convex in k, and the least of a class is bounded by its
two ends. With f, b, w = f + b and sync of a class, and for every position p of the chain::

    before(p)   the least that the stages before p take for a forward, and for a backward
    after(p)    the least that the stages from p on take for both

a step with segment (a, c) in n rounds takes no less than the bound of ``schedule/shortest_step.py`` with those in the
place of the other stages::

    least = max( pull, before_f(a) ) + max( n w,  f + after(c) + n b,  n f + after(c) + b ) + max( sync, before_b(a) )

with the rows of tables on servers: their pull, and their push in sync (``cost/served_rows.py``), through any number of
servers.

Left out: delays between stages, which the plans of ``step_closing.py`` have; prices of whole machines.
"""

from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.cost.row_sums import RowSums
from heterps_compile.cost.segments import crossing_bytes
from heterps_compile.passes.placement.geometry import Chain
from heterps_compile.schedule.step_problem import MicroBatches, StageWorks, StepProblem


class StepSegments:
    """Every possible segment of a chain of layers, whatever the number of micro-batches; O(types * positions^2).

    Attributes:
        of: What steps are made of.
        chain: Of the layers.
        first, end, type: [N], sorted by these.
        works: What they do with a batch.
        rows: [n + 1], index of the first segment at every position.
        way_bytes: [n + 1], of a batch, that cross a cut at every position in one direction.
    """

    def __init__(self, of: StepProblem) -> None:
        """List the segments of a problem."""
        self.of, self.chain = of, Chain(of.problem)
        chain, length = self.chain, self.chain.length
        rows, ends = np.arange(length), np.arange(1, length + 1)
        traffic = chain.traffic(0, length, length)
        possible = chain.tile(traffic, ends).possible
        talks = traffic.receives.astype(np.float64) + traffic.sends
        work = chain.work(rows, ends, traffic.received_bytes + traffic.sent_bytes, talks)
        if work.machines is not None:
            work = replace(work, machines=work.machines.broadcast(possible.shape))
        first, end, type_ = np.nonzero(possible.transpose(1, 2, 0))
        self.first, self.end, self.type = first, end + 1, type_
        served = RowSums.of(of.problem, self._sums)
        self.works = StageWorks(type_, work.take((type_, first, end)), talks[first, end], self._sums, served)
        self.rows: Ints = np.searchsorted(first, np.arange(length + 1))
        self.way_bytes = crossing_bytes(of.problem)[chain.borders] / (2 if of.training else 1)

    def _sums(self, of_layers: Floats) -> Floats:
        sums = self.chain.prefix_sums(of_layers)
        return np.asarray(np.maximum(sums[self.type, self.end] - sums[self.type, self.first], 0.0), np.float64)

    def least_to_end(self, each: Floats) -> Floats:
        """Return [.., n + 1], the least sum of what segments [.., N] cost on any path from a position to the last."""
        length = self.chain.length
        least = np.full((*each.shape[:-1], length + 1), np.inf)
        least[..., length] = 0.0
        for position in range(length - 1, -1, -1):
            here = slice(self.rows[position], self.rows[position + 1])
            if here.start < here.stop:
                through = each[..., here] + least[..., self.end[here]]
                least[..., position] = through.min(axis=-1)
        return least

    def least_from_start(self, each: Floats) -> Floats:
        """Return [n + 1], the least sum of what segments [N] cost on any path from the first position to one."""
        least = np.full(self.chain.length + 1, np.inf)
        least[0] = 0.0
        for position in range(self.chain.length):
            here = slice(self.rows[position], self.rows[position + 1])
            np.minimum.at(least, self.end[here], least[position] + each[here])
        return least

    def lowest_peak(self, each: Floats) -> float:
        """Return the least that the largest of what segments [N] cost can be on a path through the chain."""
        peak = np.full(self.chain.length + 1, np.inf)
        peak[-1] = 0.0
        for position in range(self.chain.length - 1, -1, -1):
            here = slice(self.rows[position], self.rows[position + 1])
            peak[position] = np.maximum(each[here], peak[self.end[here]]).min(initial=np.inf)
        return float(peak[0])


@dataclass(frozen=True, eq=False)
class ClassTimes:
    """Segments [N] with the classes [K] of replicas that they may have for one number of micro-batches.

    Attributes:
        count: M.
        fewest, most: [N, K], the replicas of a class.
        is_any: [N, K], whether there are so many units.
        rounds: [K], n.
        forward_s, backward_s, both_s: [N, K], of a micro-batch, none of them more than with any replicas of the class.
        moving_s: [N, K], no less than with any of them.
        pull_s: [N, K], before its first forward.
        sync_s: [N, K], behind its last backward: push and all-reduce; 0 in inference.
        price_per_hour: [N, K], of the fewest.
        after_s: [n + 1], by position.
        least_s: [N, K], of steps with the segment; inf where there are too few units.
    """

    count: int
    fewest: Floats
    most: Floats
    is_any: Bools
    rounds: Floats
    forward_s: Floats
    backward_s: Floats
    both_s: Floats
    moving_s: Floats
    pull_s: Floats
    sync_s: Floats
    price_per_hour: Floats
    after_s: Floats
    least_s: Floats


def classes(problem: Problem, count: int) -> tuple[Floats, Floats]:
    """Return [K], the fewest replicas and the most that take so many micro-batches in as many rounds, ascending."""
    rounds = np.unique(-(-count // np.arange(1, count + 1)))[::-1]
    first = -(-count // rounds)
    if problem.halves:  # which takes the longer the more replicas there are in each of these pieces alone
        powers = 2 ** np.arange(1, max(2, count.bit_length()))
        first = np.union1d(first, [start for start in (*powers, *(powers + 1)) if start <= count])
    last = np.append(first[1:] - 1, count)
    kept = first <= max(1, int(problem.max_units.max(initial=1)))
    return first[kept].astype(np.float64), last[kept].astype(np.float64)


def class_times(segments: StepSegments, count: int) -> ClassTimes:
    """Return what so many micro-batches take in every segment, by classes of replicas; O(segments * sqrt(count))."""
    of = segments.of
    problem, training = of.problem, of.training
    limits = problem.max_units[segments.type]
    first, last = classes(problem, count)
    rounds = np.ceil(count / first)
    fewest = np.broadcast_to(first, (len(limits), len(first)))
    is_any = fewest <= limits[:, None]
    most = np.maximum(np.minimum(last, limits[:, None]), fewest)
    low, high = (segments.works.micro_batches(of, count, units) for units in (fewest, most))
    forward_s, backward_s, both_s, moving_s = _least_of(low, high)
    pull_s = low.pulls_s()  # no less with more replicas of as many rounds; a push is none the longer
    sync_s = low.sync_s + high.pushes_s() if training else np.zeros_like(low.sync_s)

    def quickest(times_s: Floats) -> Floats:
        return np.asarray(np.where(is_any, times_s, np.inf).min(axis=1), np.float64)

    after_s = segments.least_to_end(quickest(both_s if training else forward_s))
    before_s = np.maximum(pull_s, segments.least_from_start(quickest(forward_s))[segments.first][:, None])
    rest_s = after_s[segments.end][:, None]
    if training:
        end_s = segments.least_from_start(quickest(backward_s))[segments.first][:, None]
        busy_s = busy_at_least_s(rounds, forward_s, backward_s, both_s, rest_s)
        least_s = before_s + busy_s + np.maximum(sync_s, end_s)
    else:
        least_s = before_s + rounds * forward_s + rest_s
    price = problem.price_per_hour[segments.type][:, None] * fewest
    return ClassTimes(
        count, fewest, most, is_any, rounds, forward_s, backward_s, both_s, moving_s, pull_s, sync_s, price,
        after_s, np.where(is_any, least_s, np.inf),
    )  # fmt: skip


def busy_at_least_s(rounds: Floats, forward_s: Floats, backward_s: Floats, both_s: Floats, rest_s: Floats) -> Floats:
    """Return the least from the first forward of a replica to its last backward, by the formula of the module.

    Args:
        rounds: Micro-batches that it takes.
        forward_s: Of one of them.
        backward_s: As above.
        both_s: As above.
        rest_s: Of one of them, in all stages behind.
    """
    busy_s = np.maximum(rounds * both_s, rest_s + forward_s + backward_s)
    fills_s = np.maximum(forward_s + rounds * backward_s, rounds * forward_s + backward_s)
    return np.asarray(np.maximum(busy_s, rest_s + fills_s), np.float64)


def _least_of(low: MicroBatches, high: MicroBatches) -> tuple[Floats, Floats, Floats, Floats]:
    """Return forward, backward, both and what moves of classes, by the times at their two ends.

    What moves never takes less with more replicas, and neither does what computes where gradients take no longer to
    add to than to make; else forward and backward share the time in other parts at the two ends.
    """
    share_low, share_high = _share(low), _share(high)
    wide, narrow = np.maximum(share_low, share_high), np.minimum(share_low, share_high)
    computed_s = np.minimum(_computed_s(low, share_low), _computed_s(high, share_high))
    low_s = low.forward_s + low.backward_s
    both_s = np.where((low.moving_s > 0) | (low.units == high.units), low_s, np.maximum(computed_s, 0.0))
    moving_s = np.maximum(low.moving_s, high.moving_s) * np.where(narrow > 0, wide / np.where(narrow > 0, narrow, 1), 1)
    return both_s * narrow, both_s * (1 - wide), both_s, moving_s


def _share(each: MicroBatches) -> Floats:
    """Return the part of a micro-batch that is its forward."""
    both_s = each.forward_s + each.backward_s
    return np.asarray(np.where(both_s > 0, each.forward_s / np.where(both_s > 0, both_s, 1.0), 1.0), np.float64)


def _computed_s(each: MicroBatches, share: Floats) -> Floats:
    """Return the computation of a micro-batch; 0 where nothing tells it from what moves."""
    moving_s = each.moving_s / np.where(share > 0, share, 1.0)
    return np.asarray(np.where(share > 0, each.forward_s + each.backward_s - moving_s, 0.0), np.float64)
