"""What `make demo` runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "tools/demo.py"


@pytest.mark.slow  # a tutorial: the whole demonstration
def test_the_demo_compiles_ctrdnn_and_its_stages_match(tmp_path):
    done = subprocess.run([sys.executable, str(DEMO), str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +0 .*embedding.* cpu-core .* stage_0.onnx", done.stdout, re.MULTILINE)
    assert re.search(r"^ +1 .*linear.* v100 .* stage_1.onnx", done.stdout, re.MULTILINE)
    difference, scale = re.search(r"model in PyTorch is (\S+), at outputs of up to (\S+)\.\n", done.stdout).groups()
    assert float(difference) <= 1e-4 * float(scale)
