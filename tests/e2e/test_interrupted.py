"""Ctrl-C at any moment of a compilation: exit code 130, no traceback, and no half-written folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from light_models import path

MODEL = str(path("squeezenet"))
AT = """
import os, signal, sys
seen = 0
def watch(event, arguments):
    global seen
    if event == EVENT:
        seen += 1
        if seen == COUNT:
            os.kill(os.getpid(), signal.SIGINT)
"""


def interrupted(tmp_path: Path, event: str, count: int) -> subprocess.CompletedProcess[str]:
    """Run the command; it interrupts itself at the N-th of some events that Python audits, such as imports."""
    hook = AT.replace("EVENT", repr(event)).replace("COUNT", str(count)) + "sys.addaudithook(watch)\n"
    start = hook + "sys.argv = ['heterps-compile', *sys.argv[1:]]\nfrom heterps_compile.__main__ import main\nmain()\n"
    words = [MODEL, "--method", "greedy", "-o", "out", "-q"]
    return subprocess.run(
        [sys.executable, "-c", start, *words], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.usefixtures("in_the_foreground")
@pytest.mark.parametrize(
    ("event", "count"),
    [
        ("import", 3),  # the first after this package and the module that the command starts in
        ("import", 12),
        ("import", 150),
        *(pytest.param(*at, marks=pytest.mark.slow) for at in (("import", 40), ("import", 420), ("import", 900))),
        ("open", 300),
        ("os.rename", 1),
    ],
)
def test_it_ends_with_130_and_no_traceback(event, count, tmp_path):
    done = interrupted(tmp_path, event, count)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert "Traceback" not in done.stderr
    assert "bug in" not in done.stderr
    assert done.stderr.splitlines()[-1:] == ["Interrupted."]
    assert done.stdout == ""
    assert os.listdir(tmp_path) in ([], ["out"])


def test_an_ignored_signal_stays_ignored(tmp_path):
    """As a shell asks for what it runs in the background."""
    start = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    start += "import os, sys; from heterps_compile.__main__ import main\n"
    start += (
        "import heterps_compile.cli.main as m; m.run = lambda *_: os.kill(os.getpid(), signal.SIGINT) or 0\nmain()\n"
    )
    assert subprocess.run([sys.executable, "-c", start], cwd=tmp_path, check=False, timeout=60).returncode == 0
