"""A search as it runs: what is given to whom, what fails, and what is left after the end of everything.

Trials run in this process: the engine is a stand-in whose trials end as the test says.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from heterps_compile.errors import InfeasibleError, InputError, RunError
from heterps_compile.plan.swap import locked
from heterps_compile.strict_json import write_json
from heterps_compile.tuning.compute_classes import ComputeClass, TrialCost
from heterps_compile.tuning.export_best import export_best
from heterps_compile.tuning.journal import JOURNAL_FILE
from heterps_compile.tuning.run_search import run_search
from heterps_compile.tuning.search_record import read_record
from heterps_compile.tuning.search_request import Search, SearchRequest, begin_search, reopen_search
from heterps_compile.tuning.search_run import FIRST_FAILURES, MISFITS_TOLD, SearchRun
from heterps_compile.tuning.search_state import FAILED, TOLD, SearchState, read_search
from heterps_compile.tuning.space import Config
from heterps_compile.tuning.trial_engine import Left, TrialEngine, Worker, workers_of
from heterps_compile.tuning.trial_job import RESULT_FILE, TrialJob, TrialResult, write_job
from heterps_compile.tuning.trial_log import LOG_FILE
from heterps_compile.tuning.trial_plans import Length, TrialPlan

SPACE = """
[train]
lr = { float = [0.1, 1.0] }
[model]
width = { integer = [1, 8] }
"""
POOL = """
[[device]]
name = "{name}"
kind = "cpu"
price = "{price} USD/h"
price_source = "made up"
price_date = "2026-01-01"
max_units = 4
memory = "{memory} GB"
peak = {{ float32 = "{speed} GFLOP/s" }}
memory_bandwidth = "10 GB/s"
network_bandwidth = "2 GB/s"
network_latency = "50 us"
input_bandwidth = "2 GB/s"
launch = "20 us"
efficiency = 0.6
compute_parallel = 0.95
data_parallel = 0.95
"""
TRAIN = """
def loss(outputs, batch): ...
def optimizer(parameters): ...
def metrics(outputs, batch): ...
"""
Ends = Callable[[TrialJob, int], TrialResult | str | None]
"""From a job and its attempt: a result, how its process ended without one, or None for a trial that never ends."""


class Killed(BaseException):
    """Stands for SIGKILL: nothing is put away."""


class HandEngine(TrialEngine):
    """Runs trials one after the other, when it is waited for."""

    def __init__(self, ends: Ends, *, dies_after: int = 1_000, takes_s: float = 0.1) -> None:
        self.ends, self.left, self.takes_s = ends, dies_after, takes_s
        self.now_s = 100.0
        self.running: dict[Worker, TrialJob] = {}
        self.jobs: list[tuple[str, int, TrialJob]] = []

    def start(self, worker: Worker, job: TrialJob) -> None:
        write_job(job)
        self.running[worker] = job
        self.jobs.append((worker.name, trial_of(job), job))

    def wait(self, within_s: float) -> Sequence[Left]:
        if self.left == 0:
            raise Killed
        self.left -= 1
        self.now_s += self.takes_s
        for worker, job in self.running.items():
            ended = self.ends(job, int(job.folder.rpartition("-")[2]))
            if ended is not None:
                del self.running[worker]
                if isinstance(ended, TrialResult):
                    Path(job.checkpoint).mkdir()
                    write_json(Path(job.folder) / RESULT_FILE, ended)
                return [Left(worker, ended if isinstance(ended, str) else "")]
        return []

    def end(self, worker: Worker) -> None:
        self.running.pop(worker, None)

    def close(self) -> None:
        self.running.clear()


class HandPlans:
    """Plans whose numbers are given: a model takes a gigabyte for each of its width."""

    length = Length("steps")

    def __init__(self, folder: Path, faults: Mapping[int, str] | None = None) -> None:
        self.folder, self.faults = folder, faults or {}

    def plan(self, config: Config, class_name: str) -> TrialPlan:
        width = int(config["model.width"])
        return TrialPlan(self.folder, 4, (1,), 0.01, width * 1e9, fault=self.faults.get(width, ""))

    def predict(self, config: Config, fidelity: float, of: ComputeClass) -> TrialCost:
        return TrialCost(fidelity * 0.01, int(config["model.width"]) * 1e9)


def trial_of(job: TrialJob) -> int:
    return int(Path(job.folder).parent.name)


def value_of(job: TrialJob) -> float:
    """A trial's value is its learning rate, and a tenth of a thousandth for every step."""
    return float(job.values["lr"]) + job.steps * 1e-4


