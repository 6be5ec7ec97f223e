"""One rank of a run as Ray's worker processes see it: an object that starts the rank's process and says how it does.

Ray makes it on the node that has what the rank's device type is called there; its process ends with it, since a rank
leaves when its parent does. Its methods return at once.

Left out: who calls them (``ray_cluster.py``). Nothing of Ray is imported.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from heterps_compile.errors import SIGNALLED
from heterps_compile.runtime.launch.membership import STARTER_VARIABLE
from heterps_compile.runtime.launch.stop_signals import RESIZED_BY, STOPPING

OUT, ERR = "out", "err"


class RankProcess:
    """Starts the process of a rank, on the machine where this object is."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, str]] = []
        self._guard = threading.Lock()
        self._pumps: list[threading.Thread] = []
        self._process: subprocess.Popen[str] | None = None

    def free_port(self) -> int:
        """Return a port that is free here."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            return int(probe.getsockname()[1])

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the rank.

        Args:
            words: After ``heterps-compile``.
            environment: Variables beside those of this process.
        """
        # Ray blocks SIGINT, and a child inherits that.
        blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, (*STOPPING, RESIZED_BY))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "heterps_compile", *words],
                env={**os.environ, **environment, STARTER_VARIABLE: "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for name, lines in ((OUT, self._process.stdout), (ERR, self._process.stderr)):
            assert lines is not None  # noqa: S101 - both are pipes
            self._pumps.append(threading.Thread(target=self._take, args=(name, lines), daemon=True))
            self._pumps[-1].start()

    def poll(self) -> tuple[list[tuple[str, str]], int | None]:
        """Return the lines since the last call, each with its stream, and the exit code; None while it runs."""
        code = None if self._process is None else self._process.poll()
        if code is not None:
            for pump in self._pumps:
                pump.join(timeout=1.0)
        with self._guard:
            lines, self._lines = self._lines, []
        return lines, SIGNALLED - code if code is not None and code < 0 else code

    def send_signal(self, number: int) -> None:
        """Send a signal to the rank, if it still runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def end(self) -> None:
        """Kill the rank, if it still runs, and wait until it is gone: what it held is free then."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _take(self, name: str, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                with self._guard:
                    self._lines.append((name, line))
