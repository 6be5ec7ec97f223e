"""Losses in bursts: the law that is counted, and the plan whose expected money is that of brute force."""

from functools import cache

import numpy as np
import pytest

from heterps_compile.transient.availability import Seen
from heterps_compile.transient.burst_plan import BurstPlan
from heterps_compile.transient.bursts import CALMS, Law, Watch, law_of
from heterps_compile.transient.deadline_job import Job, JobState, Way, run_job
from heterps_compile.transient.policies import BurstAware


def drawn_law(seed: int, ways: int = 2) -> Law:
    rng = np.random.default_rng(seed)
    moves = rng.random((ways, ways))
    break_moves = np.zeros((ways, ways, 2, ways))
    which = rng.random((ways, 2, ways))  # the first way is broken or not, the last one stays
    break_moves[0] = which
    break_moves[-1, :, 0] = which.sum(axis=1)
    return law_of(rng.random(CALMS) * 0.6, moves, break_moves)


def test_the_probabilities_of_a_law_sum_to_one() -> None:
    law = drawn_law(1)
    np.testing.assert_allclose(law.kept[:2].sum(axis=2) + law.broken.sum(axis=2), 1)
    np.testing.assert_allclose(law.kept[2].sum(axis=1), 1)
    watch = Watch(3)
    for step in range(30):
        watch.see(step % 3, [step % 7 == 0, False, False])
    law = watch.law()
    np.testing.assert_allclose(law.kept[:3].sum(axis=2) + law.broken.sum(axis=2), 1)


def least_by_trying(law: Law, job: Job, at: int) -> float:
    """Return the least expected money over all choices of a job that holds no way, seen ``at``."""

    def expected(row: np.ndarray, step: int, left: int, way: int | None, pause: int) -> float:
        return sum(float(row[then]) * least(step, left, then, way, pause) for then in np.flatnonzero(row).tolist())

    @cache
    def least(step: int, left: int, at: int, held: int | None, pause: int) -> float:
        if left == 0:
            return 0.0
        if step == job.deadline:
            return 1e9
        found = [expected(law.kept[-1, at], step + 1, left, None, 0)]
        for way in range(at // CALMS, len(job.ways)):
            for paused in {pause if way == held else job.change, job.change}:
                rest, next_pause = (left, paused - 1) if paused else (left - 1, 0)
                ahead = expected(law.kept[way, at], step + 1, rest, way, next_pause)
                for level, chance in enumerate(law.broken[way, at].tolist()):
                    ahead += chance * least(step + 1, rest, level * CALMS, None, 0)
                found.append(job.ways[way].price + ahead)
        return min(found)

    return least(0, job.work, at, None, 0)


@pytest.mark.parametrize("change", [0, 1, 2])
def test_the_least_expected_money_is_that_of_brute_force(change: int) -> None:
    law = drawn_law(change)
    job = Job(3, 7, change, (Way("spot", 0.3, Seen((True,) * 7, (False,) * 7)), Way("stay", 1.0)))
    plan = BurstPlan(law, job, JobState(0, job.work), 1)
    for at in range(2 * CALMS):
        assert plan.expected(at, job.work) == pytest.approx(least_by_trying(law, job, at))


def test_a_burst_is_sat_out() -> None:
    broken = tuple(60 <= step % 90 < 80 and step % 2 == 0 for step in range(270))
    job = Job(150, 270, 4, (Way("spot", 0.3, Seen((True,) * 270, broken)), Way("stay", 1.0)))
    run = run_job(job, BurstAware())
    assert run.met
    assert run.taken[50] == 0
    assert None not in run.taken[40:60]
    assert None in run.taken[152:172]


def test_what_is_counted_moves_the_law_towards_it() -> None:
    watch = Watch(2)
    for step in range(400):
        watch.see(0, [step % 50 < 6 and step % 2 == 0, False])
    law = watch.law()
    breaks = law.broken[0].sum(axis=1)[:CALMS]
    assert breaks[1] > 5 * breaks[4]  # after a step of calm in a burst, against 8 and more
