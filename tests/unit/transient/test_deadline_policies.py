"""Jobs under a deadline: the guard keeps it, and the optimum is that of brute force."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.transient.availability import Seen, read_trace, seen_by
from heterps_compile.transient.deadline_job import Job, JobState, Way, after, run_job
from heterps_compile.transient.offline_optimum import offline_optimum
from heterps_compile.transient.policies import POLICIES, Greedy


def drawn_job(seed: int, steps: int, work: int, change: int, stay: float = 0.85) -> Job:
    """Return a job with spot, a mix that is there where spot is and more, and machines that stay."""
    rng = np.random.default_rng(seed)
    level = [int(rng.integers(3))]
    for _ in range(steps - 1):
        level.append(level[-1] if rng.random() < stay else int(rng.integers(3)))
    seen = []
    for way in (0, 1):
        there = tuple(each <= way for each in level)
        pairs = itertools.pairwise(there)
        broken = (False, *(was and (not now or bool(rng.random() < 0.1)) for was, now in pairs))
        seen.append(Seen(there, broken))
    return Job(work, steps, change, (Way("spot", 0.3, seen[0]), Way("mix", 0.5, seen[1]), Way("stay", 1.0)))


def least_by_trying(job: Job) -> float:
    """Return the least money over all choices, one after the other."""

    def least(state: JobState) -> float:
        if state.left == 0:
            return 0.0
        if state.step == job.deadline:
            return float("inf")
        ways = [None, *(way for way in range(len(job.ways)) if job.ways[way].is_there(state.step))]
        return min((0.0 if way is None else job.ways[way].price) + least(after(job, state, way)) for way in ways)

    return least(JobState(0, job.work))


def test_the_optimum_is_that_of_brute_force() -> None:
    for seed in range(60):
        job = drawn_job(seed, 6, 1 + seed % 4, seed % 3, stay=0.6)
        assert offline_optimum(job) == pytest.approx(least_by_trying(job))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_meets_every_deadline_that_machines_that_stay_meet(name: str) -> None:
    for seed in range(12):
        change = seed % 4
        job = drawn_job(seed, 40, 40 - change - 3 * (seed % 5), change)
        run = run_job(job, POLICIES[name]())
        assert run.met
        assert run.steps <= job.deadline
        assert run.money >= offline_optimum(job) - 1e-9


def test_a_policy_that_only_waits_is_made_to_start_in_time() -> None:
    class Wait:
        def choose(self, job: Job, state: JobState) -> int | None:
            return None

    job = drawn_job(3, 20, 8, 2)
    run = run_job(job, Wait())
    assert (run.met, run.money, run.taken) == (True, 10.0, (None,) * 10 + (2,) * 10)


def test_greedy_takes_spot_where_it_is_there_and_stays_when_the_slack_is_gone() -> None:
    there = Seen((True, True, False, False, False, False, False), (False, False, True, False, False, False, False))
    job = Job(4, 7, 1, (Way("spot", 0.3, there), Way("stay", 1.0)))
    run = run_job(job, Greedy())
    # a step of change and one of progress, then two to wait: three of work and one of change are left for four steps
    assert run.taken == (0, 0, None, 1, 1, 1, 1)
    assert run.money == pytest.approx(4.6)


def test_a_job_that_machines_that_stay_cannot_end_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"\b9\b.*\b2\b.*\b10\b.*\b11\b"):
        drawn_job(0, 10, 9, 2)


def trace_of(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(text, "utf-8")
    return path


def test_a_set_holds_the_oldest_and_is_broken_when_one_of_them_goes(tmp_path: Path) -> None:
    rows = "0,add,a\n0,add,b\n0,add,c\n60000,remove,c\n120000,add,d\n180000,remove,a\n240000,remove,b\n"
    trace = read_trace(trace_of(tmp_path, rows))
    assert trace.machines == (("a", "b", "c"), ("a", "b"), ("a", "b", "d"), ("b", "d"), ("d",))
    assert seen_by(trace, 2) == Seen((True, True, True, True, False), (False, False, False, True, True))
    assert seen_by(trace, 2, spares=True).broken == (False, False, False, False, True)
    assert seen_by(trace, 2).window(3, 2) == Seen((True, False), (False, True))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "events"),
        ('0,add,"a\n60000,add,b\n90000,remove,a\n', "unexpected"),  # it would swallow the rest
        ("0,add\n", "trace.csv:1.*'0,add'"),
        ("nan,add,a\n", "'nan,add,a'"),
        ("60000,add,a\n0,add,b\n", r"\b0\b.*60000"),
        ("0,add,a\n0,add,a\n", "comes"),
        ("0,remove,a\n", "goes"),
        ("1e300,add,a\n", "steps"),
    ],
)
def test_traces_that_are_none_are_refused(tmp_path: Path, rows: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_trace(trace_of(tmp_path, rows))


def test_a_file_that_is_not_there_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_trace(tmp_path / "none.csv")
