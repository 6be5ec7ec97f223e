"""Clocks: how long a call takes, on the device that it runs on.

``wall``
    Time as it passes. Other processes on the same cores lengthen it.
``cpu``
    What the calling thread spent on a core. Others lengthen it little; a call that hands work to other threads, or to a
    GPU, is not measured by it. For a backend that computes on threads of its own, as jax does, what the process spent.

Left out: which of several timings to trust (the median of all, ``chain.py``).
"""

import time
from collections.abc import Callable, Sequence
from statistics import median, quantiles

from heterps_compile.cost.profile import Timing
from heterps_compile.errors import InputError, UnknownNameError

CLOCKS = ("wall", "cpu")

Now = Callable[[], float]
"""Gives the time in seconds, once everything that was started has ended."""


def choose_clock(device: str, threads: int) -> str:
    """Return the clock that is the steadiest: the thread's own, where one thread does all of the work."""
    return "cpu" if device == "cpu" and threads == 1 else "wall"


def make_clock(name: str, device: str, threads: int, *, own_threads: bool = False) -> Now:
    """Return a clock.

    Args:
        name: One of :data:`CLOCKS`.
        device: As PyTorch calls it: ``"cpu"``, ``"cuda:0"``.
        threads: That a call runs on.
        own_threads: Whether calls compute on threads of their own, as those of jax do.

    Raises:
        UnknownNameError: for a clock that nobody knows.
        InputError: where the clock cannot measure the device, or so many threads.
    """
    if name not in CLOCKS:
        raise UnknownNameError("clock", name, CLOCKS)
    if name == "cpu":
        if device != "cpu" or threads != 1:
            raise InputError(
                f"the clock 'cpu' measures the calling thread alone, not {device!r} with {threads} threads; take "
                f"--clock wall"
            )
        return time.process_time if own_threads else time.thread_time
    if device == "cpu":
        return time.perf_counter
    import torch  # noqa: PLC0415 - torch only where it times a device of its own

    def now() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def timing(times_s: Sequence[float]) -> Timing:
    """Compute the median of times and half the range of their middle half."""
    if len(times_s) < 2:
        return Timing(times_s[0], 0.0)
    low, _, high = quantiles(times_s, n=4, method="inclusive")
    return Timing(median(times_s), (high - low) / 2)


def lower_quartile(times_s: Sequence[float]) -> float:
    """Take the lower quartile: rounds that wait for a core do not count."""
    return quantiles(times_s, n=4, method="inclusive")[0]
