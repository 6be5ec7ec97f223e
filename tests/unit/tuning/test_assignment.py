"""Trials go to the classes that suit them: shares, corrected times, memory, money."""

import math
import tomllib
from dataclasses import replace

import highspy
import numpy as np
import pytest

from heterps_compile.errors import InfeasibleError, InputError, UnknownNameError
from heterps_compile.tuning.ask_tell import Fidelity
from heterps_compile.tuning.assignment import Assigned, AssignedSearch, SearchSettings
from heterps_compile.tuning.class_shares import maximise, shares_by_cost
from heterps_compile.tuning.compute_classes import ComputeClass, CorrectedTimes, TrialCost
from heterps_compile.tuning.space import Config
from heterps_compile.tuning.space_file import parse_space

SPACE = parse_space(
    tomllib.loads(
        """
        [model.kind]
        exclusive = true
        [model.kind.small]
        x = { float = [0, 1] }
        [model.kind.large]
        x = { float = [0, 1] }
        width = { integer = [1, 8] }
        """
    )
)
GPU = ComputeClass("gpu", 1, 16e9, 2.0, 10e12)
CPU = ComputeClass("cpu", 1, 4e9, 0.1, 1e11)
FIDELITY = Fidelity(1, 9)


def predict(config: Config, fidelity: float, of: ComputeClass) -> TrialCost:
    """Take the same for small models everywhere, and twenty times as long for large ones without a GPU."""
    if config["model.kind"] == "small":
        return TrialCost(fidelity * 1.0, 1e9)
    return TrialCost(fidelity * (1.0 if of.name == "gpu" else 20.0), float(config["model.kind.large.width"]) * 1e9)


def settings(**changes: object) -> SearchSettings:
    return replace(SearchSettings(SPACE, "random", FIDELITY), **changes)  # type: ignore[arg-type]


def kinds(search: AssignedSearch, name: str, count: int) -> list[str]:
    found = []
    for _ in range(count):
        assigned = search.ask(name)
        assert assigned is not None
        found.append(str(assigned.config["model.kind"]))
        search.tell(assigned.number, 0.5, assigned.predicted_s)
    return found


def optimum(worth: np.ndarray, rows: np.ndarray, limits: np.ndarray) -> float:
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    for value in worth:
        solver.addCol(-float(value), 0.0, highspy.kHighsInf, 0, [], [])
    for row, limit in zip(rows, limits, strict=True):
        solver.addRow(-highspy.kHighsInf, float(limit), len(row), list(range(len(row))), row.tolist())
    solver.run()
    return -solver.getObjectiveValue()


def test_the_maximum_is_that_of_another_solver():
    random = np.random.default_rng(0)
    for _ in range(40):
        rows = np.vstack([random.random((3, 6)) + 0.01, random.normal(size=(2, 6))])
        limits = random.integers(0, 4, 5).astype(float)
        worth = random.normal(size=6)
        found = maximise(worth, rows, limits)
        assert (found >= 0).all()
        assert (rows @ found <= limits + 1e-7).all()
        assert worth @ found == pytest.approx(optimum(worth, rows, limits), abs=1e-6)


def test_parts_go_where_they_run_well():
    times = np.array([[1.0, 1.0], [1.0, 20.0]])  # a small model, a large one; on a GPU, on CPUs
    shares = shares_by_cost(times, [1, 1], [0.5, 0.5], least=1.0)
    assert shares == pytest.approx(np.array([[0.0, 1.0], [1.0, 0.0]]))
    plain = 2 / ((1 + 1) / 2), 2 / ((1 + 20) / 2)
    assert shares.sum() == pytest.approx(2.0)
    assert shares.sum() > sum(plain) / 2


def test_what_is_left_of_the_mix_runs_what_ends_soonest():
    times = np.array([[1.0, 1.0], [9.0, 9.0]])
    totals = [shares_by_cost(times, [1, 1], [0.5, 0.5], least).sum() for least in (1.0, 0.5, 0.0)]
    assert totals == pytest.approx([0.4, 1.2, 2.0])


