"""A short soak: random kills and resumes, no step lost."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from bench_runtime_soak import soak


@pytest.mark.slow  # a soak
def test_no_step_is_lost_over_random_kills_and_resumes(tmp_path):
    figures = soak(tmp_path, seconds=25.0, seed=1, leave_limit_s=math.inf)  # the tool measures that
    assert figures.faults == []
    assert figures.resumes >= 1
    assert figures.steps > 20
