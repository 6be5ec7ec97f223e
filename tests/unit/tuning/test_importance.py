"""How much parameters tell of a result: against shares that are known, and against chance."""

import math
from dataclasses import replace

import pytest
from search_states import RECORD, SPACE, searched_state

from heterps_compile.tuning.importance import LEAST_TRIALS, importances
from heterps_compile.tuning.space_file import space_of_text

USUAL = space_of_text("space.toml", SPACE)
TWO = """
[model]
kind = { choice = ["a", "b"] }
x = { float = [0, 1] }
"""


def of(text: str, value, trials: int = 60, seed: int = 0, method: str = "random"):
    record = replace(RECORD, space_text=text, parts=("all",), trials=trials, method=method)
    return importances(searched_state(record, value=value, seed=seed), space_of_text("space.toml", text))


def test_a_number_is_told_though_its_best_lies_in_the_middle():
    found = of(TWO, lambda config, _: -abs(config["model.x"] - 0.5))
    assert found.measured[0].name == "model.x"
    assert found.measured[0].is_told
    assert 0.3 < found.measured[0].best[0] < 0.5 < found.measured[0].best[1] < 0.75


def test_the_share_is_the_statistic_of_kruskal_and_wallis_over_its_largest_value():
    stats = pytest.importorskip("scipy.stats")
    record = replace(RECORD, space_text=TWO, parts=("all",), method="random")
    state = searched_state(record, value=lambda config, _: config["model.x"] + 0.3 * (config["model.kind"] == "a"))
    groups = [[t.value for t in state.trials if t.config["model.kind"] == kind] for kind in "ab"]
    found = importances(state, space_of_text("space.toml", TWO))
    kind = next(one for one in found.measured if one.name == "model.kind")
    assert kind.share == pytest.approx(stats.kruskal(*groups).statistic / (len(state.trials) - 1))


def test_a_parameter_that_is_not_always_there_is_measured_where_it_is():
    found = importances(searched_state(replace(RECORD, trials=120), ends="done"), USUAL)
    momentum = next(one for one in found.measured if one.name == "train.optimizer.sgd.momentum")
    assert LEAST_TRIALS <= momentum.trials < found.trials
    assert found.measured[0].name == "train.lr"
    assert found.constant == ("train.epochs",)


def test_short_trials_are_compared_with_their_like():
    """Trials of one epoch are all worse than others, which is no parameter's doing."""
    found = of(TWO, lambda config, fidelity: fidelity + 1e-3 * config["model.x"], trials=120, method="hyperband")
    x = next(one for one in found.measured if one.name == "model.x")
    assert x.share > 0.85
    assert not next(one for one in found.measured if one.name == "model.kind").is_told


def test_a_configuration_that_is_trained_further_counts_once():
    record = replace(RECORD, space_text=TWO, parts=("all",), trials=120, method="hyperband")
    state = searched_state(record, value=lambda config, _: config["model.x"])
    begun = sum(trial.continues is None for trial in state.trials)
    assert importances(state, space_of_text("space.toml", TWO)).trials == begun < len(state.trials)


def test_too_few_trials_are_told():
    found = of(TWO, lambda config, _: config["model.x"], trials=LEAST_TRIALS - 1)
    assert (found.measured, found.too_few) == ((), ("model.kind", "model.x"))
    assert of(TWO, lambda config, _: config["model.x"], trials=LEAST_TRIALS).measured


def test_equal_results_tell_nothing():
    found = of(TWO, lambda *_: 0.5)
    assert [(one.share, one.is_told) for one in found.measured] == [(0.0, False), (0.0, False)]


def test_results_of_any_size_are_ranked():
    found = of(TWO, lambda config, _: math.copysign(1e308, config["model.x"] - 0.5))
    assert found.measured[0].name == "model.x"
