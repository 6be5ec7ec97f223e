"""What is told of a search: the best, rungs, failures, the machines' use, and when it may end."""

from dataclasses import replace
from itertools import pairwise

import pytest
from search_states import RECORD, first_trial_runs, searched_state

from heterps_compile.tuning.search_figures import (
    best_over_time,
    chain,
    class_uses,
    counts_words,
    failures,
    length_s,
    lengths,
    money_words,
    outlook,
    outlook_words,
    ranked,
    spread,
    value_words,
)
from heterps_compile.tuning.search_state import FAILED, RUNNING, TOLD, WAITING
from heterps_compile.tuning.search_tables import rung_table

LOST, MEMORY = "worker gpu-1 was lost", "CUDA out of memory"
WHOLE = replace(RECORD, method="random")


def some_fail(trial: int, attempt: int) -> str:
    """Let every eleventh trial fail each time, and some others once."""
    if trial % 11 == 3:
        return MEMORY
    return LOST if trial % 9 == 1 and attempt == 0 else ""


USUAL = searched_state(fails=some_fail, resumes_at=20, stop_after=50)


def test_the_best_comes_first_and_a_configuration_once():
    best = ranked(USUAL)
    assert best[0] == USUAL.best
    values = [(trial.fidelity, trial.value) for trial in best]
    assert values == sorted(values, reverse=True)
    whole = [each for trial in best for each in chain(USUAL, trial)]
    assert sorted(trial.number for trial in whole) == [trial.number for trial in USUAL.trials if trial.status == TOLD]
    assert all(trial.config == chain(USUAL, trial)[0].config for trial in best)


def test_what_is_best_only_gets_better_and_ends_with_the_best():
    points = best_over_time(USUAL, whole_only=True)
    values = [value for _, value in points]
    assert values == sorted(values)
    assert points[-1] == (USUAL.now_s, USUAL.best.value)
    assert best_over_time(USUAL, whole_only=False)[0][0] < points[0][0]  # a short trial ends before a whole one
    assert best_over_time(first_trial_runs(), whole_only=True) == ()


def test_rungs_hold_every_trial_once():
    *counts, best = zip(*(row[1:] for row in rung_table(USUAL).rows), strict=True)
    assert [sum(map(int, each)) for each in counts] == [USUAL.count(s) for s in (TOLD, RUNNING, WAITING, FAILED)]
    assert best[-1] == f"{USUAL.best.value:.5g}, trial {USUAL.best.number}"


def test_failures_are_told_by_reason_with_the_trials_that_were_left():
    memory, lost = failures(USUAL)
    left = tuple(trial.number for trial in USUAL.trials if trial.status == FAILED)
    assert (memory.reason, memory.attempts, memory.trials, memory.left) == (MEMORY, 2 * len(left), left, left)
    assert lost.reason == LOST
    assert lost.left == ()
    assert lost.attempts == len(lost.trials)


def test_machines_are_as_busy_as_their_attempts_were_long():
    for use in class_uses(USUAL):
        busy_s = sum(length_s(USUAL, attempt) for worker in use.used for _, attempt in worker.attempts)
        assert use.busy == pytest.approx(busy_s / (use.workers * USUAL.now_s))
        assert use.busy <= 1 + 1e-9
    gpu, cores = class_uses(USUAL)
    assert (gpu.workers, cores.workers) == (2, 4)
    assert gpu.told + cores.told == USUAL.count(TOLD)
    assert len(gpu.running) + len(cores.running) == USUAL.count(RUNNING)
    assert gpu.failed + cores.failed == sum(failure.attempts for failure in failures(USUAL))
    assert gpu.money + cores.money == pytest.approx(USUAL.money)


def test_the_end_is_estimated_from_the_trials_that_ended_last():
    state = searched_state(replace(WHOLE, budget=None), stop_after=30)
    found = outlook(state)
    ends_s = sorted(trial.attempts[-1].ended_at_s for trial in state.trials if trial.status == TOLD)
    took_s = state.now_s - ends_s[9]
    assert found.left_s == pytest.approx(30 * took_s / 20)
    assert found.why.startswith("30 more trials at the rate of the 20 that ended last, in ")
    assert outlook_words(state).startswith(f"{state.now_s / 60:.3g} min so far, about ")


def test_a_budget_ends_a_search_that_would_be_longer():
    state = searched_state(replace(WHOLE, budget=0.6), stop_after=30)
    assert outlook(state).why.startswith("then the budget is spent, at the rate of the 20")
    assert outlook(state).left_s < outlook(searched_state(replace(WHOLE, budget=None), stop_after=30)).left_s


def test_nothing_is_estimated_of_too_little_or_after_the_end():
    assert outlook(first_trial_runs()) is None
    assert outlook_words(first_trial_runs()) == "0 s so far; what is left is estimated once 2 trials have ended"
    ended = searched_state(ends="60 trials were run")
    assert outlook(ended) is None
    assert outlook_words(ended).endswith(": 60 trials were run")


def test_only_the_process_that_runs_counts_for_the_end():
    state = searched_state(WHOLE, resumes_at=30, stop_after=31)
    assert len(state.resumed_at_s) == 1
    assert outlook(state).why.startswith("29 more trials at the rate of the 2 that ended last")  # one at the very time


def test_numbers_of_trials_and_money_in_words():
    assert counts_words(searched_state(ends="done")) == "60 of 60 finished"
    assert counts_words(first_trial_runs()) == "0 of 60 finished, 1 running, 59 not yet chosen"
    assert money_words(first_trial_runs()) == "0 of 20.00 USD"
    assert money_words(first_trial_runs(replace(RECORD, budget=None))) == "0 USD, without a budget"
    assert (lengths(USUAL, 1.0), lengths(USUAL, 9.0)) == ("1 epoch", "9 epochs")
    assert [value_words(value) for value in (True, 3, 0.00123456, "adam")] == ["yes", "3", "0.001235", "adam"]


def test_what_is_left_out_is_left_out_evenly():
    assert spread(USUAL.trials[:8], 8) == list(USUAL.trials[:8])
    kept = [trial.number for trial in spread(USUAL.trials, 12)]
    assert kept[:3] == [0, 1, 2]
    assert len(set(kept)) == 12
    assert max(after - before for before, after in pairwise(kept)) <= 7
