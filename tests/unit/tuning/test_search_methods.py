"""Search methods: asked and told, the same again with the same seed, better than chance where they should be."""

import math
import tomllib

import numpy as np
import pytest

from heterps_compile.errors import InputError, MissingPackageError, UnknownNameError
from heterps_compile.tuning.ask_tell import Fidelity, Method, Trial
from heterps_compile.tuning.brackets import rung_sizes
from heterps_compile.tuning.search_methods import METHODS, make_search
from heterps_compile.tuning.space_file import parse_space

SPACE = parse_space(
    tomllib.loads(
        """
        [train]
        x = { float = [-5, 5] }
        y = { float = [1e-3, 1e3], log = true }
        [model.kind]
        exclusive = true
        flat = {}
        [model.kind.deep]
        depth = { integer = [1, 6] }
        [[forbidden]]
        "model.kind.deep.depth" = 2
        """
    )
)
FIDELITY = Fidelity(1, 27)


def loss(trial: Trial) -> float:
    """Be best at x = 1, y = 1, depth 4; short trials differ from whole ones."""
    config = trial.config
    depth = config.get("model.kind.deep.depth", 9)
    noise = np.random.default_rng(trial.number).normal() / trial.fidelity
    return float(
        (float(config["train.x"]) - 1) ** 2 + math.log(float(config["train.y"])) ** 2 + abs(int(depth) - 4) + noise
    )


def run(method: Method, trials: int, at_once: int = 1) -> list[Trial]:
    asked, waiting = [], []
    for _ in range(trials):
        waiting.append(method.ask())
        asked.append(waiting[-1])
        if len(waiting) == at_once:
            trial = waiting.pop(len(waiting) // 2)
            method.tell(trial.number, loss(trial))
    return asked


def facts(trial: Trial) -> tuple:
    return trial.number, dict(trial.config), trial.fidelity, trial.continues


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at_once", [1, 7])
def test_the_same_calls_give_the_same_trials(name, at_once):
    count = 13 if name == "tpe" else 60  # optuna draws ten before it begins to model, and takes its time then
    first, again, other = (run(make_search(name, SPACE, FIDELITY, seed), count, at_once) for seed in (3, 3, 4))
    assert list(map(facts, first)) == list(map(facts, again)) != list(map(facts, other))
    for trial in first:
        SPACE.check(trial.config)
        assert 1 <= trial.fidelity <= 27


@pytest.mark.parametrize("name", ["random", "hyperband", "dehb"])
def test_what_continues_is_the_same_configuration_trained_longer(name):
    trials = run(make_search(name, SPACE, FIDELITY, 0), 200, 5)
    continued = [trial for trial in trials if trial.continues is not None]
    for trial in continued:
        before = trials[trial.continues or 0]
        assert dict(before.config) == dict(trial.config)
        assert before.fidelity < trial.fidelity
    assert bool(continued) == (len({trial.fidelity for trial in trials}) > 1)


def test_brackets_are_those_of_the_paper():
    assert [rung_sizes(5, 3, bracket) for bracket in range(6)] == [
        (81, 27, 9, 3, 1),
        (27, 9, 3, 1),
        (9, 3, 1),
        (6, 2),
        (5,),
        (81, 27, 9, 3, 1),
    ]
    assert FIDELITY.levels == (1, 3, 9, 27)
    assert Fidelity(576 / 8, 93312 / 8).levels == (144, 432, 1296, 3888, 11664)
    assert Fidelity(5, 5).levels == (5,)


def test_hyperband_promotes_the_best_of_a_rung():
    method = make_search("hyperband", SPACE, Fidelity(1, 3), 0)
    first = [method.ask() for _ in range(3)]
    other = method.ask()  # the rung waits, and the next bracket begins
    assert [trial.fidelity for trial in first] == [1, 1, 1]
    assert (other.fidelity, other.continues) == (3, None)
    for trial, value in zip(first, (2.0, 1.0, 3.0), strict=True):
        method.tell(trial.number, value)
    promoted = method.ask()
    assert (promoted.fidelity, promoted.continues) == (3, first[1].number)


@pytest.mark.parametrize("name", ["hyperband", "dehb"])
def test_a_rung_whose_trials_all_failed_does_not_stop_the_search(name):
    method = make_search(name, SPACE, Fidelity(1, 9), 0)
    for number in range(60):
        method.ask()
        method.tell_failed(number)
    assert method.best is None
    assert run(method, 30)
    assert method.best is not None


def test_dehb_finds_what_random_search_does_not():
    budget = 27 * 40
    found: dict[str, list[float]] = {"dehb": [], "random": []}
    for name, losses in found.items():
        for seed in range(5):
            method, spent = make_search(name, SPACE, FIDELITY, seed), 0.0
            while spent < budget:
                (trial,) = run(method, 1)
                spent += trial.fidelity
            assert method.best is not None
            losses.append(method.best[1])
    assert np.median(found["dehb"]) < np.median(found["random"])


def test_what_is_told_wrongly_is_refused():
    method = make_search("random", SPACE, FIDELITY, 0)
    method.ask()
    with pytest.raises(InputError, match=r"\b0\b.*nan"):
        method.tell(0, math.nan)
    method.tell(0, 1.0)
    with pytest.raises(InputError, match=r"\b0\b.*already"):
        method.tell_failed(0)
    with pytest.raises(InputError, match=r"\b7\b"):
        method.tell(7, 1.0)


def test_what_cannot_be_searched_is_refused(monkeypatch):
    with pytest.raises(UnknownNameError, match=r"'debh'.*'dehb'"):
        make_search("debh", SPACE, FIDELITY, 0)
    with pytest.raises(InputError, match=r"\b3\b.*\b1\b.*\b0\b"):
        Fidelity(3, 1, unit="epochs")
    with pytest.raises(InputError, match=r"nan.*\b1\b"):
        Fidelity(math.nan, 1)
    with pytest.raises(InputError, match=r"\b1\b.*\b2\b"):
        Fidelity(1, 3, eta=1)
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingPackageError, match=r"'tpe'.*optuna"):
        make_search("tpe", SPACE, FIDELITY, 0)


SMALL = parse_space({"model": {"width": {"choice": [8, 16, 32]}, "kind": {"choice": ["a", "b", "c"]}, "depth": 2}})


@pytest.mark.parametrize("name", METHODS)
def test_no_configuration_is_tried_twice_while_there_are_others(name):
    method, losses = make_search(name, SMALL, Fidelity(9, 9), 0), np.random.default_rng(0)
    tried = []
    for number in range(9):
        tried.append(tuple(method.ask().config.items()))
        method.tell(number, float(losses.random()))
    assert len(set(tried)) >= 8  # a draw finds the last of nine with 91 %
    for number in range(9, 20):  # and goes on where there is none left
        method.ask()
        method.tell(number, float(losses.random()))


@pytest.mark.parametrize("name", ["hyperband", "dehb"])
def test_no_configuration_is_tried_twice_at_one_length(name):
    space = parse_space({"model": {f"c{i}": {"choice": [0, 1]} for i in range(6)}})
    trials = []
    method = make_search(name, space, Fidelity(1, 27), 0)
    for number in range(60):
        trials.append(method.ask())
        method.tell(number, sum(map(float, trials[-1].config.values())))
    tried = [(trial.fidelity, tuple(trial.config.items())) for trial in trials]
    assert len(set(tried)) == len(tried)
