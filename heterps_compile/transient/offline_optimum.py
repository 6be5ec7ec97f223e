"""The least money with which a job meets its deadline by who knows the future: exact, by dynamic programming.

Let ``V(t, way, pause, left)`` be the least money from step ``t`` on. Every way and pause is a row over ``left``; a
step takes each row to the next by one shift, so that all takes ``O(steps x ways x change x work)``.
"""

import numpy as np
from numpy.typing import NDArray

from .deadline_job import Job

Money = NDArray[np.float64]


def offline_optimum(job: Job) -> float:
    """Return the least money of all choices, step by step, that end in time."""
    pauses = max(job.change, 1)
    end: Money = np.full(job.work + 1, np.inf)
    end[0] = 0.0
    value = [[end] * pauses for _ in job.ways]
    waited = end
    for step in range(job.deadline - 1, -1, -1):
        fresh = waited
        goes_on: list[list[Money] | None] = []
        for index, way in enumerate(job.ways):
            if not way.is_there(step):
                goes_on.append(None)
                continue
            progressed = _with_progress(value[index][0])
            steps = [progressed, *value[index][: pauses - 1]]
            rows = [_paid(way.price, row) for row in steps]
            goes_on.append(None if way.is_broken(step) else rows)
            begun = value[index][job.change - 1] if job.change > 0 else progressed
            fresh = np.minimum(fresh, _paid(way.price, begun))
        value = [[fresh] * pauses if rows is None else [np.minimum(fresh, row) for row in rows] for rows in goes_on]
        waited = fresh
    return float(waited[job.work])


def _with_progress(row: Money) -> Money:
    """Return a row by what is left before a step of progress."""
    return np.concatenate([row[:1], row[:-1]])


def _paid(price: float, row: Money) -> Money:
    """Return a row with the price of a step, which a job that is done does not pay."""
    paid: Money = row + price
    paid[0] = 0.0
    return paid
