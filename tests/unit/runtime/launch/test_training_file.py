"""A user's training file."""

import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.data.sample_source import Columns
from heterps_compile.runtime.launch.faults import exception_cause
from heterps_compile.runtime.launch.loop import watched_weight
from heterps_compile.runtime.launch.progress import READING, ProgressRecorder
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.training_file import (
    Training,
    check_training_file,
    from_training_file,
    in_function,
    loss_of,
    make_optimizer,
    make_scheduler,
    read_training_file,
)
from heterps_compile.runtime.pipeline.batch_loss import loss_values

GOOD = "def loss(outputs, batch):\n    return outputs.mean()\n\ndef optimizer(parameters):\n    return None\n"


def read(tmp_path, text, name="train.py"):
    (tmp_path / name).write_text(text)
    return read_training_file(tmp_path / name)


def test_what_a_file_defines(tmp_path):
    (tmp_path / "beside.py").write_text("SCALE = 3\n")
    training = read(tmp_path, "from beside import SCALE\n" + GOOD + "def prepare(batch):\n    return {'x': SCALE}\n")
    assert training.prepare({}) == {"x": 3}
    assert training.data is None
    assert float(training.loss(torch.ones(2), {})) == 1.0


def test_a_file_may_have_dataclasses_whose_annotations_are_not_evaluated(tmp_path):
    lines = ["from __future__ import annotations", "from dataclasses import dataclass", "@dataclass", "class Rate:"]
    text = "\n".join(
        [*lines, "    rate: float = 0.5", GOOD, "def prepare(batch):", "    return {'x': Rate().rate}", ""]
    )
    assert read(tmp_path, text).prepare({}) == {"x": 0.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "scheduler = 3\n", r"scheduler .*\b3\b"),
        (GOOD + "prepare = 3\n", r"prepare .*\b3\b"),
        ("x = 1\0\n", "SyntaxError.*string.*contain"),
        ("import sys\nsys.exit(2)\n", r"SystemExit.*\b2\b.*\b2\b"),
        ("\n1 / 0\n", r"ZeroDivisionError.*division.*\b2\b"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


def training_with(optimizer) -> Training:
    return Training(loss=lambda outputs, batch: outputs, optimizer=optimizer)


def test_an_optimiser_gets_what_is_trained():
    layer = nn.Linear(2, 1)
    layer.bias.requires_grad_(requires_grad=False)
    given = []

    def optimizer(parameters):
        given.extend(name for name, _ in parameters)
        return torch.optim.SGD([p for _, p in parameters], lr=1.0)

    assert make_optimizer(training_with(optimizer), list(layer.named_parameters())) is not None
    assert given == ["weight"]
    assert make_optimizer(training_with(optimizer), []) is None


def test_an_optimiser_that_computes_the_loss_again_is_refused():
    training = Training(loss=torch.mean, optimizer=lambda ps: torch.optim.LBFGS([p for _, p in ps]))
    with pytest.raises(RunError, match="LBFGS"):
        make_optimizer(training, list(nn.Linear(2, 1).named_parameters()))


def test_what_is_no_optimiser_is_refused():
    layer = nn.Linear(2, 1)
    named = list(layer.named_parameters())
    with pytest.raises(RunError, match="NoneType"):
        make_optimizer(training_with(lambda parameters: None), named)
    foreign = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    with pytest.raises(RunError, match="parameter"):
        make_optimizer(training_with(lambda parameters: foreign), named)


def scheduled(scheduler) -> Training:
    return Training(loss=lambda outputs, batch: outputs, optimizer=lambda parameters: None, scheduler=scheduler)


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)


def test_a_scheduler_is_made_of_the_optimiser():
    optimizer, training = sgd(), scheduled(lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5))
    assert make_scheduler(training, optimizer).optimizer is optimizer
    assert make_scheduler(training, None) is None
    assert make_scheduler(training_with(None), optimizer) is None


@pytest.mark.parametrize("nonsense", [None, 3, "StepLR", object(), torch.optim.lr_scheduler.StepLR])
def test_what_is_no_scheduler_is_refused(nonsense):
    with pytest.raises(RunError, match=r"torch.optim.lr_scheduler"):
        make_scheduler(scheduled(lambda made: nonsense), sgd())


def test_a_scheduler_of_another_optimiser_is_refused():
    other = torch.optim.lr_scheduler.ConstantLR(sgd())
    with pytest.raises(RunError):
        make_scheduler(scheduled(lambda made: other), sgd())


def test_a_column_that_is_missing_is_told_with_those_there_are(tmp_path):
    training = read(tmp_path, GOOD.replace("outputs.mean()", "batch['lable']"))
    told = r"'lable'.*'dense'.*'label'.*prepare\(batch"
    batch = {"dense": torch.ones(2), "label": torch.ones(2)}
    with pytest.raises(InputError, match=told):
        loss_of(training)(torch.ones(2), batch)
    assert Columns(batch).get("lable") is None


def test_what_a_function_raises_says_where(tmp_path):
    training = read(tmp_path, GOOD.replace("outputs.mean()", "batch['lable']"))
    with pytest.raises(KeyError) as raised, in_function("loss", training.loss):
        training.loss(torch.ones(2), {})
    assert exception_cause(raised.value) == "raised KeyError: 'lable' in loss() of the training file, line 2"
    trace = traceback.extract_tb(from_training_file(raised.value).__traceback__)
    assert [frame.name for frame in trace] == ["loss"]  # of the test, which called it, nothing
    with pytest.raises(TypeError) as raised, in_function("prepare", len):
        len(3)
    assert exception_cause(raised.value).endswith("in prepare() of the training file")


