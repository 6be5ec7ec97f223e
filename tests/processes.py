"""Processes that others have started, and those of a test to their end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]

PATIENCE_S = 400.0
"""Longest that a test waits for a command to end: several tests may share two cores."""


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


def is_alive(process: int) -> bool:
    """Check whether a process runs: it is there, and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


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


def begin_command(folder: Path, *words: str, environment: Mapping[str, str] = os.environ) -> "subprocess.Popen[str]":
    """Start the command cold in a folder, in a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "heterps_compile", *words],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(seen: Callable[[], bool], process: "subprocess.Popen[str]", patience_s: float = 240.0) -> None:
    """Wait until something is seen, the process ends, or patience does."""
    deadline_s = time.monotonic() + patience_s
    while not seen() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)


def wait_for_lines(log: Path, process: "subprocess.Popen[str]") -> None:
    """Wait until a log has its first line."""
    wait_for(lambda: log.exists() and bool(log.read_text()), process)


def wait_until_gone(word: str, patience_s: float = 60.0) -> None:
    """Wait until no process but this one names a path in its command."""
    deadline_s = time.monotonic() + patience_s
    while (left := processes_with(word)) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert left == []


def processes_with(word: str) -> list[str]:
    """Return the commands of processes that name a path."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has left
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return [command for command in found if word in command]


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
