"""The signals that stop a run after the step that is being run.

Left out: how ranks agree on that step (``watch.py``).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RESIZED_BY = signal.SIGUSR1
"""What the ranks are told to stop by where they are started again with other widths."""


def heeded() -> list[signal.Signals]:
    """Return those that this process heeds: under ``nohup`` the end of the terminal is none of them."""
    return [number for number in STOPPING if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def heeded_by_ranks() -> list[signal.Signals]:
    """Return those that a rank heeds, and who starts the ranks of a host."""
    return [*heeded(), RESIZED_BY]


@contextmanager
def stopping_on_signals(listen: Callable[[int | None], object]) -> Iterator[None]:
    """Have these signals stop the run after the step; a second one ends the process at once.

    Python runs handlers in the main thread alone, which may wait in torch for long. So the numbers go through a pipe,
    which the system's own handler writes to at once, to the watcher.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python allows no handlers elsewhere: whoever has the main thread has the signals
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda _number, _frame: None) for number in heeded_by_ranks()}
    before_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    listen(reader)
    try:
        yield
    finally:
        listen(None)
        signal.set_wakeup_fd(before_fd)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


@contextmanager
def collecting_signals() -> Iterator[list[int]]:
    """Yield a list that collects the signals that stop a run, for who looks at it again and again.

    It stays empty outside the main thread, where Python allows no handlers.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def heed(number: int, _frame: object) -> None:
        if number != signal.SIGHUP or not caught:  # a terminal that goes away may say so twice
            caught.append(number)

    before = {number: signal.signal(number, heed) for number in heeded()}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
