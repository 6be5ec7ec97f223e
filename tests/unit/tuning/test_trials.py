"""What trials are made of: workers, cores, lengths, values, files of models, compiled models and their predictions."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import InputError, OptionError, RunError, UnknownNameError
from heterps_compile.strict_json import read_json, write_json
from heterps_compile.tuning.local_engine import deal_cores
from heterps_compile.tuning.model_file import ModelFile
from heterps_compile.tuning.run_search import run_search
from heterps_compile.tuning.search_methods import METHODS
from heterps_compile.tuning.search_request import (
    SearchRequest,
    begin_search,
    parse_budget,
    parse_fidelity,
    reopen_search,
)
from heterps_compile.tuning.trial_engine import workers_of
from heterps_compile.tuning.trial_job import RESULT_FILE, TrialJob, TrialResult, write_job
from heterps_compile.tuning.trial_plans import START_S, Length, TrialPlans
from heterps_compile.tuning.trial_values import VARIABLE, trial_values
from heterps_compile.tuning.tune_options import METHOD_NAMES
from heterps_compile.tuning.worker_classes import recorded_classes, worker_classes

POOL = load_cluster("heterps-paper")
MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, width), torch.nn.Linear(width, 1)

    def forward(self, x):
        return self.second(self.first(x).relu())

def build(config):
    return Net(config["width"]), (torch.zeros(16, 8),)
"""
TRAIN = "def loss(outputs, batch): ...\ndef optimizer(parameters): ...\ndef metrics(outputs, batch): ...\n"


# ---- workers


def test_without_words_every_unit_of_a_pool_is_a_worker() -> None:
    for each, device in zip(worker_classes(POOL, None), POOL.device_types, strict=True):
        assert (each.name, each.compute.workers, each.compute.units) == (device.name, device.max_units, 1)


def test_of_a_pool_with_one_type_classes_have_any_names() -> None:
    pool = replace(POOL, device_types=(POOL.device_type("cpu-core"),), links=())
    assert [each.name for each in worker_classes(pool, "fast=1x2,slow=2x1")] == ["fast", "slow"]
    with pytest.raises(UnknownNameError, match="'fast'"):
        worker_classes(POOL, "fast=1x2")


def test_a_worker_has_units_of_several_types() -> None:
    core, volta = POOL.device_type("cpu-core"), POOL.device_type("v100")
    (found,) = worker_classes(POOL, "pair=2x1:v100+4:cpu-core")
    assert (found.compute.workers, found.compute.units, found.gpus) == (2, 5, 1)
    assert found.units_words == "1 of 'v100' and 4 of 'cpu-core'"
    assert found.compute.price_per_hour == pytest.approx(volta.price_per_hour + 4 * core.price_per_hour)
    assert [(device.name, device.max_units) for device in found.pool.device_types] == [("v100", 1), ("cpu-core", 4)]
    assert recorded_classes(POOL, [found.compute]) == (found,)
    with pytest.raises(UnknownNameError, match=r"'v10'.*'v100'"):
        worker_classes(POOL, "pair=1x1:v10+1:cpu-core")


