"""Units that are enough for a pipeline against all its paths, kinds and numbers of replicas, one by one."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.machines.stage_waits import (
    Schedule,
    ScheduledStages,
    SharedWaits,
    StageWaits,
    Within,
    are_enough,
    may_be_enough,
    plan_within,
)

ONE = np.ones((1, 1))


def drawn_waits(draw, length, classes):
    first, end = np.triu_indices(length)
    shape = (len(first), classes)
    units = np.sort(draw.choice(np.arange(1, 2 * classes + 1), classes, replace=False)).astype(float)
    busy_s = np.sort(draw.uniform(0.2, 2.0, shape), axis=1)[:, ::-1]
    return StageWaits(
        length, first, end + 1, units, (busy_s + draw.uniform(0, 1, shape)).astype(np.float32),
        busy_s.astype(np.float32), draw.uniform(0.0, 1.5, shape).astype(np.float32), draw.uniform(0.05, 0.5, shape[0]),
    )  # fmt: skip


def drawn_shared(draw, runs, count):
    rounds = np.unique(-(-count // np.arange(1, count + 1)))[::-1]
    least_s = [np.sort(draw.uniform(0.3, 2.5, (runs, len(rounds))), axis=1)[:, ::-1].astype(np.float32) for _ in "ab"]
    of_runs = [draw.uniform(0.0, part, runs) for part in (0.5, 0.3, 0.3, 0.5, 0.8)]
    gradients_s = of_runs[4] * (draw.random(runs) < 0.8)
    return SharedWaits(
        count, count / rounds, (least_s[0], least_s[1]), *of_runs[:4], gradients_s, 0.05, draw.uniform(0, 0.3, runs),
        draw.uniform(0.05, 0.5, runs),
    )  # fmt: skip


def stages_of(kinds, shared, run, most):
    """Yield units of both kinds, what is waited, and whether both are in it, of all stages."""
    for place, kind in enumerate(kinds):
        for number, units in enumerate(kind.units):
            cell = (run, number)
            waits = (kind.least_s[cell], float(kind.rest_s[cell]), float(kind.sync_s[cell]), kind.adds_s[run])
            yield (int(units), 0)[:: 1 - 2 * place], waits, False
    if shared is None:
        return
    for own, other in product(range(1, most[0] + 1), range(1, most[1] + 1)):
        replicas = own + other
        turns = -(-shared.count // replicas)
        f, b, whole = shared.forward_s[run], shared.backward_s[run], shared.round_s[run]
        rest_s = max(turns * (f + b), whole + f + turns * b, whole + turns * f + b)
        sync_s = shared.before_s[run] + shared.own_s[run] + shared.gradients_s[run] * (1 - 1 / replicas)
        sync_s += (replicas - 1) * shared.hop_s * (shared.gradients_s[run] > 0)
        yield (own, other), (None, rest_s, sync_s, shared.adds_s[run]), True


def works(shared, run, units, time_s):
    """Return whether units of two kinds do the work of a stage within T, each as many micro-batches as it can."""
    done = 0.0
    for count, least_s in zip(units, shared.least_s, strict=True):
        within = np.flatnonzero(least_s[run] <= np.float32(time_s))
        if not len(within):
            return False
        done += count / shared.worth[within[0]]
    return done >= 1 - 1e-9


def is_any(kinds, shared, most, time_s, *, one_has=1, is_shared=False):
    """Return whether some plan keeps T, each stage's X one after another."""
    chain = kinds[0]
    index = {ends: run for run, ends in enumerate(zip(chain.first.tolist(), chain.end.tolist(), strict=True))}
    for cuts in (each for count in range(chain.length) for each in combinations(range(1, chain.length), count)):
        runs = [index[ends] for ends in zip((0, *cuts), (*cuts, chain.length), strict=True)]
        for stages in product(*(list(stages_of(kinds, shared, run, most)) for run in runs)):
            used = np.sum([units for units, _, _ in stages], axis=0)
            has = any(both for _, _, both in stages)
            has = has or (not is_shared and any(max(units) >= one_has for units, _, _ in stages))
            if np.any(used > most) or not has:
                continue
            waited_s, keeps = 0.0, True
            for stage, (run, (units, (least_s, rest_s, sync_s, adds_s), both)) in enumerate(
                zip(runs, stages, strict=True)
            ):
                keeps &= stage == 0 or waited_s + rest_s <= time_s
                if both:
                    keeps &= works(shared, run, units, time_s) and rest_s + sync_s <= time_s
                else:
                    keeps &= bool(least_s <= np.float32(time_s))
                waited_s = adds_s + max(waited_s, sync_s)
            if keeps:
                return True
    return False


