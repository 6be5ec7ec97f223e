"""The step of stages with given loads: simulated under a schedule, bounded from below, and the best of many.

The shortest step wins; among equals the one that holds the fewest bytes of activations. Where the step is not what was
minimised, one that is at most 2 % longer and has as many micro-batches counts as equal: 1F1B waits for every delay
between stages and holds a part of what GPipe holds. A step that some unit has no memory for is none, as long as there
is another. A stage computes its activations again exactly where it does not fit otherwise: that takes a forward more,
so it is never shorter by itself, but may let a schedule fit that is shorter than those without.

No schedule can be shorter than this. The busiest replica of stage s takes n = ceil(M / k) of the M micro-batches; f, b
and d are a micro-batch's forward, its backward and the delay behind it::

    begin(s) = max(pull(s), begin(s - 1) + f(s - 1) + d(s - 1))               before its first forward
    round(s) = sum over r > s of f(r) + b(r), and every delay twice          from a forward until its gradients are back
    end(s)   = max(push(s) + sync(s) + own(s), d(s - 1) + b(s - 1) + end(s - 1))       after its last backward
    step    >= begin(s) + max( n (f + b),  f + round(s) + n b,  n f + round(s) + b ) + end(s)

as no replica's first backward begins, and no replica's last forward ends, less than a round apart from the other side.
In inference the step is at least begin(s) + n f + sum over r >= s of d(r) + f(r + 1). Where replicas differ, n (f + b)
is that of the replica that is busy the longest with what it is dealt; elsewhere n is 1, f and b the quickest's.

The two schedules of training take longer (:class:`Turns`). Before its first backward a replica of 1F1B has done a
forwards besides that one's own, and so many backwards follow its last forward besides that one's own. A backward of
GPipe comes back from a replica of the last stage that has done all its forwards, and so this one all but the last few::

    a        = min(floor((k(s) + k(s + 1) + ... - 1) / k(s)), n - 1)
    g        = min(floor((M - k of the last stage) / k(s)) + 1, n)
    1F1B    >= begin(s) + n (f + b) + max(0, round(s) - a f) + max(0, round(s) - a b) + end(s)
    GPipe   >= begin(s) + g f + round(s) + n b + end(s)

Where n = a + 1 the longer of the two waits of 1F1B alone counts: its last forward comes before its first backward.

Left out: the loads themselves (``load.py``), and which stages there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.problem import Floats

from .load import MicroBatch, StageLoad, held_bytes, held_part, simulate_step

TRAINING_SCHEDULES = ("gpipe", "1f1b")
INFERENCE_SCHEDULES = ("gpipe",)

SAME_TIME = 1 + 1e-9
"""Times closer than this factor differ by rounding alone."""

_HARDLY_LONGER = 1.02
"""Predicted steps differ from measured ones by more than this."""


@dataclass(frozen=True, slots=True)
class Step:
    """One batch alone under a schedule, simulated.

    Attributes:
        schedule: Its name.
        micro_batches: In the step.
        step_s: From the start of the first action to the end of the last, or of the last all-reduce.
        held_bytes: Of activations and copies of weights, in all replicas of all stages together.
        peak_in_flight: [S], the most micro-batches that a replica holds at once.
        replica_bytes: [S], all that a replica holds at once, with the safety factor.
        fits: Whether every unit has memory for that.
        recomputes: [S], whether a stage computes its activations again.
    """

    schedule: str
    micro_batches: int
    step_s: float
    held_bytes: float
    peak_in_flight: tuple[int, ...]
    replica_bytes: tuple[float, ...]
    fits: bool
    recomputes: tuple[bool, ...]


def step_under(schedule: str, loads: Sequence[StageLoad], micro_batches: int, *, training: bool) -> Step:
    """Return the step of stages under a schedule; O(stages * micro-batches).

    A stage that has no room for its activations under it computes them again, where it may and that helps.

    Raises:
        UnknownNameError: for an unknown schedule.
    """
    timeline = simulate_step(schedule, loads, micro_batches, training=training)
    part = held_part(timeline, micro_batches, training=training)
    peaks = timeline.peak_in_flight  # which times do not change
    fitted = [load.to_fit(peak, part, micro_batches) for load, peak in zip(loads, peaks, strict=True)]
    if any(now is not load for now, load in zip(fitted, loads, strict=True)):
        loads = fitted
        timeline = simulate_step(schedule, loads, micro_batches, training=training)
    held = held_bytes(loads, timeline, micro_batches, training=training)
    replica_bytes = tuple(load.replica_bytes(own) for load, own in zip(loads, held, strict=True))
    return Step(
        schedule,
        micro_batches,
        timeline.makespan_s,
        sum(load.replicas * own for load, own in zip(loads, held, strict=True)),
        timeline.peak_in_flight,
        replica_bytes,
        all(load.has_room(own) for load, own in zip(loads, replica_bytes, strict=True)),
        tuple(load.recomputes for load in loads),
    )


def steps_worth_trying(
    loads: Sequence[StageLoad], counts: Sequence[int], least: int, *, training: bool
) -> Iterator[Step]:
    """Yield the steps of all schedules for every count from ``least`` on that could be the best, promising ones first.

    One micro-batch is always among them, so that the others can be compared with it.
    """
    bounds_s = {count: least_step_s(loads, count, training=training) for count in counts}
    shortest_s = float("inf")
    for count in sorted(counts, key=bounds_s.__getitem__):
        if count != 1 and (count < least or bounds_s[count] > shortest_s * SAME_TIME):
            continue
        for name in TRAINING_SCHEDULES if training else INFERENCE_SCHEDULES:
            step = step_under(name, loads, count, training=training)
            if count >= least and step.fits:
                shortest_s = min(shortest_s, step.step_s)
            yield step


def shortest_step(steps: Sequence[Step]) -> Step:
    """Return the shortest step that fits; among equals, the one that holds the fewest bytes."""
    steps = [step for step in steps if step.fits] or steps
    shortest_s = min(step.step_s for step in steps)
    return min((step for step in steps if step.step_s <= shortest_s * SAME_TIME), key=_burden)


def best_step(steps: Sequence[Step]) -> Step:
    """Return the step to take where the step is not what was minimised, by the rule of the module."""
    shortest = shortest_step(steps)
    alike = (step for step in steps if step.micro_batches == shortest.micro_batches and step.fits >= shortest.fits)
    return min((step for step in alike if step.step_s <= shortest.step_s * _HARDLY_LONGER), key=_burden)


def _burden(step: Step) -> tuple[float, int]:
    return step.held_bytes, step.micro_batches


def least_step_s(loads: Sequence[StageLoad], micro_batches: int, *, training: bool) -> float:
    """Return a lower bound on the step under any schedule, by the formulas of the module."""
    each = [_quickest(load, micro_batches) for load in loads]
    rounds_s, begin_s, end_s, least_s = [0.0] * len(each), 0.0, 0.0, 0.0
    for stage in range(len(each) - 2, -1, -1):
        both_ways = 2 if training else 1
        rounds_s[stage] = rounds_s[stage + 1] + both_ways * each[stage].delay_s + each[stage + 1].whole_s
    for stage, (load, own) in enumerate(zip(loads, each, strict=True)):
        turns = -(-micro_batches // load.replicas) if not load.types else 1
        dealt_s = load.dealt(micro_batches, training=training).busiest_s if load.types else 0.0
        begin_s = max(begin_s, load.pull_s(micro_batches))
        if training:
            before_s = each[stage - 1].delay_s + each[stage - 1].backward_s + end_s if stage else 0.0
            end_s = max(load.push_s + load.sync_s + load.own_s, before_s)
            busy_s = max(
                turns * own.whole_s,
                dealt_s,
                own.forward_s + rounds_s[stage] + turns * own.backward_s,
                turns * own.forward_s + rounds_s[stage] + own.backward_s,
            )
        else:
            busy_s = max(dealt_s, turns * own.forward_s + rounds_s[stage])
        least_s = max(least_s, begin_s + busy_s + end_s)
        begin_s += own.forward_s + own.delay_s
    return least_s


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """The micro-batches of busiest replicas of stages, [..., S], by the letters of the module.

    Attributes:
        own: n.
        ahead: a.
        leading: g.
    """

    own: Floats
    ahead: Floats
    leading: Floats

    @classmethod
    def of(cls, count: int, fewest: Floats, most: Floats) -> "Turns":
        """Return those of stages with some number of replicas between two, with which n is the same.

        Args:
            count: M.
            fewest: [..., S]; 0 behind the last stage.
            most: [..., S], as above.
        """
        last = np.take_along_axis(most, (most > 0).sum(axis=-1, keepdims=True) - 1, axis=-1)
        own, some = np.ceil(count / np.maximum(fewest, 1)), np.maximum(most, 1)
        behind = np.cumsum(most[..., ::-1], axis=-1)[..., ::-1]
        ahead = np.minimum((behind - 1) // np.maximum(fewest, 1), own - 1)
        return cls(own, ahead, np.clip((count - last) // some + 1, 1, own))

    def busy_at_least_s(self, forward_s: Floats, backward_s: Floats, both_s: Floats, round_s: Floats) -> Floats:
        """Return [2, ..., S], the least from a first forward to the replica's last backward, under GPipe and 1F1B.

        Args:
            forward_s: f, or less.
            backward_s: b, or less.
            both_s: f + b, or less.
            round_s: As in the formulas, or less.
        """
        n, a, g = self.own, self.ahead, self.leading
        gpipe_s = g * both_s + (n - g) * backward_s + round_s
        first_s = np.maximum(0.0, round_s - a * (both_s - backward_s))
        last_s = np.maximum(0.0, round_s - a * (both_s - forward_s))
        waits_s = np.where(n > a + 1, first_s + last_s, np.maximum(first_s, last_s))
        return np.stack([gpipe_s, n * both_s + waits_s])


def _quickest(load: StageLoad, micro_batches: int) -> MicroBatch:
    """Return the times of a micro-batch where they are the least: replicas of several types differ."""
    mean, each = load.micro_batch(micro_batches), [own.micro_batch(micro_batches) for own in load.types]
    if not each:
        return mean
    return replace(
        mean, forward_s=min(one.forward_s for one in each), backward_s=min(one.backward_s for one in each)
    )  # fmt: skip
