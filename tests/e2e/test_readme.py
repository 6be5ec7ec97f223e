"""README: at most one screen a part, and its Python example prints the output that it shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120


@pytest.mark.slow  # compiles CTRDNN with the default method
def test_the_example_prints_its_output() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (output,) = re.findall(r"```text\n(.*?)```", README, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == output
