"""The fewest units of a pipeline whose step lasts no longer than some time, stage after stage, of one kind or of two.

A stage begins when a micro-batch has come through all stages before it, and ends before its gradients have gone back
through them and the last of these has summed its own (``schedule/shortest_step.py``). With w(s) what a micro-batch
computes in stage s, m what it moves there, and ``way`` of its values to the next stage and of their gradients back::

    X(0) = 0,   X(s + 1) = w(s) + way(s) + max( X(s), before(s) + sync(s) )
    step >= X(s) - m(s) + what passes from the first forward of stage s to its last backward

so that a cut costs every stage behind it a way there and back, and a sum of gradients that takes long is waited for
where its stage stands early. Between stages of two kinds the way is no shorter than either kind's. Steps of at most T
have at every position a least X for every number of units, (u, v) of two kinds::

    position    0    1    2    3  ...  n          least[c][u + k] = least over runs (a, c) and replicas k that keep T
    u = 0       0    -    -    -       -
    u = 1       -    .    .    .       -
    u = 2       -    .    .    .       .  <- the fewest units of any plan

of which only those are kept that no fewer units are as good as, and that leave as many units, weighted, as the rest of
the layers needs. A stage of k and l replicas of two kinds has a replica that takes ceil(M / (k + l)) micro-batches, in
which a unit of each kind does no more than it can within T, and one ring over the slower network, from machine to
machine through all k + l (``waits_loops.py`` has the loops).

Plans are looked at by their schedule: under GPipe by the replicas e of the last stage, none of which begins a backward
before its last forward, and under 1F1B with p micro-batches under way in a replica, of the units from its stage on::

    GPipe   step >= X(s) + (floor((M - e) / k) + 1) f + round + n b
    1F1B    step >= X(s) + ceil(n / p) (f + round + b) + ((n - 1) mod p) b

Left out: the ways of all stages behind a stage, which its last backward waits for; three kinds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Bools, Floats, Ints
from heterps_compile.passes.placement.compiled_loops import compiled

from .waits_loops import StageTable, UnitsLeft, least_to_end, least_waits

Small = NDArray[np.float32]
"""Of what there is much of."""

_EACH_LOOK = 300_000  # states that might be extended in the time that listing stages takes
ROUNDED_UP = 1 + 1e-5  # what sums of weighted units are rounded by, at the most


@dataclass(frozen=True, eq=False)
class StageWaits:
    """What all runs of blocks [R] do to a step with some number of micro-batches, by classes of replicas [A] of a kind.

    Attributes:
        length: Blocks of the chain.
        first, end: [R], sorted by these.
        units: [A], the fewest replicas of every class, ascending.
        least_s: [R, A], the least step with such a stage, whatever the others are; inf where there is none.
        rest_s: [R, A], what a step with it lasts beyond X.
        sync_s: [R, A], before it and its sum of gradients.
        adds_s: [R], w + way.
        schedules: What the two schedules depend on; None where plans are not looked at by these.
    """

    length: int
    first: Ints
    end: Ints
    units: Floats
    least_s: Small
    rest_s: Small
    sync_s: Small
    adds_s: Floats
    schedules: "ScheduledStages | None" = None

    def within(self, time_s: float) -> Bools:
        """Return [R, A], which stages there may be in a step of at most T."""
        return np.asarray(self.least_s <= np.float32(time_s))


@dataclass(frozen=True, eq=False)
class ScheduledStages:
    """What a step under GPipe or 1F1B depends on besides, by runs [R] and classes of replicas [A].

    Attributes:
        count: M.
        most: [A], the most replicas of every class.
        turns: [A], n.
        forward_s, backward_s: [R, A].
        behind_s: [R, A], of a micro-batch in the stages behind, with the own ways, less m.
    """

    count: int
    most: Floats
    turns: Floats
    forward_s: Small
    backward_s: Small
    behind_s: Small


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that a plan is under: 1F1B, or GPipe with a last stage of so many replicas.

    Attributes:
        last: The fewest and the most replicas of the last stage under GPipe; None for 1F1B.
    """

    last: tuple[float, float] | None = None


