"""Run a command for as long as this process's input is open: what starts a run on another machine holds on to it.

::

    python3 -m heterps_compile.runtime.engines.with_input WORD...

A line of the input that names a signal (``SIGINT``) has the command sent that signal. The input ends with whoever
started this, or with the way to here: the command is sent SIGHUP then, which ends a run after its step, and is killed
where it has not left after a while. OpenSSH's server leaves commands without a terminal running when a connection is
lost; hence this.

Left out: the other side (``over_ssh.py``).
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from heterps_compile.errors import SIGNALLED

_POLL_S = 0.1
_LEAVE_S = 30.0
_INPUT = 0
_READ_BYTES = 4096
_TOLD = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


def run_with_input(words: Sequence[str], leave_s: float = _LEAVE_S) -> int:
    """Run a command until it ends or the input does.

    Args:
        words: The command and its arguments.
        leave_s: How long it may take to leave after the input's end.

    Returns:
        Its exit code; 128 and the number of the signal that ended it.
    """
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - ours to run
    except OSError as error:
        print(f"Error: cannot start {words[0]!r}: {error.strerror}", file=sys.stderr, flush=True)
        return 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: child.send_signal(got))
    try:
        _pass_on(child, leave_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # and what it may have left behind in its group
        code = child.wait()
    return SIGNALLED - code if code < 0 else code


def _pass_on(child: "subprocess.Popen[bytes]", leave_s: float) -> None:
    rest, left_s = b"", None
    while child.poll() is None:
        if left_s is not None:
            if time.monotonic() > left_s:
                return
            time.sleep(_POLL_S)
            continue
        if not select.select([_INPUT], [], [], _POLL_S)[0]:
            continue
        got = os.read(_INPUT, _READ_BYTES)
        if not got:
            child.send_signal(signal.SIGHUP)
            left_s = time.monotonic() + leave_s
        *lines, rest = (rest + got).split(b"\n")
        for line in lines:
            name = line.strip().decode("ascii", "replace")
            if name in _TOLD:
                child.send_signal(signal.Signals[name])


if __name__ == "__main__":
    sys.exit(run_with_input(sys.argv[1:]))