def test_shares_keep_what_is_wanted_and_what_there_is():
    random = np.random.default_rng(1)
    for _ in range(15):
        parts, classes = random.integers(1, 6, 2)
        times = np.exp(random.normal(0, 2, (parts, classes)))
        times[random.random(times.shape) < 0.2] = np.inf
        times[np.arange(parts), random.integers(0, classes, parts)] = 1.0
        workers = random.integers(1, 50, classes)
        wanted = random.dirichlet(np.ones(parts)).tolist()
        held = {least: shares_by_cost(times, workers, wanted, least) for least in (0.0, 0.5, 1.0)}
        busy = np.where(np.isfinite(times), times, 0.0)
        for shares in held.values():
            assert (shares[~np.isfinite(times)] == 0).all()
            assert ((shares * busy).sum(0) <= workers * (1 + 1e-6)).all()
        rate = min(held[1.0].sum(1) / wanted)
        for least, shares in held.items():
            assert (shares.sum(1) >= least * rate * np.array(wanted) * (1 - 1e-6)).all()
        assert held[0.0].sum() >= held[0.5].sum() * (1 - 1e-6) >= held[1.0].sum() * (1 - 1e-6) ** 2
        mixed = [workers[c] / (wanted @ times[:, c]) for c in range(classes) if np.isfinite(times[:, c]).all()]
        assert rate >= sum(mixed) * (1 - 1e-6)  # what sharing without knowing of classes comes to


def test_what_was_measured_corrects_what_was_predicted():
    times = CorrectedTimes(predict)
    config = {"model.kind": "small", "model.kind.small.x": 0.5}
    for _ in range(50):
        times.measured(0, config, 9, CPU, 27.0)
    assert times.cost(0, config, 9, CPU).time_s == pytest.approx(27.0, rel=0.1)
    assert times.cost(1, config, 9, CPU).time_s == pytest.approx(27.0, rel=0.1)  # of another part, by the class
    assert times.cost(0, config, 9, GPU).time_s == 9.0
    for _ in range(50):
        times.measured(1, config, 9, CPU, 9.0)
    assert times.cost(0, config, 9, CPU).time_s == pytest.approx(27.0, rel=0.1)  # each part by its own
    assert times.cost(1, config, 9, CPU).time_s == pytest.approx(9.0, rel=0.1)


def test_a_wrong_prediction_is_assigned_anew():
    """Large models are said to be as fast without a GPU, and are not."""
    search = AssignedSearch(
        settings(rule="cost", least_share=1.0),
        [GPU, CPU],
        lambda c, f, of: TrialCost(f, predict(c, f, of).memory_bytes),
    )
    for _ in range(60):
        for name in ("gpu", "cpu"):
            assigned = search.ask(name)
            assert assigned is not None
            of = search.classes[name]
            search.tell(assigned.number, 0.5, predict(assigned.config, assigned.trial.fidelity, of).time_s)
    small, large = search.shares / search.shares.sum(1, keepdims=True)
    assert (small[1], large[0]) == pytest.approx((1, 1), abs=0.1)


@pytest.mark.parametrize(
    ("rule", "method"),
    [("whole", "random"), ("plain", "random"), ("cost", "dehb")],
)
def test_no_trial_exceeds_the_memory_of_its_class(rule, method):
    search = AssignedSearch(settings(rule=rule, method=method), [GPU, CPU], predict)
    running: list[Assigned] = []
    told = {}
    for turn in range(80):
        name = ("gpu", "cpu")[turn % 2]
        assigned = search.ask(name)
        assert assigned is not None
        assert predict(assigned.config, 1, GPU).memory_bytes <= search.classes[name].memory_bytes
        if assigned.continues is not None:
            assert told[assigned.continues] == dict(assigned.config)
        running.append(assigned)
        if len(running) > 4:
            done = running.pop(0)
            told[done.number] = dict(done.config)
            search.tell(done.number, float(done.config.get("model.kind.large.x", 0.5)), done.predicted_s)
    assert search.best is not None
    assert search.refused == []


def test_what_fits_no_class_is_refused_with_the_reason():
    search = AssignedSearch(settings(rule="plain"), [CPU], predict)
    asked = [search.ask("cpu") for _ in range(40)]
    assert all(each is not None for each in asked)
    config, reason = search.refused[0]
    assert int(config["model.kind.large.width"]) > 4
    assert reason.startswith("it needs ")
    assert "and the class with the most memory, 'cpu', has 3.73 GiB" in reason
    tiny = ComputeClass("tiny", 1, 1e6, 0.1, 1e9)
    with pytest.raises(InfeasibleError, match=r"'model\.kind ="):
        AssignedSearch(settings(rule="cost"), [tiny], predict)
    with pytest.raises(InfeasibleError, match="977 KiB"):
        AssignedSearch(settings(rule="plain"), [tiny], predict).ask("tiny")