def well(job: TrialJob, _attempt: int) -> TrialResult:
    validation = {"validation": {"auc": value_of(job)}, "after_steps": job.steps}
    (Path(job.folder) / LOG_FILE).write_text(json.dumps(validation) + "\n")
    return TrialResult(value=value_of(job))


def begun(folder: Path, *devices: str, **changes: object) -> Search:
    (folder / "space.toml").write_text(SPACE)
    (folder / "train.py").write_text(TRAIN)
    (folder / "model.py").write_text("def build(config): ...\n")
    (folder / "pool.toml").write_text("".join(devices) or device("core"))
    given: dict[str, object] = {
        "space": str(folder / "space.toml"),
        "train": str(folder / "train.py"),
        "model": str(folder / "model.py"),
        "data": "random",
        "validate": "random",
        "metric": "auc",
        "is_maximised": True,
        "trials": 12,
        "fidelity": "4:16:steps",
        "eta": 2,
        "pool": str(folder / "pool.toml"),
        "workers": "core=1x1",
    }
    return begin_search(SearchRequest(**{**given, **changes}), str(folder / "run"))  # type: ignore[arg-type]


def device(name: str, memory: float = 64, speed: int = 60, price: float = 1.0) -> str:
    return POOL.format(name=name, memory=memory, speed=speed, price=price)


def search_run(search: Search, engine: HandEngine, told: list[str] | None = None, **more: object) -> SearchRun:
    plans = HandPlans(search.folder / "plans", more.pop("faults", None))  # type: ignore[arg-type]
    tell = (lambda _: None) if told is None else told.append
    clock = {"clock": lambda: engine.now_s}
    return SearchRun(search, workers_of(search.classes), plans, engine, tell, **clock, **more)  # type: ignore[arg-type]


def again(search: Search) -> Search:
    return reopen_search(search.folder, read_record(search.folder))


def asked_for(state: SearchState) -> list[tuple[Config, float, int | None]]:
    return [(dict(trial.config), trial.fidelity, trial.continues) for trial in state.trials]


def test_trials_run_and_the_best_of_the_longest_is_known(tmp_path: Path) -> None:
    search = begun(tmp_path)
    told: list[str] = []
    state = search_run(search, HandEngine(well), told).run()
    assert state.count(TOLD) == 12
    assert state.ended_why == "all 12 trials ended"
    assert state == read_search(search.folder)
    best = state.best
    assert best is not None
    assert best.fidelity == 16
    assert best.value == max(trial.value or 0 for trial in state.trials if trial.fidelity == 16)
    assert len(told) == 12
    assert told[0].startswith("trial 0 on core-0: auc ")


def test_a_trial_that_continues_another_is_given_its_checkpoints(tmp_path: Path) -> None:
    engine = HandEngine(well)
    search = begun(tmp_path)
    state = search_run(search, engine).run()
    promoted = [(trial, job) for _, number, job in engine.jobs if (trial := state.trials[number]).continues is not None]
    assert promoted
    for trial, job in promoted:
        assert trial.continues is not None
        before = state.trials[trial.continues]
        assert job.continues == str(search.folder / str(before.checkpoint))
        assert (job.done_steps, job.done_value) == (int(before.fidelity), before.value)
        assert job.steps == int(trial.fidelity) > job.done_steps
        assert before.config == trial.config