def test_a_class_of_a_search_that_began_with_one_type_a_worker_comes_back() -> None:
    (found,) = worker_classes(POOL, "v100=2x1")
    assert recorded_classes(POOL, [replace(found.compute, types=())]) == (found,)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("v100", "'v100'.*NAME=WORKERSxUNITS"),
        ("v100=2", "'v100=2'"),
        ("v100=0x1", r"\b1\b.*10,000"),
        ("v100=1x1,v100=1x1", "'v100' twice"),
        ("v100=9000x9", "81,000.*'v100'"),
        ("\x1b[31m=1x1", r"\\x1b"),
        ("pair=1x1:v100+1:v100", r"'pair=1x1:v100\+1:v100'"),
        ("pair=1x1:v100+0:cpu-core", r"numbers.*\b1\b"),
    ],
)
def test_words_that_are_no_workers_are_refused(text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as error:
        worker_classes(POOL, text)
    assert "\x1b" not in str(error.value)


def test_cores_are_dealt_in_turn_and_shared_where_they_do_not_last() -> None:
    pool = replace(POOL, device_types=(POOL.device_type("cpu-core"),), links=())
    workers = workers_of(worker_classes(pool, "fast=1x2,slow=2x1"))
    assert deal_cores(workers, [4, 5, 6, 7]) == ({"fast-0": (4, 5), "slow-0": (6,), "slow-1": (7,)}, ())
    dealt, notes = deal_cores(workers, [4, 5, 6])
    assert dealt == {"fast-0": (4, 5), "slow-0": (6,), "slow-1": (4,)}
    assert notes == ("workers have 4 units in all and this machine 3 cores: they share them, and trials take longer",)


# ---- lengths, money


def test_a_fidelity_is_steps() -> None:
    assert [Length("steps").steps(9.4, 64), Length("samples").steps(640, 64), Length("epochs", 1000).steps(3, 64)] == [
        9,
        10,
        47,
    ]
    assert Length("samples").steps(1, 64) == 1
    assert Length("epochs", 640).fidelity(15, 64) == 1.5


def test_fidelities_are_read() -> None:
    assert parse_fidelity("1:9:epochs") == (1, 9, "epochs")
    assert parse_fidelity("500:steps") == (500, 500, "steps")
    assert parse_fidelity("1e3:1e6:samples") == (1000, 1e6, "samples")


@pytest.mark.parametrize("text", ["", "9", "1:9", "1:9:hours", "-1:9:steps", "nan:steps", "1:2:3:steps", "1e:steps"])
def test_what_is_no_fidelity_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="LEAST:MOST:UNIT"):
        parse_fidelity(text)


def test_budgets_are_read_in_the_currency_of_the_pool() -> None:
    classes = worker_classes(POOL, "cpu-core=1x1")
    assert parse_budget("20 USD", POOL, classes) == parse_budget("20", POOL, classes) == 20.0
    for text, fault in (("", "'20 USD'"), ("0", "'20 USD'"), ("1e999", "'20 USD'"), ("3 EUR", "EUR")):
        with pytest.raises(InputError, match=fault):
            parse_budget(text, POOL, classes)
    local = load_cluster("local")
    with pytest.raises(InputError, match="nothing"):
        parse_budget("20 USD", local, worker_classes(local, None))


# ---- a request


def request(folder: Path, **changes: object) -> SearchRequest:
    (folder / "space.toml").write_text("[train]\nlr = { float = [0.1, 1.0] }\n")
    (folder / "train.py").write_text(TRAIN)
    (folder / "model.py").write_text(MODEL)
    given: dict[str, object] = {
        **{name: str(folder / f"{name}.{'toml' if name == 'space' else 'py'}") for name in ("space", "train", "model")},
        "data": "random", "validate": "random", "metric": "auc", "is_maximised": True, "trials": 13,
    }  # fmt: skip
    return SearchRequest(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kind", "fault"),
    [
        ({"space": "none.toml"}, InputError, r"none\.toml"),
        ({"model": "none.py"}, InputError, r"none\.py.*No such file"),
        (
            {"validate": None},
            InputError,
            "'auc'",
        ),
        ({"is_maximised": None}, OptionError, "--metric auc"),
        ({"metric": "loss"}, OptionError, "--max.*'loss'"),
        ({"method": "annealing"}, UnknownNameError, "'annealing'"),
        ({"address": "a:1"}, OptionError, "--address.*Ray"),
        ({"fidelity": "9:1:epochs"}, InputError, r"\b9\b.*\b1\b"),
        ({"pool": "none"}, UnknownNameError, "'none'"),
        ({"pool": "heterps-paper"}, InputError, "machine"),
        ({"data": ""}, RunError, "--data"),
    ],
)
def test_what_is_wrong_with_a_request_is_told_before_anything_is_written(
    tmp_path: Path, changes: dict[str, object], kind: type[Exception], fault: str
) -> None:
    asked = request(tmp_path, **changes)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(kind, match=fault):
        begin_search(asked, str(tmp_path / "run"))
    assert sorted(tmp_path.iterdir()) == before


def test_a_metric_that_the_training_file_cannot_report_is_refused(tmp_path: Path) -> None:
    asked = request(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN.rpartition("def metrics")[0])
    with pytest.raises(UnknownNameError, match=r"'.*train\.py'.*'auc'"):
        begin_search(asked, str(tmp_path / "run"))


