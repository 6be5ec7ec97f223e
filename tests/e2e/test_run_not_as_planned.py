"""A run whose data come slowly names that as the cause of the difference to its plan."""

import re
import subprocess
import sys

import pytest
from written_ctrdnn import DENSE, FIELDS, MICRO_BATCH, ROWS, write_ctrdnn

SLOW_S = 0.04
TRAINING = f"""
import time
import torch
from torch.nn import functional as F

def loss(outputs, batch):
    return F.binary_cross_entropy_with_logits(outputs, batch["label"])

def data():
    while True:
        time.sleep({SLOW_S})
        yield {{
            "sparse": torch.randint({ROWS}, ({MICRO_BATCH}, {FIELDS})),
            "dense": torch.randn({MICRO_BATCH}, {DENSE}),
            "label": torch.rand({MICRO_BATCH}).round(),
        }}

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.05)
"""


@pytest.mark.slow  # a run
def test_data_that_come_slowly_are_the_cause_that_is_named(tmp_path):
    compiled = write_ctrdnn(tmp_path)
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "heterps_compile", "run", compiled, "--train", tmp_path / "train.py"]
    done = subprocess.run([*command, "--steps", "30"], capture_output=True, text=True, check=True, timeout=300)
    said = " ".join(done.stdout.split())  # lines may be broken, as COLUMNS asks for it
    took = re.search(r"times the planned time \(a step took ([\d.]+) ms in the mean, planned .*?\): ", said)
    assert took, said
    # data are read ahead, and what a stage waits for them is less than what they take, by what it computes
    found = re.match(r"stage [01] waited ([\d.]+) ms a micro-batch for data \(\+([\d.]+) ms of ", said[took.end() :])
    assert found, said
    assert SLOW_S * 500 < float(found[1]) <= float(took[1])
    assert float(found[2]) == pytest.approx(float(found[1]), rel=0.2), "it holds the whole step up"