def test_the_budget_is_never_exceeded():
    search = AssignedSearch(settings(budget=0.1), [GPU, CPU], predict)
    while (assigned := search.ask("gpu")) is not None:
        search.tell(assigned.number, 1.0, assigned.predicted_s)
    assert 0.09 < search.spent <= 0.1


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: ComputeClass("c", 0, 1, 1, 1), "compute class 'c' has 0 workers; expected 1 to "),
        (lambda: ComputeClass("c", 1, -1, 1, 1), "compute class 'c' has a number that is negative or not finite"),
        (lambda: ComputeClass("c", 1, 1, math.nan, 1), "compute class 'c' has a number that is negative or not finite"),
        (lambda: AssignedSearch(settings(), [], predict), "there is no compute class; name one"),
        (lambda: AssignedSearch(settings(), [CPU, CPU], predict), "two compute classes have one name; names must diff"),
        (lambda: settings(budget=0), "the budget is 0; it must be above 0"),
        (lambda: settings(least_share=2), "least_share is 2; it is a part of the trials, from 0 to 1"),
        (lambda: settings(rule="cast"), "unknown rule of assignment 'cast'; did you mean 'cost'?"),
        (lambda: AssignedSearch(settings(), [CPU], predict).ask("cpus"), "unknown compute class 'cpus'; did you mean"),
        (
            lambda: AssignedSearch(settings(), [CPU], predict).tell(3, 1.0, math.nan),
            "trial 3 is not running; tell each tr",
        ),
        (
            lambda: AssignedSearch(settings(rule="cost"), [CPU], lambda *_: TrialCost(0.0)),
            "a trial on 'cpu' is predicted to take 0.0 s and 0.0 bytes; a prediction is a positive time, and no",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(make, sentence):
    with pytest.raises((InputError, UnknownNameError)) as told:
        make()
    assert str(told.value).startswith(sentence)


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused_and_the_trial_goes_on(time_s):
    search = AssignedSearch(settings(), [CPU], predict)
    search.ask("cpu")
    for tell in (lambda: search.tell(0, 1.0, time_s), lambda: search.tell_failed(0, time_s)):
        with pytest.raises(InputError, match=rf"\b0\b.*{time_s}"):
            tell()
    search.tell(0, 1.0, 2.0)
    assert search.best is not None


def test_a_promoted_trial_is_predicted_by_what_it_trains_beyond_the_one_it_continues():
    asked: list[float] = []

    def predict_by_fidelity(config: Config, trained: float, of: ComputeClass) -> TrialCost:
        asked.append(trained)
        return TrialCost(trained)

    search = AssignedSearch(settings(method="hyperband", rule="whole"), [CPU], predict_by_fidelity)
    found = []
    for _ in range(40):
        assigned = search.ask("cpu")
        assert assigned is not None
        found.append(assigned)
        search.tell(assigned.number, 0.5, assigned.predicted_s)
    promoted = [each for each in found if each.continues is not None]
    assert promoted
    for each in promoted:
        assert each.predicted_s == pytest.approx(each.trial.fidelity - found[each.continues].trial.fidelity)
    assert all(each.predicted_s == pytest.approx(each.trial.fidelity) for each in found if each.continues is None)


def test_attempts_that_failed_before_are_paid_too():
    search = AssignedSearch(settings(rule="whole"), [GPU], predict)
    assigned = search.ask("gpu")
    assert assigned is not None
    search.tell(assigned.number, 0.5, 1800.0, 3600.0)
    assert search.spent == pytest.approx(GPU.price_per_hour * 1.5)


def test_a_class_draws_on_past_what_does_not_fit_it():
    """Widths 5 to 8 do not fit the small class, and wait for the large one."""
    search = AssignedSearch(settings(rule="whole"), [GPU, CPU], predict)
    for _ in range(20):
        assigned = search.ask("cpu")
        assert assigned is not None
        assert predict(assigned.config, 1.0, CPU).memory_bytes <= CPU.memory_bytes
    assert search.has_waiting
    waited = search.ask("gpu")
    assert waited is not None
    assert predict(waited.config, 1.0, CPU).memory_bytes > CPU.memory_bytes
