"""The step of stages with given loads: simulated under a schedule, bounded from below, and the best of many.

The shortest step wins; among equals the one that holds the fewest bytes of activations. Where the step is not what was
minimised, one that is at most 2 % longer and has as many micro-batches counts as equal: 1F1B waits for every delay
between stages and holds a part of what GPipe holds. A step that some unit has no memory for is none, as long as there
is another. A stage computes its activations again exactly where it does not fit otherwise: that takes a forward more,
so it is never shorter by itself, but may let a schedule fit that is shorter than those without.

Zero-bubble is taken where it is more than 5 % shorter than all others: what a split backward takes is a mean, from
which stages differ.

No schedule whose backward is in one can be shorter than this. The busiest replica of stage s takes n = ceil(M / k) of
the M micro-batches; f, b and d are a micro-batch's forward, its backward and the delay behind it, w its whole way::

    begin(s) = max(pull(s), begin(s - 1) + f(s - 1) + d(s - 1))               before its first forward
    round(s) = sum over r > s of f(r) + b(r), and every delay twice          from a forward until its gradients are back
    end(s)   = max(push(s) + sync(s) + own(s), d(s - 1) + b(s - 1) + end(s - 1))       after its last backward
    step    >= begin(s) + max( n (f + b),  f + round(s) + n b,  n f + round(s) + b,
                               f + (t - 1) w + round(s) + b ) + end(s)

where the busiest wire behind the stage carries t messages of the M, one at a time (``wires.py``): ceil(M / k) of the
narrower of the two stages; no replica's first backward begins, and no replica's last forward ends, less than a round
apart from the other side. In inference the step is at least begin(s) + max(n f, f + (t - 1) w) + sum over r >= s of
d(r) + f(r + 1). No step is shorter than what a network card carries, and the all-reduce after it. Where replicas
differ, n (f + b) is that of the replica that is busy the longest with what it is dealt; elsewhere n is 1, f and b the
quickest's.

Where stages split their backwards (``zero_bubble.py``), a round waits for the gradients of inputs alone, so that it
counts that part of b(r), and nothing waits behind the last gradients of weights but the stage's own push and sums.

The two schedules of training that are searched take longer (:class:`Turns`). A replica of stage s has done a forwards
besides that one's own before its first backward, the last of them of a micro-batch j or a later one, which every stage
q before s had to pass on after those before it. The first backward of stage s also comes after that of stage s + 1.
From behind it is the same: a backwards besides that one's own follow a replica's last forward::

    a        = n - 1 in GPipe,  min(ceil((k(s + 1) + k(s + 2) + ...) / k(s)), n - 1) in 1F1B
    j        = min(k a, M - k)
    first(s) = max( begin(q) + ceil((j(s) + 1) / k(q)) f(q) + sum over q < r <= s of d(r - 1) + f(r)   for every q <= s,
                    begin(s) + f(s) + round(s),  first(s + 1) + b(s + 1) + d(s) )          from the step's begin
    last(s)  = the same with end, b and f for begin, f and b                               to the step's end
    step    >= (n - a - 1) (f + b) + max( first, begin + (a + 1) f ) + max( last, end + (a + 1) b )

Where n = a + 1 the longer of the two waits alone counts: a replica's last forward comes before its first backward.

Left out: the loads themselves (``load.py``), and which stages there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from heterps_compile.cost.problem import Floats

from .load import StageLoad, held_bytes, held_part, simulate_step
from .micro_batch import MicroBatch
from .zero_bubble import INPUT_PART, ZERO_BUBBLE

TRAINING_SCHEDULES = ("gpipe", "1f1b")
"""Those of which the best step is searched; zero-bubble is compared with them on the stages that were found."""

INFERENCE_SCHEDULES = ("gpipe",)

SAME_TIME = 1 + 1e-9
"""Times closer than this factor differ by rounding alone."""

_SURELY_LONGER = 1.05
"""Of other schedules than zero-bubble where that is taken."""

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

    A stage that has no room for its activations under it computes them again, where it may and that helps; but under
    zero-bubble, which does not run so.

    Raises:
        UnknownNameError: for an unknown schedule.
    """
    timeline = simulate_step(schedule, loads, micro_batches, training=training)
    part = held_part(timeline, micro_batches, training=training)
    peaks = timeline.peak_in_flight  # which times do not change
    fitted = list(loads)
    if schedule != ZERO_BUBBLE:
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
    loads: Sequence[StageLoad], counts: Sequence[int], least: int, *, training: bool, splits: bool = False
) -> Iterator[Step]:
    """Yield the steps of all schedules for every count from ``least`` on that could be the best, promising ones first.

    One micro-batch is always among them, so that the others can be compared with it.

    Args:
        loads: Of every stage.
        counts: Of micro-batches.
        least: The fewest of them that may be the best.
        training: Whether there are backwards.
        splits: Whether zero-bubble is one of the schedules.
    """
    names = (*(TRAINING_SCHEDULES if training else INFERENCE_SCHEDULES), *((ZERO_BUBBLE,) if splits else ()))
    bounds_s = {count: least_step_s(loads, count, training=training, splits=splits) for count in counts}
    shortest_s = float("inf")
    for count in sorted(counts, key=bounds_s.__getitem__):
        if count != 1 and (count < least or bounds_s[count] > shortest_s * SAME_TIME):
            continue
        for name in names:
            step = step_under(name, loads, count, training=training)
            if count >= least and step.fits:
                shortest_s = min(shortest_s, step.step_s)
            yield step


