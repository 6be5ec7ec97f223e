"""The least expected money of a job under a deadline, whose ways come, go and break by a known law: exact.

Let ``H(t, way, state, pause, left)`` be the least expected money from step ``t`` on for a job that held a way in the
step before which is not broken, and ``F(t, state, left)`` for one that holds none. With ``E`` over the next state,

::

    go on      price + E[H(t + 1, way, ., pause - 1, left)], or with left - 1 where there is no pause
    take       the same, with a pause of a whole change
    wait       E[F(t + 1, ., left)]
    F = min(take any way that is there, wait)        H = min(go on, F)

by dynamic programming from the deadline on: no policy that does not know the future has less. A change may be broken
off by the next loss, and begins anew then.

Left out: where the law is from (``bursts.py``).
"""

import numpy as np

from .bursts import CALMS, Chances, Law
from .deadline_job import Job, JobState

_LATE = 1e9
"""In place of infinity, which times a probability of 0 is no number."""


class BurstPlan:
    """What is best in every step of a while, by what is there, the way of the step before and what is left.

    Args:
        law: Of a step.
        job: The ways' prices, the change and the deadline are taken; what is there is not.
        state: From where on.
        steps: For how many steps it is to be asked.
    """

    def __init__(self, law: Law, job: Job, state: JobState, steps: int) -> None:
        self._law, self._first = law, state.step
        self._ahead: list[tuple[Chances, Chances]] = []
        ways, states = len(job.ways), len(job.ways) * CALMS
        self._prices = np.array([way.price for way in job.ways])
        self._pauses, self._change = max(job.change, 1), job.change
        level = np.arange(states) // CALMS
        self._away = np.arange(ways)[:, None] < level  # [way, state]
        held = np.full((ways, states, self._pauses, state.left + 1), _LATE)
        free = np.full((states, state.left + 1), _LATE)
        held[..., 0] = free[..., 0] = 0.0
        for step in range(job.deadline - state.step - 1, -1, -1):
            if step < steps:
                self._ahead.append((held, free))
            held, free = self._of_step(held, free)
        self._ahead.reverse()
        self._free = free

    def expected(self, at: int, left: int) -> float:
        """Return the least expected money from the first step on, for a job that held no way, seen ``at``."""
        return float(self._free[at, left])

    def _of_step(self, held: Chances, free: Chances) -> tuple[Chances, Chances]:
        """Return the money from a step on, by that from the next one on."""
        ways, states, pauses, left = held.shape
        fresh = free[::CALMS]  # of every level, just broken
        ahead = (self._law.kept[:ways] @ held.reshape(ways, states, -1)).reshape(held.shape)
        ahead += (self._law.broken @ fresh)[:, :, None]
        progressed = np.zeros((ways, states, left))
        progressed[..., 1:] = ahead[:, :, 0, :-1]
        price = self._prices[:, None, None]
        taken = price + (ahead[:, :, self._change - 1] if self._change else progressed)
        taken[self._away] = _LATE
        now_free = np.minimum(self._law.kept[ways] @ free, taken.min(axis=0))
        np.minimum(now_free, _LATE, out=now_free)
        now_free[:, 0] = 0.0
        goes_on = np.concatenate([progressed[:, :, None], ahead[:, :, : pauses - 1]], axis=2) + price[..., None]
        goes_on[self._away] = _LATE
        now_held = np.minimum(goes_on, now_free[None, :, None])
        now_held[..., 0] = 0.0
        return now_held, now_free

    def choose(self, job: Job, state: JobState, at: int) -> int | None:
        """Return the way of the least expected money.

        Args:
            job: With what is there in this step.
            state: Where the job is.
            at: What is seen, as ``Watch.state`` has it.
        """
        held, free = self._ahead[state.step - self._first]
        law, waited, left = self._law, len(job.ways), state.left
        found: list[tuple[float, int, int | None]] = [(float(law.kept[waited, at] @ free[:, left]), 1, None)]
        for way in range(at // CALMS, waited):
            goes_on = way == state.way and not job.ways[way].is_broken(state.step)
            pause = state.pause if goes_on else self._change
            then, rest = (pause - 1, left) if pause > 0 else (0, left - 1)
            ahead = law.kept[way, at] @ held[way, :, then, rest] + law.broken[way, at] @ free[::CALMS, rest]
            found.append((float(ahead + self._prices[way]), 0 if goes_on else 2, way))
        best = min(found, key=lambda one: one[:2])
        if best[0] > _LATE / 2:  # nothing surely keeps the deadline: the guard decides
            return job.stays if state.way == job.stays else at // CALMS
        return best[2]
