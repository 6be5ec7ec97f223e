"""What an engine of a search is: it starts trials on workers, says which have left, and ends them.

Left out: the engines themselves (``local_engine.py``, ``ray_engine.py``), and what is made of a trial's end
(``search_run.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from .trial_job import TrialJob
from .worker_classes import WorkerClass


@dataclass(frozen=True, slots=True, eq=False)
class Worker:
    """One worker.

    Attributes:
        name: As ``ComputeClass.worker_names`` has it.
        of: Its class.
    """

    name: str
    of: WorkerClass


@dataclass(frozen=True, slots=True)
class Left:
    """A trial whose process has left.

    Attributes:
        worker: Whose it was.
        cause: Why there may be no result: how the process ended; "" for an orderly end.
    """

    worker: Worker
    cause: str = ""


class TrialEngine(ABC):
    """Starts trials, until it is closed."""

    notes: Sequence[str] = ()
    """What the user should know about how trials run, told once."""

    @abstractmethod
    def start(self, worker: Worker, job: TrialJob) -> None:
        """Start a trial on a worker that runs none; what keeps it from starting is told by ``wait``."""

    @abstractmethod
    def wait(self, within_s: float) -> Sequence[Left]:
        """Return the trials that have left, within so many seconds; none where all still run."""

    @abstractmethod
    def end(self, worker: Worker) -> None:
        """Kill the trial of a worker, if one still runs; it is not told of by ``wait``."""

    @abstractmethod
    def close(self) -> None:
        """Kill all trials, and give back what they took."""


def workers_of(classes: Sequence[WorkerClass]) -> tuple[Worker, ...]:
    """Return the workers of some classes, class by class."""
    return tuple(Worker(name, each) for each in classes for name in each.compute.worker_names)
