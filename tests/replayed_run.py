"""A run on transient machines with given lifetimes, loss by loss on a clock.

A machine grows older from when it is up, also while the others wait. At a loss the run falls back to its last
checkpoint and continues when every lost machine has another in its place. A checkpoint ends every stretch of
``interval_s`` of work but the last.

Left out: a checkpoint that fails, a machine that is lost while it starts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.errors import InfeasibleError
from heterps_compile.transient.lifetime import HOUR_S
from heterps_compile.transient.transient_work import TransientWork

_MOST_LOSSES = 100_000


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it went.

    Attributes:
        time_s: From when the machines were asked for to the last step.
        losses: How many machines were lost.
        redone_s: Work and checkpoints that were undone.
    """

    time_s: float
    losses: int
    redone_s: float


def replay_run(work: TransientWork, lives_hours: Sequence[Iterator[float]]) -> Run:
    """Return the run of machines that live so long.

    Args:
        work: What is computed; an interval that is None means no checkpoints.
        lives_hours: For every machine, in the order of ``work.machines``: its lifetime in hours and of those that take
            its place; one that ends before the run does means that the last machine stays.

    Raises:
        InfeasibleError: where the run does not come to an end.
    """
    lives = [iter(life) for life in lives_hours]
    lost_at = np.array([work.first_start_s + HOUR_S * next(life, math.inf) for life in lives])
    recovery = work.recovery
    left_s, now_s, losses, redone_s = work.work_s, work.first_start_s, 0, 0.0
    while True:
        needed_s = work.computing_s(recovery.interval_s, left_s)
        first = int(lost_at.argmin())
        if now_s + needed_s <= lost_at[first]:
            return Run(now_s + needed_s, losses, redone_s)
        worked_s = float(lost_at[first]) - now_s
        if recovery.interval_s is not None:
            stretches = math.floor(worked_s / (recovery.interval_s + recovery.checkpoint_s))
            left_s -= stretches * recovery.interval_s
            worked_s -= stretches * (recovery.interval_s + recovery.checkpoint_s)
        redone_s += worked_s
        up_s = float(lost_at[first])
        while lost_at[first] <= up_s:
            losses += 1
            back_s = float(lost_at[first]) + recovery.start_up_s
            up_s = max(up_s, back_s)
            lost_at[first] = back_s + HOUR_S * next(lives[first], math.inf)
            first = int(lost_at.argmin())
        now_s = up_s
        if losses > _MOST_LOSSES:
            raise InfeasibleError(
                f"a run on {work.described()} lost {losses:,} machines and did not end; "
                "checkpoint more often, or take machines that stay"
            )
