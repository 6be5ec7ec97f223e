"""Processes of this machine that an engine starts, of which each stands for one machine of the run.

What they print is passed on line by line, with the name of their machine before it. Signals that stop a run are passed
on to them; where one fails, the others may leave by themselves, as the run tells them to, and are ended after a while.

Left out: what they are (``ssh.py``).
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TextIO

from heterps_compile.errors import SIGNALLED
from heterps_compile.escape import printable
from heterps_compile.runtime.launch.stop_signals import STOPPING, collecting_signals

from .contract import Streams

POLL_S = 0.1
LEAVE_S = 45.0
"""How long the others may take once one has failed, or once all were told to end: a run needs up to 30 s."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A process to start.

    Attributes:
        words: Its command.
        name: Stands before its lines; "" for none.
        is_told_by_input: Whether signals go to it as lines of its input, whose end ends it (``with_input.py``).
        fatal: Exit codes at which the others are told to end at once: the way to a machine is lost.
    """

    words: tuple[str, ...]
    name: str = ""
    is_told_by_input: bool = False
    fatal: frozenset[int] = frozenset()


@dataclass(eq=False)
class _Running:
    one: Followed
    process: "subprocess.Popen[str]"
    pumps: list[threading.Thread] = field(default_factory=list)

    def tell(self, number: int) -> None:
        """Pass a signal on."""
        if not self.one.is_told_by_input:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
        elif self.process.stdin is not None:
            with suppress(OSError, ValueError):  # it has left
                self.process.stdin.write(f"{signal.Signals(number).name}\n")
                self.process.stdin.flush()


class Following:
    """Processes that were started, from then to their end; what they print is passed on meanwhile."""

    def __init__(self, ones: Sequence[Followed], streams: Streams, leave_s: float = LEAVE_S) -> None:
        """Start processes.

        Args:
            ones: What to start.
            streams: Take their lines.
            leave_s: How long they may take to leave.
        """
        self._running: list[_Running] = []
        self._leave_s, self._deadline_s = leave_s, float("inf")
        try:
            for one in ones:
                process = _start(one)
                self._running.append(_Running(one, process))
                for lines, to in ((process.stdout, streams.out), (process.stderr, streams.err)):
                    self._running[-1].pumps.append(_pump(lines, to, one.name))
        except BaseException:
            self.close()
            raise

    def poll(self) -> bool:
        """Tell whether all have left, or have had time to; a way that is lost ends all others."""
        if all(each.process.poll() is not None for each in self._running):
            return True
        failed = [each for each in self._running if each.process.poll()]
        if failed and self._deadline_s == float("inf"):
            self._deadline_s = time.monotonic() + self._leave_s
            if any(each.process.returncode in each.one.fatal for each in failed):
                for each in self._running:
                    each.tell(signal.SIGTERM)
        return time.monotonic() > self._deadline_s

    def tell(self, number: int) -> None:
        """Pass a signal on."""
        for each in self._running:
            each.tell(number)
        if number in STOPPING:
            self._deadline_s = time.monotonic() + self._leave_s

    def close(self) -> list[int]:
        """Kill what is left; return the exit code of each, 128 and the number of the signal that ended it."""
        _end(self._running)
        codes = [each.process.returncode for each in self._running]
        return [SIGNALLED - code if code < 0 else code for code in codes]


def follow(ones: Sequence[Followed], streams: Streams, leave_s: float = LEAVE_S) -> list[int]:
    """Start processes, pass on what they print, and wait until all have left.

    Args:
        ones: What to start.
        streams: Take their lines.
        leave_s: How long they may take to leave.

    Returns:
        The exit code of each; 128 and the number of the signal that ended it.
    """
    with collecting_signals() as caught:
        following, passed_on = Following(ones, streams, leave_s), 0
        try:
            while not following.poll():
                for number in caught[passed_on:]:
                    following.tell(number)
                    passed_on += 1
                time.sleep(POLL_S)
        finally:
            codes = following.close()
    return codes


def _start(one: Followed) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603 - an engine's words
        one.words,
        stdin=subprocess.PIPE if one.is_told_by_input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process alone
    )


def _pump(lines: IO[str] | None, to: TextIO, name: str) -> threading.Thread:
    thread = threading.Thread(target=_pass_on, args=(lines, to, f"[{name}] " if name else ""), daemon=True)
    thread.start()
    return thread


def _pass_on(lines: IO[str], to: TextIO, before: str) -> None:
    with lines:
        for line in lines:
            with suppress(OSError, ValueError):  # who read it has left: the run goes on
                to.write(f"{before}{printable(line.rstrip())}\n")
                to.flush()


def _end(running: Sequence[_Running]) -> None:
    """Kill what is left; the end of its input ends what it had started elsewhere."""
    for each in running:
        if each.process.stdin is not None:
            with suppress(OSError):
                each.process.stdin.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(each.process.pid, signal.SIGKILL)
    for each in running:
        each.process.wait()
        for pump in each.pumps:
            pump.join(timeout=1.0)
