"""Processes that others have started, and those of a test to their end."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def children(process: int) -> list[int]:
    """Return the processes that one has started, the oldest first."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has left
            continue
        if parent == process:
            found.append(int(stat.parent.name))
    return sorted(found)


def kill_with_descendants(process: int) -> None:
    """Kill a process and all that it has started, at once, as when a machine loses power."""
    found = [process]
    for one in found:
        found += children(one)
    for one in found:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def ranks_of(launcher: int) -> list[int]:
    """Return the ranks of a run: what the server has forked that its launcher has started."""
    (server,) = children(launcher)
    return children(server)


def end_of(process: "subprocess.Popen[str]", patience_s: float) -> tuple[int, str, str]:
    """Wait for a process with a session of its own; give its exit code, what it printed, and its errors."""
    try:
        out, err = process.communicate(timeout=patience_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, out, err