def test_a_trial_that_fails_every_time_is_left_with_its_reason_and_the_others_go_on(tmp_path: Path) -> None:
    def ends(job: TrialJob, attempt: int) -> TrialResult:
        fault = TrialResult(value=None, error="the metric 'auc' was never reported")
        return fault if trial_of(job) == 2 else well(job, attempt)

    state = search_run(begun(tmp_path, retries=2), HandEngine(ends)).run()
    assert state.trials[2].status == FAILED
    assert len(state.trials[2].attempts) == 3
    assert state.trials[2].reason == "the metric 'auc' was never reported"
    assert state.count(TOLD) == 11


def test_a_search_whose_longest_trials_all_fail_has_no_best_configuration(tmp_path: Path) -> None:
    search = begun(tmp_path, method="hyperband", trials=12)
    state = search_run(search, HandEngine(lambda job, n: "no data" if job.steps == 16 else well(job, n))).run()
    longest = [trial.status for trial in state.trials if trial.fidelity == 16]
    assert longest == [FAILED] * len(longest) != []
    assert state.count(TOLD) == 12 - len(longest)
    with pytest.raises(RunError, match=rf"none of {len(longest)} trials? of 16 steps.*no data.*--fidelity"):
        export_best(state)


@pytest.mark.parametrize(("method", "least"), [("hyperband", 7), ("dehb", 7), ("random", 1), ("tpe", 1)])
def test_a_number_of_trials_that_never_reaches_the_longest_is_refused(tmp_path: Path, method: str, least: int) -> None:
    if least > 1:
        with pytest.raises(InputError, match=rf"trials is {least - 1}; expected {least} "):
            begun(tmp_path, method=method, trials=least - 1)
    state = search_run(begun(tmp_path, method=method, trials=least), HandEngine(well)).run()
    assert [trial.fidelity for trial in state.trials].index(16) == least - 1


def test_a_process_that_leaves_nothing_is_told_with_where_its_output_lies(tmp_path: Path) -> None:
    search = begun(tmp_path, retries=0, trials=3, method="random")
    state = search_run(search, HandEngine(lambda job, n: "" if trial_of(job) == 0 else well(job, n))).run()
    assert state.trials[0].reason.startswith("its process left without a result; ")
    assert state.trials[0].reason.endswith("trials/0/attempt-0/output.txt has what it printed")


def test_what_ails_the_first_trials_ends_the_search(tmp_path: Path) -> None:
    engine = HandEngine(lambda _job, _attempt: TrialResult(value=None, error="the loss is nan"))
    search = begun(tmp_path, retries=0)
    with pytest.raises(RunError, match=r"\b5\b.*nan"):
        search_run(search, engine).run()
    assert len(engine.jobs) == FIRST_FAILURES
    assert read_search(search.folder).ended_why == "the first 5 trials all failed, the last since the loss is nan"


def test_a_model_that_cannot_be_compiled_fails_without_another_try(tmp_path: Path) -> None:
    engine = HandEngine(well)
    search = begun(tmp_path, retries=3, trials=30)
    state = search_run(search, engine, faults={3: "build() of the model file fails"}).run()
    failed = [trial for trial in state.trials if trial.status == FAILED]
    assert failed
    assert all(trial.config["model.width"] == 3 and len(trial.attempts) == 1 for trial in failed)
    assert not any(state.trials[number].config["model.width"] == 3 for _, number, _ in engine.jobs)


def test_a_trial_that_never_ends_is_ended_at_its_time_limit(tmp_path: Path) -> None:
    engine = HandEngine(lambda job, attempt: None if trial_of(job) == 1 else well(job, attempt), takes_s=1.0)
    state = search_run(begun(tmp_path, time_limit_s=4.0, retries=0, trials=4, method="random"), engine).run()
    assert state.trials[1].status == FAILED
    assert state.trials[1].reason == "it did not end within 4 s (--time-limit), and was ended"
    assert state.trials[1].time_s == 5.0
    assert state.count(TOLD) == 3


