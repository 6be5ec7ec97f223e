"""The ranks of one host of several: starts its processes and ends with them.

::

    heterps-compile run DIR --hosts hosts.toml --host 2   ->   one process for each of its slots, all in the run

What ranks print comes out here; a line that several print, such as the end of the run, once. No process outlives this
one.

Left out: the run itself (``worker.py``), how hosts find each other (``rendezvous.py``).
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from heterps_compile.errors import SIGNALLED, InputError

from .fork_server import ForkedProcess, ForkServer
from .hosts_file import Hosts, ranks_of_hosts
from .rendezvous import STARTER_VARIABLE
from .stop_signals import heeded_by_ranks

_POLL_S = 0.1
_LEAVE_S = 30.0  # how long the others may take once a rank has failed: they hear of it from the run's store
_ERROR = "Error: "


def start_host(hosts: Hosts, number: int, words: Sequence[str], server: ForkServer) -> int:
    """Start the ranks of one host and wait until all have left.

    Args:
        hosts: Of the run.
        number: Which of them this is, from 1.
        words: Of the command that every rank runs.
        server: Starts the processes.

    Returns:
        What this process is to exit with.

    Raises:
        InputError: where there is no such host.
    """
    if not 1 <= number <= len(hosts.hosts):
        raise InputError(f"--host is {number}, and the file names {len(hosts.hosts)} hosts; give one from 1 on")
    ranks = ranks_of_hosts(hosts)[number - 1]
    caught: list[int] = []
    before = {each: signal.signal(each, lambda got, _frame: caught.append(got)) for each in heeded_by_ranks()}
    printed = _Printed()
    started: list[ForkedProcess] = []
    pumps: list[threading.Thread] = []
    try:
        for local, rank in enumerate(ranks):
            environment = _environment(hosts, rank, local, len(ranks))
            process = server.start("heterps_compile.__main__", ["run", *words], environment, merges_output=False)
            started.append(process)
            pumps += [printed.pump(process.stdout, sys.stdout), printed.pump(process.stderr, sys.stderr)]
        return _wait(started, caught)
    finally:
        for process in started:
            process.kill_group()
            process.wait()
        for pump in pumps:
            pump.join(timeout=1.0)
        for each, handler in before.items():
            signal.signal(each, handler)


def _environment(hosts: Hosts, rank: int, local: int, slots: int) -> dict[str, str]:
    """Return the environment of a rank, with what torchrun sets."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(slots),
        "WORLD_SIZE": str(sum(host.slots for host in hosts.hosts)),
        "MASTER_ADDR": hosts.hosts[0].address,
        "MASTER_PORT": str(hosts.port),
        STARTER_VARIABLE: "1",
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _wait(started: Sequence[ForkedProcess], caught: list[int]) -> int:
    """Wait until all ranks have left, or until one has failed and the others have had time to hear of it."""
    passed_on = 0
    failed_s: float | None = None
    while any(process.poll() is None for process in started):
        for number in caught[passed_on:]:
            for process in started:
                process.send_signal(number)
        passed_on = len(caught)
        if failed_s is None and _failed(started):
            failed_s = time.monotonic()
        if failed_s is not None and time.monotonic() - failed_s > _LEAVE_S:
            break
        time.sleep(_POLL_S)
    failed = next(iter(_failed(started)), 0)
    return SIGNALLED - failed if failed < 0 else failed


def _failed(started: Sequence[ForkedProcess]) -> list[int]:
    """Return the exit codes of the processes that have failed."""
    return [code for code in (process.poll() for process in started) if code]


class _Printed:
    """Passes on what ranks print; of errors that several ranks tell alike, the first."""

    def __init__(self) -> None:
        self._errors: set[str] = set()
        self._one_at_a_time = threading.Lock()

    def pump(self, lines: IO[str], to: IO[str]) -> threading.Thread:
        """Begin to pass on lines."""
        thread = threading.Thread(target=self._pass_on, args=(lines, to), daemon=True)
        thread.start()
        return thread

    def _pass_on(self, lines: IO[str], to: IO[str]) -> None:
        with lines:
            for line in lines:
                with self._one_at_a_time, suppress(OSError, ValueError):  # who read it has left: the run goes on
                    if line.startswith(_ERROR):
                        if line in self._errors:
                            continue
                        self._errors.add(line)
                    to.write(line)
                    to.flush()
