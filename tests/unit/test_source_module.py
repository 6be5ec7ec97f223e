"""What runs is the source that stands in a file, whatever byte code lies beside it."""

import os
import sys

import pytest

from heterps_compile.runtime.launch.training_file import read_training_file
from heterps_compile.source_module import module_of, run_module
from heterps_compile.tuning.model_file import ModelFile

TRAINING = "RATE = 0.1\ndef loss(outputs, batch):\n    return RATE\ndef optimizer(parameters):\n    return None\n"
MODEL = "def build(config):\n    return None, (0.1,)\n"


def of_module(path):
    module = module_of(path, "a_module")
    run_module(module)
    return module.RATE


def of_model_file(path):
    return ModelFile(path).built({}, 0).inputs[0]


@pytest.mark.parametrize(
    ("rate_of", "text"),
    [
        (of_module, TRAINING),
        (lambda path: read_training_file(path).loss(None, {}), TRAINING),
        (of_model_file, MODEL),
    ],
)
def test_a_file_changed_within_a_second_runs_as_it_is_now(tmp_path, monkeypatch, rate_of, text):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "train.py"
    for rate in ("0.1", "0.3"):
        path.write_text(text.replace("0.1", rate))
        os.utime(path, (1e9, 1e9))
        assert rate_of(path) == float(rate)
    assert [each.name for each in tmp_path.iterdir()] == ["train.py"]
