"""When jobs of several workers run on fewer cores than workers: processor sharing.

A worker does its jobs one after the other, each as soon as what it needs is there. While w workers are busy on c cores,
each runs at the speed ``min(1, c / w)``. Two workers with three seconds of work each, the second waiting for one job of
the first, on two cores and on one::

    two cores | worker 0 | a1 a2 a3             one core | worker 0 | a1 a2- a3-
              | worker 1 | .  b1 b2 b3                   | worker 1 | .  b1- b2- b3

A delay between jobs, the flight of a message, occupies no core. What cores take from one another, memory bandwidth and
the like, is one number: how much longer a job takes where all cores are busy than where one is.

Left out: priorities and time slices; threads inside a worker; jobs that suffer from busy neighbours more than others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.errors import HeterpsError

_DONE_S = 1e-12


@dataclass(frozen=True, slots=True)
class Job:
    """A piece of work of one worker.

    Attributes:
        work_s: On a core of its own.
        needs: Jobs that must have ended before, each as worker, place in its queue, seconds that its result travels.
    """

    work_s: float
    needs: tuple[tuple[int, int, float], ...] = ()


def run_jobs(queues: Sequence[Sequence[Job]], cores: int, together: float = 1.0) -> list[list[tuple[float, float]]]:
    """Return start and end of every job, in seconds; O(jobs * workers).

    Args:
        queues: Of every worker, its jobs in order.
        cores: That they share.
        together: How much longer a job takes while all cores are busy than while its own alone is.

    Raises:
        HeterpsError: where jobs wait for one another in a circle.
    """
    spans: list[list[tuple[float, float]]] = [[] for _ in queues]
    started: list[tuple[float, float] | None] = [None] * len(queues)  # start, work left
    now_s = 0.0
    while True:
        wakes_s = []
        for worker, queue in enumerate(queues):
            if started[worker] is None and len(spans[worker]) < len(queue):
                job = queue[len(spans[worker])]
                ready_s = _ready_s(job, spans)
                if ready_s is not None and ready_s <= now_s:
                    started[worker] = (now_s, job.work_s)
                elif ready_s is not None:
                    wakes_s.append(ready_s)
        busy = [worker for worker, begun in enumerate(started) if begun is not None]
        if not busy and not wakes_s:
            break
        speed = _speed(len(busy), cores, together)
        next_end_s = min((now_s + begun[1] / speed for begun in started if begun is not None), default=float("inf"))
        then_s = min([next_end_s, *wakes_s])
        for worker in busy:
            begin_s, left_s = started[worker] or (0.0, 0.0)
            left_s -= (then_s - now_s) * speed
            if left_s <= _DONE_S:
                spans[worker].append((begin_s, then_s))
                started[worker] = None
            else:
                started[worker] = (begin_s, left_s)
        now_s = then_s
    stuck = [worker for worker, queue in enumerate(queues) if len(spans[worker]) < len(queue)]
    if stuck:
        raise HeterpsError(
            f"worker {stuck[0]} waits at job {len(spans[stuck[0]])} of {len(queues[stuck[0]])} for what never ends"
        )
    return spans


def _speed(busy: int, cores: int, together: float) -> float:
    """Return the speed of every worker while so many are busy."""
    if busy <= 1 or cores == 1:
        return 1.0 / max(1, busy)
    neighbours = (min(busy, cores) - 1) / (cores - 1)
    return min(1.0, cores / busy) / (1 + (together - 1) * neighbours)


def _ready_s(job: Job, spans: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Return when all is there that a job needs, or None while some of it has not ended."""
    ready_s = 0.0
    for worker, place, travels_s in job.needs:
        if place >= len(spans[worker]):
            return None
        ready_s = max(ready_s, spans[worker][place][1] + travels_s)
    return ready_s