@pytest.mark.parametrize("method", ["random", "hyperband", "dehb", "tpe"])
def test_killed_after_any_trial_a_search_goes_on_as_if_it_had_not_been(tmp_path: Path, method: str) -> None:
    (tmp_path / "whole").mkdir()
    whole = search_run(begun(tmp_path / "whole", method=method), HandEngine(well)).run()
    for dies_after in (0, 7):
        folder = tmp_path / str(dies_after)
        folder.mkdir()
        search = begun(folder, method=method)
        first = HandEngine(well, dies_after=dies_after)
        with pytest.raises(Killed):
            search_run(search, first).run()
        assert read_search(search.folder).count(TOLD) == dies_after
        second = HandEngine(well)
        state = search_run(again(search), second).run()
        assert asked_for(state) == asked_for(whole)
        assert [trial.value for trial in state.trials] == [trial.value for trial in whole.trials]
        finished = {number for _, number, _ in first.jobs[:dies_after]}
        assert not finished & {number for _, number, _ in second.jobs}


def test_ctrl_c_is_written_down_and_the_search_goes_on(tmp_path: Path) -> None:
    def interrupt(job: TrialJob, attempt: int) -> TrialResult:
        if trial_of(job) == 3 and attempt == 0:
            raise KeyboardInterrupt
        return well(job, attempt)

    search = begun(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search_run(search, HandEngine(interrupt)).run()
    assert read_search(search.folder).ended_why == "it was interrupted"
    state = search_run(again(search), HandEngine(interrupt)).run()
    assert state.count(TOLD) == 12
    assert len(state.trials[3].attempts) == 2


def test_a_line_that_was_cut_off_is_dropped_and_told(tmp_path: Path) -> None:
    search = begun(tmp_path)
    with pytest.raises(Killed):
        search_run(search, HandEngine(well, dies_after=4)).run()
    journal = search.folder / JOURNAL_FILE
    journal.write_bytes(journal.read_bytes()[:-7])
    told: list[str] = []
    state = search_run(again(search), HandEngine(well), told).run()
    assert state.count(TOLD) == 12
    assert told[0] == "the last line of the journal was cut off by the end of the process before: it is dropped"


def test_more_trials_can_be_asked_for(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=3, method="random")
    search_run(search, HandEngine(well)).run()
    engine = HandEngine(well)
    state = search_run(again(search), engine, trials=5).run()
    assert (state.wanted, state.count(TOLD), len(engine.jobs)) == (5, 5, 2)


def test_a_journal_that_the_search_would_not_have_written_is_refused(tmp_path: Path) -> None:
    search = begun(tmp_path)
    with pytest.raises(Killed):
        search_run(search, HandEngine(well, dies_after=4)).run()
    journal = search.folder / JOURNAL_FILE
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[0]["config"]["train.lr"] = 0.5
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match=r"\b0\b"):
        search_run(again(search), HandEngine(well))


def test_a_training_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    search = begun(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN + "# changed\n")
    with pytest.raises(InputError, match=r"train\.py"):
        again(search)


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    search = begun(tmp_path)
    with locked(search.folder), pytest.raises(InputError):
        run_search(search, lambda _: None)


def test_no_trial_goes_to_a_class_whose_memory_it_exceeds(tmp_path: Path) -> None:
    engine = HandEngine(well)
    search = begun(
        tmp_path,
        device("large", memory=8),
        device("small", memory=3),
        workers="large=1x1,small=1x1",
        trials=30,
        method="random",
        fidelity="4:steps",
    )
    state = search_run(search, engine).run()
    widths: dict[str, list[int]] = {"large": [], "small": []}
    for trial in state.trials:
        widths[trial.class_name].append(int(trial.config["model.width"]))
    assert max(widths["small"]) <= 3 < max(widths["large"])
    assert state.count(TOLD) == 30