def test_a_folder_that_is_not_empty_is_not_taken(tmp_path: Path) -> None:
    asked = request(tmp_path)
    with pytest.raises(InputError, match="empty"):
        begin_search(asked, str(tmp_path))
    search = begin_search(asked, str(tmp_path / "run"))
    with pytest.raises(InputError, match="search"):
        begin_search(asked, str(tmp_path / "run"))
    again = reopen_search(search.folder, search.record)
    assert (again.space, again.record) == (search.space, search.record)
    assert [each.compute for each in again.classes] == [each.compute for each in search.classes]


def test_a_pool_that_was_changed_is_refused(tmp_path: Path) -> None:
    search = begin_search(request(tmp_path, workers="core=1x1"), str(tmp_path / "run"))
    pool = search.folder / "pool.toml"
    pool.write_text(pool.read_text().replace("GFLOP/s", "MFLOP/s"))
    with pytest.raises(InputError):
        reopen_search(search.folder, search.record)


def test_the_options_name_every_method() -> None:
    assert set(METHOD_NAMES) == set(METHODS)


# ---- values, jobs


def test_values_of_a_trial_stand_in_the_place_of_the_usual_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert trial_values({"lr": 0.1}) == {"lr": 0.1}
    monkeypatch.setenv(VARIABLE, json.dumps({"lr": 0.5, "optimizer": "sgd"}))
    assert trial_values({"lr": 0.1, "decay": 0.0}) == {"lr": 0.5, "optimizer": "sgd", "decay": 0.0}


def test_jobs_and_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    job = TrialJob(
        folder=str(tmp_path / "a"), plan="p", train="t.py", data="d", validate=None, metric="auc",
        values={"lr": 0.5, "deep": True, "depth": 3, "kind": "a"}, run={"replicas": (2, 2), "schedule": "gpipe"},
        steps=9, checkpoint="c", cores=(0, 3),
    )  # fmt: skip
    assert read_json(write_job(job), TrialJob) == job
    path = Path(job.folder) / RESULT_FILE
    result = TrialResult(value=0.5)
    write_json(path, result)
    assert read_json(path, TrialResult) == result
    write_job(job)
    assert not path.exists()
    path.write_text('{"value": "high"}')
    with pytest.raises(InputError, match=r"result\.json: value: .*'high'"):
        read_json(path, TrialResult)


# ---- models


