"""A process of its own: its input and its signals are what is tried."""

import signal
import subprocess
import sys

import pytest

LOUD = "trap 'echo hangup; exit 3' HUP; trap 'echo interrupted' INT; echo up; while :; do sleep 0.02; done"


def held(script: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "heterps_compile.runtime.engines.with_input", "sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("in_the_foreground")
def test_lines_are_signals_and_the_end_of_the_input_hangs_up():
    with held(LOUD) as process:
        assert process.stdout.readline() == "up\n"
        process.stdin.write("garbage\nSIGKILL\nSIGINT\n")
        process.stdin.flush()
        assert process.stdout.readline() == "interrupted\n"  # and SIGKILL is none that it takes
        process.stdin.close()
        assert process.stdout.readline() == "hangup\n"
    assert process.returncode == 3


@pytest.mark.parametrize(("script", "code"), [("exit 4", 4), ("kill -9 $$", 128 + signal.SIGKILL)])
def test_the_exit_code_is_that_of_the_command(script, code):
    with held(script) as process:
        assert process.wait(10) == code