@dataclass(frozen=True, eq=False)
class SharedWaits:
    """The same of stages that units of two kinds share, of the quicker kind's times.

    Attributes:
        count: M.
        worth: [B], what part of a stage's units a unit of every class is at the most: one of so many; ascending.
        least_s: Of each kind [R, B], the least step with a unit of that class in the stage.
        round_s: [R], what a micro-batch takes in the stages behind, with the ways.
        forward_s, backward_s: [R], of a micro-batch.
        before_s: [R], what stages before take for a forward, with the way.
        gradients_s: [R], what ever more replicas take to sum the gradients.
        hop_s: What one more replica adds to that.
        own_s: [R], what replicas do by themselves.
        adds_s: [R], w + way.
    """

    count: int
    worth: Floats
    least_s: tuple[Small, Small]
    round_s: Floats
    forward_s: Floats
    backward_s: Floats
    before_s: Floats
    gradients_s: Floats
    hop_s: float
    own_s: Floats
    adds_s: Floats

    def rest_s(self, runs: Ints, turns: int) -> Floats:
        """Return [N], what a step lasts beyond X with runs whose busiest replica takes so many micro-batches."""
        forward_s, backward_s = self.forward_s[runs], self.backward_s[runs]
        rest_s = self.round_s[runs] + np.maximum(forward_s + turns * backward_s, turns * forward_s + backward_s)
        return np.asarray(np.maximum(rest_s, turns * (forward_s + backward_s)), np.float64)

    def sync_s(self, runs: Ints, replicas: Ints) -> Floats:
        """Return [N, K], what passes before runs with so many replicas [N, K], and their sums of gradients."""
        sums_s = self.gradients_s[runs][:, None]
        summed_s = sums_s * (1 - 1 / replicas) + np.where(sums_s > 0, (replicas - 1) * self.hop_s, 0.0)
        return np.asarray((self.before_s + self.own_s)[runs][:, None] + summed_s, np.float64)

    def fewest(self, time_s: float) -> Floats:
        """Return [2, R], of how many units of each kind alone a stage is at the least within T; inf for none."""
        within = [each <= np.float32(time_s) for each in self.least_s]
        both = np.stack([np.where(each.any(axis=1), self.worth[each.argmax(axis=1)], np.inf) for each in within])
        both[:, np.isinf(both).any(axis=0)] = np.inf
        return np.asarray(both, np.float64)


@dataclass(slots=True)
class Tally:
    """What looking took: how many stages were put behind how many states, and as many as each look costs besides."""

    extended: int = 0


@dataclass(frozen=True, slots=True)
class Within:
    """Which plans are looked at.

    Attributes:
        time_s: T, that their steps last at the most.
        weights: [W, kinds], with which units of several kinds are added up.
        one_has: Some stage has at least so many replicas, or both kinds.
        shared: Stages that may have units of both kinds; None for none.
        is_shared: Some stage has.
        schedule: That plans are under; None for either.
        tally: To which is added what looking takes.
    """

    time_s: float
    weights: Floats
    one_has: int = 1
    shared: SharedWaits | None = None
    is_shared: bool = False
    schedule: Schedule | None = None
    tally: Tally = field(default_factory=Tally)


@dataclass(frozen=True, slots=True)
class FoundStage:
    """A stage of a plan: blocks from the first to before the end, on so many units of a kind."""

    first: int
    end: int
    kind: int
    replicas: int


@dataclass(frozen=True, eq=False)
class _Stages:
    """Stages [C] of plans within some time: runs of blocks, with their units [C, 2] and waits [C, 7]."""

    run: Ints
    units: Ints
    waits_s: Floats
    is_one: Bools


@dataclass(frozen=True, eq=False)
class _Limits:
    """Weighted units: the least before and behind every position [W, n + 1], and how many there are [W]."""

    weights: Floats
    before: Floats
    behind: Floats
    units: Floats

    def allow(self, chain: StageWaits, runs: Ints, taken: Floats) -> Bools:
        """Return [N, K], whether runs [N] that take so many, [W, N, K], leave what the rest of a plan needs."""
        least = self.before[:, chain.first[runs]] + self.behind[:, chain.end[runs]]
        return np.asarray(np.all(taken + least[:, :, None] <= self.units[:, None, None], axis=0))


