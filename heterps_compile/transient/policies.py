"""Policies for jobs under a deadline: which machines to take in each step.

The guard of ``deadline_job.py`` keeps the deadline for all of them; they differ in money.

Left out: prices that change; several jobs that share what is there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .deadline_job import Job, JobState, Policy

Money = NDArray[np.floating[Any]]


@dataclass(slots=True)
class OnDemand:
    """Takes machines that stay from the first step to the last."""

    def choose(self, job: Job, state: JobState) -> int | None:
        """Return the machines that stay."""
        return job.stays


@dataclass(slots=True)
class Greedy:
    """All transient: waits while they are away, until the slack is gone and the guard takes machines that stay."""

    def choose(self, job: Job, state: JobState) -> int | None:
        """Return the cheapest way where it is there, or the machines that stay once they were taken."""
        if state.way == job.stays:
            return job.stays
        return 0 if job.ways[0].is_there(state.step) else None


@dataclass(slots=True)
class Floor:
    """A part that stays: the second way, a mix, where it is there; waits else, until the slack is gone."""

    def choose(self, job: Job, state: JobState) -> int | None:
        """Return the mix, or the machines that stay once they were taken."""
        if state.way == job.stays:
            return job.stays
        return 1 if job.ways[1].is_there(state.step) else None


@dataclass(slots=True)
class UniformProgress:
    """Keeps up with a line from nothing at the start to all at the deadline (Wu et al., NSDI 2024).

    Transient machines are taken where they are there; machines that stay only behind the line, and then until the job
    is two changes ahead of it.
    """

    def choose(self, job: Job, state: JobState) -> int | None:
        """Return the way that keeps up with the line."""
        ahead = job.work - state.left - job.work * state.step / job.deadline
        if state.way == job.stays and ahead < 2 * job.change:
            return job.stays
        if job.ways[0].is_there(state.step):
            return 0
        return job.stays if ahead < 0 else None


@dataclass(slots=True)
class ExpectedCost:
    """Takes the way of the least expected money to the end, with what was seen of arrivals and losses so far.

    The index of the cheapest way that is there is a Markov chain. Its transitions and the breaks of each way are
    counted from the first step on, beside a prior; the expected money to the end for every state is found by dynamic
    programming, and anew every ``renewed`` steps. That the deadline is kept is a constraint of it.

    Attributes:
        prior_steps: For how many steps a state lasts in the prior.
        prior_weight: For how many transitions the prior counts.
        renewed: Steps after which the expected money is found anew.
    """

    prior_steps: float = 60.0
    prior_weight: float = 2.0
    renewed: int = 30
    _levels: list[int] = field(default_factory=list[int])
    _breaks: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    _plan: "_Plan | None" = None
    _planned_at: int = -1

    def choose(self, job: Job, state: JobState) -> int | None:
        """Return the way of the least expected money."""
        level = next(index for index, way in enumerate(job.ways) if way.is_there(state.step))
        self._levels.append(level)
        if not self._breaks:
            self._breaks = [(1.0, 2 * self.prior_steps)] * job.stays
        self._breaks = [
            (broken + (way.is_broken(state.step) and way.is_there(state.step)), steps + way.is_there(state.step))
            for way, (broken, steps) in zip(job.ways, self._breaks, strict=False)
        ]
        if self._plan is None or state.step - self._planned_at >= self.renewed:
            self._plan = _Plan(job, self._chain(len(job.ways)), [b / s for b, s in self._breaks], state)
            self._planned_at = state.step
        return self._plan.choose(state, level)

    def _chain(self, levels: int) -> Money:
        """Return the transition probabilities of a step, from level to level."""
        counts = np.full((levels, levels), self.prior_weight / max(levels - 1, 1))
        np.fill_diagonal(counts, self.prior_weight * self.prior_steps)
        for before, now in zip(self._levels, self._levels[1:], strict=False):
            counts[before, now] += 1
        chain: Money = counts / counts.sum(axis=1, keepdims=True)
        return chain


class _Plan:
    """The least expected money from every step to the end, by level, way of the step before and what is left.

    A change is taken as one move over all its steps. A way that breaks, or is no longer there, counts as having waited.
    """

    def __init__(self, job: Job, chain: Money, breaks: list[float], state: JobState) -> None:
        self._job, self._first = job, state.step
        self._moves = [np.linalg.matrix_power(chain, steps) for steps in range(max(job.change, 1) + 1)]
        self._kept = [1 - share for share in breaks] + [1.0]
        levels, ways, steps = len(chain), len(job.ways), job.deadline - state.step
        self._value = np.full((steps + 1, levels, ways + 1, state.left + 1), np.inf)
        self._value[:, :, :, 0] = 0.0
        for step in range(steps - 1, -1, -1):
            self._value[step] = self._of_step(step)

    def _of_step(self, step: int) -> Money:
        """Return the money from a step on: [level, way of the step before, left]; the last way has waited."""
        job, value = self._job, self._value
        waited = len(job.ways)
        next_one = np.tensordot(self._moves[1], value[step + 1], axes=1)
        now = np.full(value.shape[1:], np.inf)
        fresh = next_one[:, waited].copy()
        pause = job.change
        later = min(step + max(pause, 1), len(value) - 1)
        begun = np.tensordot(self._moves[max(pause, 1)], value[later], axes=1)
        for level in range(len(fresh)):
            for way in range(level, waited):
                price = job.ways[way].price
                goes_on = self._kept[way] * next_one[level, way, :-1]
                if self._kept[way] < 1:
                    goes_on = goes_on + (1 - self._kept[way]) * next_one[level, waited, :-1]
                now[level, way, 1:] = price + goes_on
                if pause > 0 and step + pause < len(value):
                    np.minimum(fresh[level], pause * price + begun[level, way], out=fresh[level])
                elif pause == 0:
                    np.minimum(fresh[level, 1:], now[level, way, 1:], out=fresh[level, 1:])
        now = np.minimum(now, fresh[:, None, :])
        now[:, :, 0] = 0.0
        return now

    def choose(self, state: JobState, level: int) -> int | None:
        """Return the way of the least expected money; where none keeps the deadline, the cheapest that is there."""
        job, value, step = self._job, self._value, state.step - self._first
        waited = len(job.ways)
        found: list[tuple[float, int, int | None]] = [
            (float(self._moves[1][level] @ value[step + 1, :, waited, state.left]), 1, None)
        ]
        for way in range(level, waited):
            goes_on = way == state.way and not job.ways[way].is_broken(state.step)
            pause = state.pause if goes_on else job.change
            if pause > 0:
                money = np.inf
                if step + pause < len(value):
                    money = float(self._moves[pause][level] @ value[step + pause, :, way, state.left])
            else:
                ahead = self._moves[1][level] @ value[step + 1, :, :, state.left - 1]
                money = self._kept[way] * ahead[way]
                money += (1 - self._kept[way]) * ahead[waited] if self._kept[way] < 1 else 0.0
            found.append((float(money) + max(pause, 1) * job.ways[way].price, 0 if goes_on else 2, way))
        best = min(found, key=lambda one: one[:2])
        if math.isinf(best[0]):
            return job.stays if state.way == job.stays else level
        return best[2]


POLICIES: dict[str, Callable[[], Policy]] = {
    "on demand": OnDemand,
    "all spot": Greedy,
    "spot and floor": Floor,
    "uniform progress": UniformProgress,
    "expected cost": ExpectedCost,
}
"""The policies by name, each made anew for a job."""
