"""What background synchronisation gains in time, on a simulated clock.

With t_c of a step, t_s of a synchronisation and one every k steps::

    foreground   c c c c c S---- c c c c c S----         k t_c + t_s for k steps
    shadow       c c c c c c c c c c c c c c c
                           S----     S----               t_c a step; a synchronisation that is due while one is under
                                                         way is passed over

so that foreground takes ``1 + t_s / (k t_c)`` times as long (ShadowSync, arXiv 2003.03477). That holds where the
background has a processor and a link of its own. Where steps take ``1 + slowdown`` times as long beside it, each
synchronisation still costs ``t_s slowdown / (1 + slowdown)``: at a slowdown of 1, where both share one processor
evenly, half of what the foreground pays.

Left out: jitter of steps.
"""

from dataclasses import dataclass

from heterps_compile.errors import InputError


@dataclass(frozen=True, slots=True)
class Work:
    """A training to be timed.

    Attributes:
        steps: How many.
        step_s: t_c.
        sync_s: t_s.
        every: k, steps from one synchronisation to the next.
        slowdown: Steps take ``1 + slowdown`` times as long while a synchronisation runs in the background.

    Raises:
        InputError: A number is none of these.
    """

    steps: int
    step_s: float
    sync_s: float
    every: int
    slowdown: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 0 or self.every < 1 or not self.step_s > 0 or self.sync_s < 0 or self.slowdown < 0:
            raise InputError(
                f"{self.steps} steps of {self.step_s:g} s and {self.sync_s:g} s a synchronisation, every {self.every}, "
                f"slowed by {self.slowdown:g}, cannot be timed; none may be negative, and a step takes time"
            )


@dataclass(frozen=True, slots=True)
class Clocked:
    """What a training took.

    Attributes:
        time_s: Until the last step is done.
        syncs: How many synchronisations were begun.
        passed_over: How many were due while one was under way.
    """

    time_s: float
    syncs: int
    passed_over: int


def run_foreground(work: Work) -> Clocked:
    """Return what training takes that waits for every synchronisation."""
    now_s, syncs = 0.0, 0
    for step in range(1, work.steps + 1):
        now_s += work.step_s
        if step % work.every == 0:
            now_s += work.sync_s
            syncs += 1
    return Clocked(now_s, syncs, 0)


def run_shadow(work: Work) -> Clocked:
    """Return what training takes that never waits."""
    now_s, free_at_s, syncs, passed_over = 0.0, 0.0, 0, 0
    for step in range(1, work.steps + 1):
        # a step that the background ends within runs at both speeds
        slowed_s = max(free_at_s - now_s, 0.0)
        done = min(slowed_s / (work.step_s * (1 + work.slowdown)), 1.0)
        now_s += done * work.step_s * (1 + work.slowdown) + (1 - done) * work.step_s
        if step % work.every == 0 and step < work.steps:
            if free_at_s > now_s * (1 + 1e-12):
                passed_over += 1
            else:
                syncs, free_at_s = syncs + 1, now_s + work.sync_s
    return Clocked(now_s, syncs, passed_over)


def expected_ratio(work: Work) -> float:
    """Return the time of foreground over that of shadow: ``1 + t_s / (k t_c)`` without a slowdown.

    With one, for synchronisations that are done before the next is due.
    """
    block_s = work.every * work.step_s
    lost_s = work.sync_s * work.slowdown / (1 + work.slowdown)
    return (block_s + work.sync_s) / (block_s + lost_s)