@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3), st.floats(0.3, 4.0), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_units_of_one_kind_are_enough_exactly_where_some_plan_is(seed, length, classes, time_s, one_has):
    waits = drawn_waits(np.random.default_rng(seed), length, classes)
    numbers = np.arange(1, 13)[:, None]
    enough = are_enough([waits], numbers, Within(time_s, ONE, one_has))
    expected = [is_any([waits], None, (count, 0), time_s, one_has=one_has) for count in numbers[:, 0].tolist()]
    assert enough.tolist() == expected
    plan = plan_within([waits], numbers[-1], Within(time_s, ONE, one_has))
    assert (plan is not None) == expected[-1]
    if plan is not None:
        assert [stage.first for stage in plan] == [0, *(stage.end for stage in plan[:-1])]
        assert plan[-1].end == length
        assert sum(stage.replicas for stage in plan) <= 12
        assert max(stage.replicas for stage in plan) >= one_has


@given(
    st.tuples(st.integers(0, 10_000), st.integers(1, 3), st.floats(0.3, 4.0)), st.integers(1, 3),
    st.sampled_from([1, 2, 4, 7]), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_units_of_two_kinds_are_enough_where_some_plan_is(of_chain, one_has, count, with_shared, only):
    seed, length, time_s = of_chain
    draw = np.random.default_rng(seed)
    first = drawn_waits(draw, length, 2)
    second = replace(drawn_waits(draw, length, 2), first=first.first, end=first.end)
    shared = drawn_shared(draw, len(first.first), count) if with_shared or only else None
    sets = np.array(list(product(range(1, 4), range(1, 3))))
    within = Within(time_s, np.array([[0.7, 1.0], [1.0, 0.0], [0.0, 1.0]]), one_has, shared, only)
    enough = are_enough([first, second], sets, within)
    for units, found in zip(sets.tolist(), enough.tolist(), strict=True):
        expected = is_any([first, second], shared, units, time_s, one_has=one_has, is_shared=only)
        assert found == expected, units
        assert bool(are_enough([first, second], np.array([units]), within)[0]) == expected
    if shared is None:
        plan = plan_within([first, second], sets[-1], within)
        assert (plan is not None) == bool(enough[-1])
        for kind in (0, 1) if plan else ():
            assert sum(stage.replicas for stage in plan if stage.kind == kind) <= sets[-1][kind]


def test_a_stage_waits_for_the_sum_of_gradients_of_the_stage_before_it():
    waits = drawn_waits(np.random.default_rng(0), 2, 1)
    one, units = np.ones_like(waits.least_s), np.array([[1], [2]])
    waits = StageWaits(2, waits.first, waits.end, np.array([1.0]), one, one, 0 * one, np.zeros(3))
    assert are_enough([waits], units, Within(1.0, ONE)).tolist() == [True, True]  # all on one unit
    no_whole = np.where((waits.first == 0) & (waits.end == 2), np.inf, 1.0)[:, None].astype(np.float32)
    waits = replace(waits, least_s=no_whole)
    assert are_enough([waits], units, Within(1.0, ONE)).tolist() == [False, True]
    late = replace(waits, sync_s=0.5 * one)
    assert not are_enough([late], units, Within(1.4, ONE)).any()
    assert are_enough([late], units, Within(1.5, ONE)).tolist() == [False, True]
    assert plan_within([late], np.array([1]), Within(1.5, ONE)) is None
    assert [stage.replicas for stage in plan_within([late], np.array([3]), Within(1.5, ONE)) or ()] == [1, 1]


@pytest.mark.parametrize(("time_s", "enough"), [(2.1, False), (2.3, True)])
def test_a_shared_stage_passes_its_gradients_through_every_replica_and_runs_the_optimizer(time_s, enough):
    none = np.full((1, 1), np.inf, np.float32)
    kind = StageWaits(1, np.array([0]), np.array([1]), np.array([1.0]), none, none, none, np.zeros(1))
    shared = SharedWaits(
        2, np.array([1.0, 2.0]), (np.array([[2.0, 1.0]], np.float32), np.array([[2.0, 1.0]], np.float32)), np.zeros(1),
        np.full(1, 0.4), np.full(1, 0.6), np.zeros(1), np.full(1, 0.8), 0.3, np.full(1, 0.5), np.zeros(1),
    )  # fmt: skip
    within = Within(time_s, np.array([[1.0, 1.0]]), shared=shared)  # 0.4 + 0.6, the sum 0.8 / 2, a message, 0.5
    assert are_enough([kind, kind], np.array([[1, 1]]), within).tolist() == [enough]


def waits_by_schedule(ahead):
    """Return stages of one micro-batch of 1 + 1 s each, of which those ahead take a unit and nothing under a schedule.

    The stage before the last has one unit, which takes all 4 micro-batches; the last one has 1, 2 or 4 at the least.
    """
    length, none = ahead + 2, np.float32(np.inf)
    first, end = np.triu_indices(length)
    end = end + 1
    is_one, is_last = (end - first == 1)[:, None], (end == length)[:, None]
    units, shape = np.array([1.0, 2.0, 4.0]), (len(first), 3)
    zero, is_inner = np.zeros(shape, np.float32), ((end == length - 1) * np.ones(3)[:, None]).T
    works = (is_inner * is_one).astype(np.float32)
    schedules = ScheduledStages(
        4, np.array([1.0, 3.0, 4.0]), np.array([4.0, 2.0, 1.0]), works, works, 2 * works
    )  # fmt: skip
    least_s = np.where(is_one & (is_last | (units == 1)), np.float32(0), none)
    return StageWaits(length, first, end, units, least_s, zero, zero, np.full(len(first), 2.0), schedules)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    ("schedule", "others", "time_s"),
    [
        # GPipe: all forwards but those of the last replicas, a way through it, four backwards
        (Schedule((1.0, 1.0)), 1, 4 + 2 + 4),
        (Schedule((2.0, 2.0)), 2, 3 + 2 + 4),
        (Schedule((3.0, 3.0)), 3, 2 + 2 + 4),
        (Schedule((4.0, 4.0)), 4, 1 + 2 + 4),
        (Schedule((1.0, 3.0)), 3, 2 + 2 + 4),
        # 1F1B: as many under way as units from the stage on; each of so many waits for the way, then backwards are left
        (Schedule(), 1, 2 * 4 + 1),
        (Schedule(), 2, 2 * 4),
        (Schedule(), 3, 4 + 3),
        (Schedule(), 9, 4 + 3),
    ],
)
def test_what_a_stage_waits_for_under_a_schedule(ahead, schedule, others, time_s):
    waits, units, before_s = waits_by_schedule(ahead), np.array([[ahead + 1 + others]]), 2 * ahead
    for longer_s, enough in ((-0.01, False), (0.01, True)):
        within = Within(before_s + time_s + longer_s, ONE, schedule=schedule)
        assert may_be_enough([waits], units, within).tolist() == [enough]
    if schedule.last is not None and schedule.last[0] == others:  # one unit less is not enough for such a last stage
        assert not may_be_enough([waits], units - 1, Within(99.0, ONE, schedule=schedule)).any()


