"""Runs on transient machines, loss by loss on a clock: drawn by chance with a seed, or with given lifetimes.

A machine grows older from when it is up, also while the others wait. At a loss the run falls back to its last
checkpoint and continues when every lost machine has another in its place. A checkpoint ends every stretch of
``interval_s`` of work but the last.

Left out: a checkpoint that fails, a machine that is lost while it starts.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.errors import InfeasibleError

from .expected import Spread, best_interval_of_run
from .lifetime import HOUR_S, Weibull
from .transient_work import TransientWork

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


@dataclass(frozen=True, slots=True)
class SimulatedRuns:
    """Many runs of one kind of work.

    Attributes:
        time_s: Mean, median and 90 % quantile.
        money: The same, in the currency of the prices.
        losses: How many machines a run lost, in the mean.
        error_s: The standard error of the mean time.
        runs: Every one.
    """

    time_s: Spread
    money: Spread
    losses: float
    error_s: float
    runs: tuple[Run, ...]

    def chance_within(self, time_s: float) -> float:
        """Return the share of runs that took no longer."""
        return sum(run.time_s <= time_s for run in self.runs) / len(self.runs)


def simulate_runs(work: TransientWork, runs: int = 1000, seed: int = 0) -> SimulatedRuns:
    """Draw runs; the same seed draws the same ones.

    Raises:
        InfeasibleError: where a run does not come to an end.
    """
    recovery = work.recovery
    interval_s = best_interval_of_run(work) if recovery.interval_s is None else recovery.interval_s
    fixed = replace(work, recovery=replace(recovery, interval_s=interval_s))
    rng = np.random.default_rng(seed)
    laws = [kind.lifetime for kind in work.machines for _ in range(kind.count)]
    drawn = tuple(replay_run(fixed, [_drawn(law, rng) for law in laws]) for _ in range(runs))
    times = np.array([run.time_s for run in drawn])
    median, most = np.quantile(times, [0.5, 0.9]).tolist()
    time_s = Spread(float(times.mean()), median, most)
    return SimulatedRuns(
        time_s=time_s,
        money=Spread(work.money(time_s.mean), work.money(median), work.money(most)),
        losses=sum(run.losses for run in drawn) / runs,
        error_s=float(times.std(ddof=1) / math.sqrt(runs)) if runs > 1 else math.inf,
        runs=drawn,
    )


def _drawn(law: Weibull | None, rng: np.random.Generator) -> Iterator[float]:
    """Yield the lifetimes in hours of a machine and of those that take its place."""
    while law is not None:
        yield from law.sample(rng, 8).tolist()


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