def are_enough(kinds: Sequence[StageWaits], sets: Ints, within: Within) -> Bools:
    """Return [S], whether units [S, kinds] may be enough for some plan; kinds are one, or two with the same runs.

    First all plans at once, then under each schedule, where something is known of these.
    """
    found = may_be_enough(kinds, sets, within)
    if within.shared is not None or any(kind.schedules is None for kind in kinds):
        return found
    left = np.flatnonzero(found)
    found[:] = False
    for schedule in _schedules(kinds, int(sets.sum(axis=1).max())):
        if not len(left):
            break
        enough = may_be_enough(kinds, sets[left], replace(within, schedule=schedule))
        found[left[enough]] = True
        left = left[~enough]
    return found


def rounded_up(units: int) -> int:
    """Return the next of 1, 2, 3, ..., 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, ...: no more than a quarter above."""
    step = 1 << max(0, units.bit_length() - 3)
    return -(-units // step) * step


def _schedules(kinds: Sequence[StageWaits], most: int) -> list[Schedule]:
    """Return all schedules that a plan on so many units at the most may be under."""
    highest = min(most, max(int(kind.units[-1]) for kind in kinds))
    edges = [*sorted({float(rounded_up(replicas)) for replicas in range(1, highest + 1)}), np.inf]
    return [*(Schedule((low, high - 1)) for low, high in pairwise(edges)), Schedule()]


def may_be_enough(kinds: Sequence[StageWaits], sets: Ints, within: Within) -> Bools:
    """Return [S], the same as far as it is known without a look at each schedule: quicker, and less often False."""
    waits = _least_waits(kinds, sets, within) if len(sets) else None
    if waits is None:
        return np.zeros(len(sets), np.bool_)
    places = (sets[:, 0], sets[:, 1] if len(kinds) == 2 else 0 * sets[:, 0])
    return np.asarray(np.isfinite(waits[1][-1, -1][places]))


def plan_within(kinds: Sequence[StageWaits], units: Ints, within: Within) -> list[FoundStage] | None:
    """Return the plan on units [kinds] that the bound has for the best; None where there is none.

    Of plans whose stages have units of one kind each. Its step may last longer: this is where a search may begin.
    """
    found = _least_waits(kinds, units[None, :], within)
    if found is None:
        return None
    stages, least_s = found
    (chain, *_), used = kinds, (int(units[0]), int(units[1]) if len(kinds) == 2 else 0)
    flag, position, plan = len(least_s) - 1, chain.length, list[FoundStage]()
    if np.isinf(least_s[flag, position][used]):
        return None
    while position:
        waited_s = least_s[flag, position][used]
        here = np.flatnonzero((chain.end[stages.run] == position) & np.all(stages.units <= used, axis=1))
        first = chain.first[stages.run[here]]
        left = np.array(used) - stages.units[here]
        x_s = least_s[:, first, left[:, 0], left[:, 1]]
        rest_s, sync_s, adds_s = stages.waits_s[here, :3].T
        leads = np.where(stages.is_one[here], len(least_s) - 1, np.arange(len(least_s))[:, None]) == flag
        leads &= ((x_s + rest_s <= within.time_s) | (first == 0)) & (adds_s + np.maximum(x_s, sync_s) == waited_s)
        before, place = np.argwhere(leads)[0].tolist()
        stage = here[place]
        taken = stages.units[stage]
        plan.append(FoundStage(int(chain.first[stages.run[stage]]), position, int(taken[0] == 0), int(taken.sum())))
        flag, position, used = before, plan[-1].first, (used[0] - int(taken[0]), used[1] - int(taken[1]))
    return plan[::-1]


def _least_waits(kinds: Sequence[StageWaits], sets: Ints, within: Within) -> tuple[_Stages, Floats] | None:
    """Return the stages of plans on no more units than some set, and X as ``waits_loops.py`` has it; or None."""
    (chain, *_), weights, time_s, shared = kinds, within.weights, within.time_s, within.shared
    limits = (sets @ weights.T).max(axis=0) * ROUNDED_UP
    fewest = np.stack([_fewest(kind, time_s) for kind in kinds])
    each = np.stack([_weighted(weight, fewest).min(axis=0) for weight in weights])
    of_both = None if shared is None else shared.fewest(time_s)
    if of_both is not None:
        both = np.stack([np.maximum(_weighted(weight, of_both).min(axis=0), weight.sum()) for weight in weights])
        each = np.minimum(each, both)
    rows = np.searchsorted(chain.first, np.arange(chain.length + 1))
    behind = compiled(least_to_end)(rows, chain.end, each)
    if np.any(behind[:, 0] > limits):
        return None
    within.tally.extended += _EACH_LOOK
    left = _Limits(weights, _least_from_start(chain, each), behind, limits)
    parts = [_alone(kind, place, left, within) for place, kind in enumerate(kinds)]
    if shared is not None and of_both is not None:
        parts.append(_both(chain, shared, of_both, left, (time_s, *sets.max(axis=0).tolist())))
    run = np.concatenate([part.run for part in parts])
    order = np.argsort(run, kind="stable")
    units, waits_s, is_one = (
        np.concatenate([getattr(part, name) for part in parts])[order] for name in ("units", "waits_s", "is_one")
    )
    stages = _Stages(run[order], units, waits_s, is_one)
    most = (*sets.max(axis=0).tolist(), 0)[:2]
    flags = 1 + (within.is_shared or within.one_has > 1)
    least_s = np.full((flags, chain.length + 1, most[0] + 1, most[1] + 1), np.inf)
    least_s[0, 0, 0, 0] = 0.0
    rows = np.searchsorted(chain.first[stages.run], np.arange(chain.length + 1))
    of_two = weights if len(kinds) == 2 else np.column_stack([weights, 0 * weights])
    table = StageTable(rows, chain.end[stages.run], units, waits_s, is_one)
    is_turns = within.schedule is not None and within.schedule.last is None
    units_left = UnitsLeft(of_two, behind, limits, int(sets.sum(axis=1).max()) if is_turns else 0)
    within.tally.extended += compiled(least_waits)(table, units_left, time_s, least_s)
    return stages, least_s


def _fewest(kind: StageWaits, time_s: float) -> Floats:
    """Return [R], the fewest units of a kind within T; inf for none."""
    within = kind.within(time_s)
    return np.where(within.any(axis=1), kind.units[within.argmax(axis=1)], np.inf)


def _weighted(weight: Floats, units: Floats) -> Floats:
    """Return units [K, R] times weights [K]; inf stays inf, whatever the weight."""
    return np.where(np.isinf(units), np.inf, np.where(np.isinf(units), 0.0, units) * weight[:, None])


def _least_from_start(chain: StageWaits, each: Floats) -> Floats:
    """Return [W, n + 1], the least sum of what runs [W, R] cost from the first position to another.

    That is what the runs cost to the end of the chain, read from its end.
    """
    first, end = chain.length - chain.end, chain.length - chain.first
    order = np.lexsort((end, first))
    rows = np.searchsorted(first[order], np.arange(chain.length + 1))
    return compiled(least_to_end)(rows, end[order], each[:, order])[:, ::-1]


def _alone(kind: StageWaits, place: int, left: _Limits, within: Within) -> _Stages:
    """Return the stages of one kind that keep T, and leave units for the others."""
    keeps = kind.within(within.time_s)
    runs = np.flatnonzero(keeps.any(axis=1))
    taken = np.broadcast_to((left.weights[:, [place]] * kind.units)[:, None, :], (len(left.units), 1, len(kind.units)))
    keeps = keeps[runs] & left.allow(kind, runs, taken)
    here, number = np.nonzero(keeps)
    run = runs[here]
    units = np.zeros((len(run), 2), np.int64)
    units[:, place] = kind.units[number]
    waits_s = np.zeros((len(run), 7))
    waits_s[:, :3] = np.column_stack([kind.rest_s[run, number], kind.sync_s[run, number], kind.adds_s[run]])
    is_one = (units[:, place] >= within.one_has) & (not within.is_shared)
    found = _Stages(run, units, waits_s, is_one)
    if within.schedule is None or kind.schedules is None:
        return found
    return _scheduled(kind, kind.schedules, (found, number, place), within)


def _scheduled(kind: StageWaits, of: ScheduledStages, found: tuple[_Stages, Ints, int], within: Within) -> _Stages:
    """Return stages with what they wait for under a schedule, those left out that are none of it."""
    stages, number, place = found
    run, waits_s, units = stages.run, stages.waits_s.copy(), stages.units.copy()
    forward_s, backward_s, behind_s = (
        each[run, number].astype(np.float64) for each in (of.forward_s, of.backward_s, of.behind_s)
    )
    turns, inner, keeps = of.turns[number], kind.end[run] < kind.length, np.ones(len(run), np.bool_)
    if within.schedule is not None and within.schedule.last is not None:
        low, high = within.schedule.last
        keeps = inner | ((of.most[number] >= low) & (kind.units[number] <= high))
        units[~inner, place] = np.maximum(units[~inner, place], int(low))
        forwards = np.clip(np.floor((of.count - min(high, of.count)) / of.most[number]) + 1, 1, turns)
        gpipe_s = forwards * forward_s + behind_s + turns * backward_s
        waits_s[inner, 0] = np.maximum(waits_s[inner, 0], gpipe_s[inner])
        keeps &= ~inner | (kind.first[run] > 0) | (waits_s[:, 0] <= within.time_s)
    waits_s[:, 3:] = np.column_stack([turns, forward_s, backward_s, behind_s])
    return _Stages(
        run[keeps], units[keeps], waits_s[keeps], stages.is_one[keeps] | (units[keeps, place] >= within.one_has)
    )


def _both(
    chain: StageWaits, shared: SharedWaits, of_both: Floats, left: _Limits, within: tuple[float, int, int]
) -> _Stages:
    """Return the stages of two kinds that keep T and have no more than so many units of each.

    For every number of units of the first kind, and of micro-batches that the busiest replica takes, the fewest units
    of the second: with more of them sums of gradients take longer, and nothing else changes.
    """
    time_s, most, most_other = within
    runs, own = np.flatnonzero(np.isfinite(of_both[0])), np.arange(1, most + 1)
    found = [(np.zeros(0, np.int64), np.zeros((0, 2), np.int64), np.zeros((0, 7)))]
    for turns in sorted({-(-shared.count // replicas) for replicas in range(1, shared.count + 1)}, reverse=True):
        rest_s = shared.rest_s(runs, turns)
        here = runs[rest_s + shared.before_s[runs] + shared.own_s[runs] <= time_s]
        if not len(here):
            continue
        part = np.maximum(0.0, 1 - own / of_both[0, here][:, None]) * of_both[1, here][:, None]
        others = np.maximum(np.maximum(1, np.ceil(part - 1e-6)), -(-shared.count // turns) - own).astype(np.int64)
        replicas = own + others
        rest_s, sync_s = shared.rest_s(here, turns)[:, None], shared.sync_s(here, replicas)
        keeps = (others <= most_other) & (rest_s + sync_s <= time_s)
        keeps &= replicas * (turns - 1) < shared.count  # else the busiest takes fewer
        keeps &= left.allow(chain, here, np.stack([one * own + other * others for one, other in left.weights]))
        place, number = np.nonzero(keeps)
        waits_s = (
            np.broadcast_to(rest_s, keeps.shape)[keeps], sync_s[keeps], shared.adds_s[here][place],
            *np.zeros((4, len(place))),
        )  # fmt: skip
        found.append((here[place], np.column_stack([own[number], others[keeps]]), np.column_stack(waits_s)))
    run, units, all_waits_s = (np.concatenate(each) for each in zip(*found, strict=True))
    return _Stages(run, units, all_waits_s, np.ones(len(run), np.bool_))