def test_weights_of_samples_are_asked_for_by_name_and_watched_over():
    def sample_weight(batch: Any) -> torch.Tensor:
        assert progress.now().doing == READING
        return batch["importance"]

    plain = Training(loss=lambda outputs, batch: outputs, optimizer=torch.optim.SGD)
    progress = ProgressRecorder()
    weigh = watched_weight(replace(plain, sample_weight=sample_weight), progress)
    assert weigh is not None
    assert weigh({"importance": torch.ones(2)}).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match=r"'importance'.*'x'") as caught:
        weigh({"x": torch.ones(2)})
    assert caught.value.__notes__[0].startswith("in sample_weight() of the training file, line ")
    assert watched_weight(plain, progress) is None


def test_a_loss_that_is_not_finite_is_told_by_its_name(tmp_path):
    training = read(tmp_path, GOOD.replace("outputs.mean()", "{'fit': outputs.mean(), 'size': outputs.sum() / 0}"))
    found = loss_of(training)(torch.ones(2), {})
    with pytest.raises(RunError, match=r"'size'.*inf"):
        loss_values(found, is_scaled=False)
    values = loss_values(found, is_scaled=True)
    assert list(values.parts) == ["fit", "size"], "in float16 the step is skipped instead"


LOSS, OPTIMIZER = "def loss(outputs, batch): ...\n", "def optimizer(parameters): ...\n"
BOTH = LOSS + OPTIMIZER
LOCAL = "def schedular(optimizer):\n    scheduler = made(optimizer)\n    return scheduler\n"


def options_of(folder: Path, data: str = "x.parquet") -> RunOptions:
    return RunOptions(directory="m", train=str(folder / "train.py"), data=data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOTH + LOCAL, "'schedular' (line 3) that nothing calls, and no 'scheduler'; call it scheduler(optimizer), or"),
        (BOTH + "def prepair(batch): ...\n", "'prepair' (line 3) that nothing calls, and no 'prepare'"),
        (BOTH + "lr_schedule = lambda o: o\n", "'lr_schedule' (line 3) that nothing calls, and no 'scheduler'"),
        (BOTH + "def sample_weight(outputs, batch): ...\n", "cannot be called as sample_weight(batch), which is how"),
        (BOTH + "class Scheduler: ...\n", "'Scheduler' (line 3) that nothing calls"),
        (LOSS + "def optimiser(p): ...\n" + LOCAL, "'optimiser' (line 2) that nothing calls, and no 'optimizer'"),
        (LOSS + OPTIMIZER.replace("optim", "make_optim"), "'make_optimizer' (line 2) that nothing calls"),
        ("def loss(outputs): ...\n" + OPTIMIZER, "loss(outputs) of the training file"),
        ("loss = lambda o: o\n" + OPTIMIZER, "cannot be called as loss(outputs, batch), which is how a run calls it"),
        ("async " + BOTH, "async loss(outputs, batch) of the training file"),
        (BOTH + "def scheduler(optimizer, *, steps): ...\n", "cannot be called as scheduler(optimizer), which"),
        (LOSS + "def optimizer(): ...\n", "cannot be called as optimizer(parameters), which"),
    ],
)
def test_what_a_run_would_pass_over_or_not_be_able_to_call_is_refused_unrun_and_run(tmp_path, text, said):
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(InputError) as unrun:
        check_training_file(options_of(tmp_path))
    assert said in str(unrun.value)
    with pytest.raises(InputError) as when_run:
        read_training_file(tmp_path / "train.py", has_data=True)
    assert said.partition(" of the training")[0].partition(" cannot")[0] in str(when_run.value)


@pytest.mark.parametrize(
    "more",
    [
        "def losses(a): ...\n",  # there is a loss: this is the user's own
        "def _schedular(o): ...\n",
        "def schedular(o): ...\nscheduler = schedular\n",
        "def prepair(b): ...\n__all__ = ['prepair']\n",
        "import functools\n@functools.cache\ndef prepair(b): ...\n",
        "from torch.optim import lr_scheduler\n",
        "def dates(): ...\n",
        "def scheduler(optimizer, steps=3): ...\n",
        "def prepare(*columns): ...\n",
        "def warm_up(steps): ...\nclass Model: ...\n",
    ],
)
def test_functions_of_the_users_own_are_let_alone(tmp_path, more):
    (tmp_path / "train.py").write_text(BOTH + more)
    check_training_file(options_of(tmp_path))
    read_training_file(tmp_path / "train.py", has_data=True)


def test_functions_that_a_file_has_and_those_that_it_may_have_are_told_apart(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(BOTH + "def date(): ...\n")
    with pytest.raises(InputError, match="'data'"):
        check_training_file(options_of(tmp_path, data=""))
    path.write_text(BOTH + "def batches(data): return data\n")
    assert check_training_file(options_of(tmp_path, data="")).possible == {"loss", "optimizer"}
    path.write_text("from elsewhere import *\n")  # it may define anything: known when it is run
    names = check_training_file(options_of(tmp_path))
    assert "metrics" not in names.defined
    assert "metrics" in names.possible


def test_a_training_object_has_functions_that_can_be_called():
    with pytest.raises(InputError, match=r"scheduler\(optimizer"):
        scheduled(lambda optimizer, steps: None)