@given(st.integers(0, 10_000), st.integers(2, 3), st.floats(0.5, 6.0))
@settings(max_examples=25, deadline=None)
def test_a_plan_that_is_under_some_schedule_is_never_left_out(seed, length, time_s):
    """Of every number of replicas of the last stage, one by one: they are looked at a few together."""
    draw = np.random.default_rng(seed)
    waits = drawn_waits(draw, length, 3)
    shape, most = waits.least_s.shape, np.append(waits.units[1:] - 1, 12.0)
    turns = np.ceil(12 / waits.units)
    own = [draw.uniform(0.05, part, shape).astype(np.float32) for part in (0.3, 0.3, 1.0)]
    waits = replace(waits, schedules=ScheduledStages(12, most, turns, *own))
    for units in range(1, 13):
        sets = np.array([[units]])
        one_by_one = [Schedule(), *(Schedule((float(last), float(last))) for last in range(1, units + 1))]
        expected = any(may_be_enough([waits], sets, Within(time_s, ONE, schedule=each)).all() for each in one_by_one)
        found = bool(are_enough([waits], sets, Within(time_s, ONE))[0])
        assert found >= expected, units
        assert found <= bool(may_be_enough([waits], sets, Within(time_s, ONE))[0])
        if units <= 8:  # where they are looked at one by one
            assert found == expected, units