def shortest_step(steps: Sequence[Step]) -> Step:
    """Return the shortest step that fits; among equals, the one that holds the fewest bytes."""
    steps = _worth_taking(steps)
    shortest_s = min(step.step_s for step in steps)
    return min((step for step in steps if step.step_s <= shortest_s * SAME_TIME), key=_burden)


def best_step(steps: Sequence[Step]) -> Step:
    """Return the step to take where the step is not what was minimised, by the rule of the module."""
    shortest = shortest_step(steps)
    alike = (step for step in _worth_taking(steps) if step.micro_batches == shortest.micro_batches)
    return min((step for step in alike if step.step_s <= shortest.step_s * _HARDLY_LONGER), key=_burden)


def _worth_taking(steps: Sequence[Step]) -> list[Step]:
    """Leave out steps that do not fit if others do, and zero-bubble unless it is surely shorter."""
    fitting = [step for step in steps if step.fits] or steps
    in_one_s = min((step.step_s for step in fitting if step.schedule != ZERO_BUBBLE), default=float("inf"))
    return [step for step in fitting if step.schedule != ZERO_BUBBLE or step.step_s * _SURELY_LONGER < in_one_s]


def _burden(step: Step) -> tuple[float, int]:
    return step.held_bytes, step.micro_batches


def least_step_s(loads: Sequence[StageLoad], micro_batches: int, *, training: bool, splits: bool = False) -> float:
    """Return a lower bound on the step under any schedule, by the formulas of the module.

    Args:
        loads: Of every stage.
        micro_batches: In the step.
        training: Whether there are backwards.
        splits: Whether zero-bubble is one of the schedules.
    """
    each = [_quickest(load, micro_batches) for load in loads]
    rounds_s, begin_s, end_s, least_s = [0.0] * len(each), 0.0, 0.0, 0.0
    for stage in range(len(each) - 2, -1, -1):
        both_ways = 2 if training else 1
        after = each[stage + 1]
        waited_s = after.forward_s + (INPUT_PART if splits else 1.0) * after.backward_s
        rounds_s[stage] = rounds_s[stage + 1] + both_ways * each[stage].delay_s + waited_s
    for stage, (load, own) in enumerate(zip(loads, each, strict=True)):
        turns = -(-micro_batches // load.replicas) if not load.types else 1
        dealt_s = load.dealt(micro_batches, training=training).busiest_s if load.types else 0.0
        begin_s = max(begin_s, load.pull_s(micro_batches))
        queued_s = own.forward_s + rounds_s[stage]
        if stage + 1 < len(loads):
            queued_s += (-(-micro_batches // min(load.replicas, loads[stage + 1].replicas)) - 1) * own.way_s
        if training:
            before_s = each[stage - 1].delay_s + each[stage - 1].backward_s + end_s if stage and not splits else 0.0
            end_s = max(load.push_s + load.sync_s + load.own_s, before_s)
            busy_s = max(
                turns * own.whole_s,
                dealt_s,
                own.forward_s + rounds_s[stage] + turns * own.backward_s,
                turns * own.forward_s + rounds_s[stage] + own.backward_s,
                queued_s + own.backward_s,
            )
        else:
            busy_s = max(dealt_s, turns * own.forward_s + rounds_s[stage], queued_s)
        moved_s = load.moved_s + (load.push_s + load.sync_s + load.own_s if training else 0.0)
        least_s = max(least_s, begin_s + busy_s + end_s, moved_s)
        begin_s += own.forward_s + own.delay_s
    return least_s


class PassTimes(NamedTuple):
    """The least that stages [..., S] take, by the formulas of the module.

    Attributes:
        begin_s: Before the first forward.
        forward_s, backward_s, both_s: Of a micro-batch; both may be known to take longer than the sum.
        delay_s: Behind a stage; 0 behind the last.
        end_s: After the last backward.
    """

    begin_s: Floats
    forward_s: Floats
    backward_s: Floats
    both_s: Floats
    delay_s: Floats
    end_s: Floats

    def from_behind(self) -> "PassTimes":
        """Return those of the step in reverse, in which every backward is a forward."""
        return self._replace(
            begin_s=self.end_s, forward_s=self.backward_s, backward_s=self.forward_s, end_s=self.begin_s
        )


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """The micro-batches of busiest replicas of stages under GPipe and 1F1B, by the letters of the module.

    Attributes:
        own: [..., S], n.
        ahead: [2, ..., S], a, or more.
        passed: [2, ..., S], j, or less.
        most: [..., S], k, or more.
    """

    own: Floats
    ahead: Floats
    passed: Floats
    most: Floats

    @classmethod
    def of(cls, count: int, fewest: Floats, most: Floats) -> "Turns":
        """Return those of stages with some number of replicas between two, with which n is the same.

        Args:
            count: M.
            fewest: [..., S]; 0 behind the last stage.
            most: [..., S], as above.
        """
        least, some = np.maximum(fewest, 1), np.maximum(most, 1)
        own = np.ceil(count / least)
        ahead = np.minimum(np.ceil(_behind(most) / least), own - 1)
        rest = _behind(fewest)
        passed = np.stack([np.full(own.shape, float(count)), np.maximum(fewest * np.ceil(rest / some), rest)])
        passed = np.where(most > 0, np.clip(passed, 0, np.maximum(count - most, 0)), 0.0)
        return cls(own, np.stack([own - 1, ahead]), passed, some)

    def least_steps_s(self, times: PassTimes) -> Floats:
        """Return [2, ...], lower bounds on the step under GPipe and 1F1B; O(S^2)."""
        n, a = self.own, self.ahead
        first_s, last_s = self._first_s(times), self._first_s(times.from_behind())
        forwards_s, backwards_s = times.begin_s + (a + 1) * times.forward_s, times.end_s + (a + 1) * times.backward_s
        around_s = np.maximum(first_s + backwards_s, forwards_s + last_s)
        around_s = np.maximum(around_s, times.begin_s + (a + 1) * times.both_s + times.end_s)
        around_s = np.maximum(around_s, np.where(n > a + 1, first_s + last_s, 0.0))
        return np.asarray(((n - a - 1) * times.both_s + around_s).max(axis=-1), np.float64)

    def _first_s(self, times: PassTimes) -> Floats:
        """Return [2, ..., S], the least from the step's begin to the first backward of any replica."""
        stages, way_s, passes_s = times.both_s.shape[-1], np.zeros_like(times.both_s), times.forward_s.copy()
        way_s[..., :-1] = times.both_s[..., 1:] + 2 * times.delay_s[..., :-1]
        passes_s[..., 1:] += times.delay_s[..., :-1]
        passes_s = np.cumsum(passes_s, axis=-1)
        rounds_s = np.cumsum(way_s[..., ::-1], axis=-1)[..., ::-1]
        first_s = np.repeat((times.begin_s + times.forward_s + rounds_s)[None], 2, axis=0)
        for stage in range(stages):
            before = slice(0, stage + 1)
            turns = np.ceil((self.passed[..., [stage]] + 1) / self.most[..., before])
            passed_s = (times.begin_s - passes_s)[..., before] + turns * times.forward_s[..., before]
            first_s[..., stage] = np.maximum(first_s[..., stage], passed_s.max(axis=-1) + passes_s[..., stage])
        for stage in range(stages - 2, -1, -1):
            behind_s = first_s[..., stage + 1] + times.backward_s[..., stage + 1] + times.delay_s[..., stage]
            first_s[..., stage] = np.maximum(first_s[..., stage], behind_s)
        return first_s


def _behind(replicas: Floats) -> Floats:
    """Return [..., S], the replicas of all stages behind every one."""
    return np.asarray(np.cumsum(replicas[..., ::-1], axis=-1)[..., ::-1] - replicas, np.float64)


def _quickest(load: StageLoad, micro_batches: int) -> MicroBatch:
    """Return the times of a micro-batch where they are the least: replicas of several types differ."""
    mean, each = load.micro_batch(micro_batches), [own.micro_batch(micro_batches) for own in load.types]
    if not each:
        return mean
    return replace(
        mean, forward_s=min(one.forward_s for one in each), backward_s=min(one.backward_s for one in each)
    )  # fmt: skip
