"""When a rank's learning rates are set, and by what they are judged where that is a number.

A scheduler is stepped after every step. ``ReduceLROnPlateau`` is stepped with a number that every rank knows: where the
run validates, after every validation with its metric; else after every step with the loss of the step, which one more
sum over all ranks brings to those of earlier stages.

Left out: making a scheduler (``training_file.py``), its state (``checkpoint/optimizer_state.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from heterps_compile.errors import RunError
from heterps_compile.runtime.validation.best import BestMetric

from .training_file import Scheduler, Training, in_function

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Rates(Protocol):
    """Sets learning rates."""

    @property
    def wants_loss(self) -> bool:
        """Whether it is given the loss of every step."""
        ...

    def after_step(self, loss: float | None) -> None:
        """Set the rates of the next step."""
        ...

    def after_validation(self, metrics: Mapping[str, float]) -> None:
        """Set the rates of the next step where a validation decides on them."""
        ...


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Sets the learning rates of a rank.

    Attributes:
        training: What the training file says.
        scheduler: That it has made for this rank.
        validates: Whether the run validates.
        best: Says by which metric of a validation; None for its loss.
    """

    training: Training
    scheduler: Scheduler
    validates: bool
    best: BestMetric | None = None

    @property
    def wants_loss(self) -> bool:
        """Whether it is given the loss of every step."""
        return not self.validates and is_plateau(self.scheduler)

    def after_step(self, loss: float | None) -> None:
        """Set the rates of the next step.

        Args:
            loss: Of the step; None where nobody has asked for it.
        """
        if not is_plateau(self.scheduler):
            self._step()
        elif not self.validates:
            self._step(loss)

    def after_validation(self, metrics: Mapping[str, float]) -> None:
        """Set the rates of the next step where a validation decides on them."""
        if self.validates and is_plateau(self.scheduler):
            self._step(metrics["loss" if self.best is None else self.best.name])

    def _step(self, *judged_by: float | None) -> None:
        function = self.training.scheduler
        assert function is not None  # noqa: S101 - it has made the scheduler
        with in_function("scheduler", function):
            self.scheduler.step(*judged_by)


def is_plateau(scheduler: Scheduler) -> bool:
    """Tell whether a scheduler waits for a number to improve."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau  # noqa: PLC0415 - torch only in the processes of a run

    return isinstance(scheduler, ReduceLROnPlateau)


def make_rates(
    training: Training, scheduler: Scheduler | None, *, validates: bool, best: BestMetric | None
) -> RateSchedule | None:
    """Return what sets the rates of a rank; None where they stay.

    Raises:
        RunError: where the scheduler waits for one end of a metric, and the other is the best.
    """
    if scheduler is None:
        return None
    made = RateSchedule(training, scheduler, validates, best)
    mode = getattr(scheduler, "mode", None)
    is_highest = best is not None and best.is_highest
    if validates and is_plateau(scheduler) and mode in ("min", "max") and is_highest != (mode == "max"):
        judged = "lowest loss" if best is None else str(best)
        raise RunError(
            f"scheduler() of the training file gave ReduceLROnPlateau(mode={mode!r}), which is stepped by the "
            f"validations of this run, whose best is the {judged}; give it mode={'max' if is_highest else 'min'!r}"
            + (", or name its metric (--keep-best)" if best is None else "")
        )
    return made


def current_rates(optimizer: "Optimizer | None") -> tuple[float, ...]:
    """Return the learning rates of all groups; none where there is no optimiser, or it finds its own."""
    groups = () if optimizer is None else optimizer.param_groups
    return tuple(float(group["lr"]) for group in groups if group.get("lr") is not None)


def measure_rates(optimizer: "Optimizer") -> dict[str, tuple[float, ...]]:
    """Measure the learning rates that a step is made with."""
    return {"learning_rates": current_rates(optimizer)}
