"""What `make demo` runs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "tools/demo.py"
README = Path(__file__).parents[2] / "README.md"
OTHERS = 4  # two plans of one type, two rules of thumb


@pytest.mark.slow  # the whole demonstration, with 1.3 GB of tables
def test_the_demo_beats_all_other_plans_and_its_stages_match(tmp_path):
    wide = {**os.environ, "COLUMNS": "120"}  # 80 columns leave out the files
    command = [sys.executable, str(DEMO), str(tmp_path)]
    done = subprocess.run(command, env=wide, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +0 +cpu-core .*em", done.stdout, re.MULTILINE)
    assert re.search(r"^ +3 +v100 .*linear", done.stdout, re.MULTILINE)
    gains = [int(gain) for gain in re.findall(r" \+(\d+) %$", done.stdout, re.MULTILINE)]
    assert len(gains) == OTHERS
    assert min(gains) > 15
    assert comparison(done.stdout) == comparison(README.read_text("utf-8"))
    ((difference, scale),) = re.findall(r"model in PyTorch is (\S+), at outputs of up to (\S+)\.\n", done.stdout)
    assert float(difference) <= 1e-4 * float(scale)
    assert (tmp_path / "clicks.html").stat().st_size > 0
    assert "The pictures are in" in done.stdout  # nobody is there to see a window


def comparison(printed: str) -> list[str]:
    """Return the lines that compare plans."""
    return re.findall(r"^   (?:plan|every|embeddings|data-intensive|ours) .*$", printed, re.MULTILINE)