def test_what_fits_no_class_is_told_and_takes_no_number(tmp_path: Path) -> None:
    told: list[str] = []
    search = begun(tmp_path, device("core", memory=6), trials=20, method="random", fidelity="4:steps")
    state = search_run(search, HandEngine(well), told).run()
    assert state.count(TOLD) == 20
    assert max(int(trial.config["model.width"]) for trial in state.trials) <= 6
    assert state.misfits
    assert all(int(config["model.width"]) > 6 for config, _ in state.misfits)
    assert any("a configuration fits no class: it needs " in line for line in told)


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("cost", "'all'"),
        ("whole", "477 MiB.*'core'"),
    ],
)
def test_a_space_that_nothing_fits_is_one_sentence(tmp_path: Path, rule: str, fault: str) -> None:
    told: list[str] = []
    search = begun(tmp_path, device("core", memory=0.5), rule=rule)
    with pytest.raises(InfeasibleError, match=fault) as error:
        search_run(search, HandEngine(well), told).run()
    assert "\n" not in str(error.value)
    assert len(told) <= MISFITS_TOLD


def test_a_budget_ends_the_search(tmp_path: Path) -> None:
    """A trial takes 0.16 s as it is predicted, which is 0.16 USD on this pool."""
    search = begun(tmp_path, device("core", price=3600.0), budget="0.5 USD", method="random", fidelity="16:steps")
    state = search_run(search, HandEngine(well, takes_s=0.16)).run()
    assert len(state.trials) == 3
    assert state.money == pytest.approx(0.48)
    assert state.ended_why == "3 of 12 trials ended: the budget of 0.5 USD does not last for another"


def test_a_budget_that_does_not_last_for_one_trial_is_told(tmp_path: Path) -> None:
    search = begun(tmp_path, device("core", price=3600.0), budget="0.01 USD", method="random", fidelity="16:steps")
    with pytest.raises(InfeasibleError, match=r"0\.01 USD"):
        search_run(search, HandEngine(well)).run()


def test_a_space_is_split_where_there_are_several_classes_or_a_rule_asks_for_it(tmp_path: Path) -> None:
    def parts(folder: str, *devices: str, **changes: object) -> tuple[str, tuple[str, ...]]:
        (tmp_path / folder).mkdir()
        (tmp_path / "space").write_text("[model.kind]\nexclusive = true\na = {}\nb.x = { float = [0, 1] }\n")
        record = begun(
            tmp_path / folder, *devices, space=str((tmp_path / "space").rename(tmp_path / "s.toml")), **changes
        ).record
        return record.rule, record.parts

    two = (device("fast"), device("slow", speed=6))
    assert parts("one") == ("whole", ("all",))
    assert parts("plain", rule="plain") == ("plain", ("model.kind = a", "model.kind = b"))
    assert parts("two", *two, workers="fast=1x1,slow=1x1") == ("cost", ("model.kind = a", "model.kind = b"))


def test_money_counts_every_attempt(tmp_path: Path) -> None:
    def ends(job: TrialJob, attempt: int) -> TrialResult | str:
        return "it was lost" if trial_of(job) == 0 and attempt == 0 else well(job, attempt)

    search = begun(tmp_path, device("core", price=3600.0), trials=1, method="random")
    state = search_run(search, HandEngine(ends, takes_s=2.0)).run()
    assert state.trials[0].time_s == pytest.approx(2.0)
    assert state.money == pytest.approx(4.0)
    assert [(a.started_at_s, a.ended_at_s) for a in state.trials[0].attempts] == [(0.0, 2.0), (2.0, 4.0)]


def test_the_clock_stands_while_nobody_runs_the_search(tmp_path: Path) -> None:
    search = begun(tmp_path, trials=3, method="random")
    with pytest.raises(Killed):
        search_run(search, HandEngine(well, dies_after=2, takes_s=1.0)).run()
    state = search_run(again(search), HandEngine(well, takes_s=1.0)).run()
    assert (state.resumed_at_s, state.now_s) == ([2.0], 3.0)
