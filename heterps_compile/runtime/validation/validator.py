"""The validations of a run, as one rank sees them: run when they are due, judged alike by all ranks.

::

    rank that has the metrics      rank 0                         others
    pass, computes the metrics     pass                           pass
    tells them          ------->   hears them                     hear them
    best? stop?                    best? stop? on_validation()    best? stop?

All ranks hear the same numbers and draw the same conclusions from them, so nobody has to tell these.

They are due after these steps::

    --validate-every 4, 10 steps      . . . V . . . V . V
    without, epochs of 2.5 steps      . . V . V . . V . V      the step in which an epoch ends, and the last

Left out: the forwards (``forward_pass.py``), what is kept of it in checkpoints (``checkpoint/collective.py``).
"""

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from heterps_compile.errors import UnknownNameError
from heterps_compile.strict_json import received

from .best import BestMetric, Standing
from .forward_pass import ValidationPass
from .result import Validation

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store


@dataclass(frozen=True, slots=True)
class ValidationTimes:
    """When a run validates.

    Attributes:
        last: Steps of the whole run.
        every: Steps between two validations; None for the end of every epoch.
        batch: Samples in a step.
        samples: In an epoch; None where the data have no end, or nobody knows.
    """

    last: int
    every: int | None
    batch: int
    samples: int | None

    def are_due(self, step: int) -> bool:
        """Tell whether there is a validation after so many steps."""
        if step == self.last:
            return True
        if self.every is not None:
            return step % self.every == 0
        if self.samples is None:
            return False
        return step * self.batch // self.samples > (step - 1) * self.batch // self.samples


@dataclass(slots=True)
class Validator:
    """The validations of a run.

    Attributes:
        forwards: Runs one on this rank.
        times: When they are due.
        store: For what ranks tell each other; the main thread's.
        samples: That a validation goes over.
        best: The metric that says which is the best; None for nothing.
        stop_after: Validations without a better one after which the run ends; None for never.
        standing: Where the run stands.
        history: The validations so far, of this run alone.
    """

    forwards: ValidationPass
    times: ValidationTimes
    store: "Store"
    samples: int
    best: BestMetric | None = None
    stop_after: int | None = None
    standing: Standing = field(default_factory=Standing)
    history: list[Validation] = field(default_factory=list)

    def try_out(self, done: int) -> None:
        """Run the first micro-batch through, so that what is wrong is told before the first step.

        Args:
            done: Steps of the training that are done already.

        Raises:
            HeterpsError: what a validation would raise; naming the metric of ``--keep-best`` where there is no such.
        """
        self.forwards.run(done, is_try=True)
        names = self.forwards.metric_names
        if self.best is not None and names and self.best.name not in names:
            raise UnknownNameError("metric of --keep-best", self.best.name, names)

    def run(self, done: int) -> Validation:
        """Validate after so many steps; every rank of the pipeline does so.

        Raises:
            RunError: where something is wrong with a metric.
        """
        began_s = perf_counter()
        metrics = self.forwards.run(done)
        key = f"validation/{done}"
        if metrics is not None:
            before = self.standing.best
            is_best = self.standing.after(self.best, done, metrics).best != before
            made = Validation(done, self.samples, metrics, perf_counter() - began_s, is_best)
            self.store.set(key, made.to_json())
        heard = received(Validation, self.store.get(key), "a validation that another rank reports")
        self.standing = self.standing.after(self.best, done, heard.metrics)
        self.history.append(heard)
        return heard

    def at(self, done: int) -> Validation | None:
        """Return the validation after so many steps, where there was one."""
        return next((one for one in reversed(self.history) if one.step == done), None)

    @property
    def is_over(self) -> bool:
        """Tell whether there were too many validations without a better one."""
        return self.stop_after is not None and self.standing.stale >= self.stop_after