def model_file(folder: Path, text: str) -> ModelFile:
    path = folder / "model.py"
    path.write_text(text)
    return ModelFile(path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def buidl(config): ...", r"build\(config"),
        ("import nowhere_at_all", r"ModuleNotFoundError.*\b1\b"),
        ("raise SystemExit(3)", r"SystemExit.*\b3\b"),
        ("def build(config)", "SyntaxError"),
    ],
)
def test_a_file_without_models_is_refused_where_it_is_read(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        model_file(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def build(config): return 1", r"\bint\b.*tuple"),
        ("def build(config): return config['depth']", r"KeyError.*'depth'.*\b1\b"),
        ("def build(config): return 1, [2]", "tuple.*return"),
    ],
)
def test_a_build_that_gives_no_model_is_told(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        model_file(tmp_path, text).built({"width": 8}, 0)


def test_a_model_begins_with_the_weights_of_the_seed(tmp_path: Path) -> None:
    file = model_file(tmp_path, MODEL)
    one, other, third = (file.built({"width": 8}, seed).model.first.weight for seed in (0, 0, 1))
    assert one.equal(other)
    assert not one.equal(third)


def test_of_one_onnx_model_nothing_is_tuned(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"")
    assert ModelFile(path).built({}, 0).model == str(path)
    with pytest.raises(InputError, match="'width'"):
        ModelFile(path).built({"width": 8}, 0)


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> TrialPlans:
    folder = tmp_path_factory.mktemp("plans")
    classes = worker_classes(load_cluster("heterps-paper"), "cpu-core=1x1,v100=1x2")
    return TrialPlans(folder / "plans", model_file(folder, MODEL), classes, 0, Length("steps"))


def folders(plans: TrialPlans) -> int:
    return sum(path.is_dir() for path in plans._folder.iterdir())


def test_equal_models_are_compiled_once_and_a_batch_makes_another(plans: TrialPlans) -> None:
    one = plans.plan({"model.width": 8, "train.lr": 0.1}, "cpu-core")
    assert one.batch == 16
    assert plans.plan({"model.width": 8, "train.lr": 0.2}, "cpu-core").folder == one.folder
    count = folders(plans)
    other = plans.plan({"model.width": 8, "train.batch": 32}, "cpu-core")
    assert (other.batch, folders(plans)) == (32, count + 1)


def test_what_was_compiled_is_read_again_by_the_next_process(plans: TrialPlans, tmp_path: Path) -> None:
    one = plans.plan({"model.width": 8}, "cpu-core")
    fresh = TrialPlans(
        plans._folder, model_file(tmp_path, "def build(config): 1 / 0"), list(plans._classes.values()), 0
    )
    assert fresh.plan({"model.width": 8}, "cpu-core") == one


def test_a_trial_takes_its_steps_times_the_step_of_its_plan(plans: TrialPlans) -> None:
    (of,) = (each.compute for each in plans._classes.values() if each.name == "cpu-core")
    config = {"model.width": 8}
    step_s = plans.plan(config, "cpu-core").step_s
    assert step_s > 0
    assert plans.predict(config, 100, of).time_s == pytest.approx(START_S + 100 * step_s)


def test_a_larger_model_takes_longer_by_its_plan(plans: TrialPlans) -> None:
    small, large = (plans.plan({"model.width": width}, "cpu-core") for width in (8, 4096))
    assert large.step_s > 2 * small.step_s
    assert large.memory_bytes > small.memory_bytes


def test_replicas_that_a_worker_has_no_units_for_do_not_fit_its_class(plans: TrialPlans) -> None:
    config = {"model.width": 8, "plan.replicas": 2, "plan.micro_batches": 2}
    assert (
        "2 replicas in all need as many units, and a worker of class 'cpu-core' has 1"
        in plans.plan(config, "cpu-core").misfit
    )
    assert plans.predict(config, 1, plans._classes["cpu-core"].compute).memory_bytes == math.inf
    fits = plans.plan(config, "v100")
    assert fits.fault == ""
    assert (fits.widths, fits.misfit) == ((2,), "")
    fresh = TrialPlans(plans._folder, plans._model, list(plans._classes.values()), 0)
    assert fresh.plan({"model.width": 8}, "cpu-core").misfit == ""


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"plan.micro_batches": "two"}, "plan.micro_batches is 'two'; it must be a whole number of 1 or more"),
        ({"plan.replicas": 0}, "plan.replicas is 0; it must be a whole number of 1 or more"),
        ({"plan.schedule": "rumba"}, "unknown schedule 'rumba'"),
        ({"plan.precision": "fp8"}, "fp8"),
        ({"train.batch": "large"}, "batch"),
    ],
)
def test_values_that_no_plan_can_have_are_faults_in_one_sentence(plans: TrialPlans, values, fault: str) -> None:
    plan = plans.plan({"model.width": 8, **values}, "cpu-core")
    assert fault in plan.fault
    assert "\n" not in plan.fault
    assert plans.plan({"model.width": 8}, "cpu-core").fault == ""


def test_a_model_that_cannot_be_built_is_a_fault_that_the_next_process_knows(plans: TrialPlans) -> None:
    config = {"model.depth": 8}
    fault = plans.plan(config, "cpu-core").fault
    assert "build() of the model file" in fault
    assert "KeyError: 'width'" in fault
    fresh = TrialPlans(plans._folder, plans._model, list(plans._classes.values()), 0)
    assert fresh.plan(config, "cpu-core").fault == fault


def test_lengths_that_are_as_many_steps_are_refused_before_a_trial(tmp_path: Path) -> None:
    made = request(tmp_path, fidelity="1:27:samples", trials=40, workers="core=1x1", verifies=False)
    (tmp_path / "space.toml").write_text("[model]\nwidth = 4\n")
    search = begin_search(made, str(tmp_path / "run"))
    with pytest.raises(InputError, match="1, 3, 9, 27 samples are 1, 1, 1, 2 steps"):
        run_search(search, lambda _: None)


def test_a_search_goes_on_with_another_engine(tmp_path: Path) -> None:
    search = begin_search(request(tmp_path, engine="ray", address="a:1", workers="core=1x1"), str(tmp_path / "run"))
    moved = search.started_by("ray", "b:2")
    assert (moved.record.engine, moved.path("address")) == ("ray", "b:2")
    assert (search.started_by("local", None).record.engine, search.started_by("local", None).path("address")) == (
        "local",
        "",
    )
    with pytest.raises(OptionError, match=r"--address.*Ray"):
        search.started_by("local", "b:2")
