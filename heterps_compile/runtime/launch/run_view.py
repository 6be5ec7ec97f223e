"""The view of a run that functions of a training file receive."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from heterps_compile.runtime.pipeline.recorder import StepNumbers
from heterps_compile.runtime.validation.best import Best


@dataclass(frozen=True, slots=True)
class RunView(StepNumbers):
    """Where a run is, as its hooks see it; nothing in it can be changed.

    Attributes:
        step: Steps done, as in a checkpoint's name.
        samples: Trained on so far.
        epoch: How often the data have been gone through, 1.5 in the middle of
            the second time; None where they have no end.
        metrics: Of the validation after this step, ``loss`` among them; empty
            where there was none.
        is_best: Whether that validation is the best so far, by the metric of
            ``--keep-best``.
        best: The best validation so far: its ``step`` and ``value``; None where
            there is none, or no ``--keep-best``.
        learning_rates: Of the next step, by group of rank 0's optimizer; empty
            where it has none.
        validation_s: How long that validation took; 0 where there was none.
        loss: Of this step; known wherever the training file has ``on_step``,
            else None where rank 0 does not compute it.
        gradient_norm: Of the whole model in this step; None without
            ``--clip-norm``.
        loss_scale: Of this step's losses; None without ``--precision fp16``.
        is_skipped: Whether this step changed no weight, since gradients were
            not finite in float16.
        step_s: How long this step took on this rank, the optimizer included; 0
            before the first of this run.
        losses: Of this step by name, where ``loss()`` gives a dict; known
            where ``loss`` is.

    Examples:
        A hook of a training file, and a test of it:

        >>> from heterps_compile import RunView
        >>> def on_validation(report: RunView) -> None:
        ...     print(report.step, report.metrics["auc"], report.is_best)
        >>> view = RunView(step=500, samples=32_000, metrics={"auc": 0.75})
        >>> on_validation(view)
        500 0.75 False
        >>> view.loss is None, dict(view.losses)
        (True, {})
    """

    step: int
    samples: int
    epoch: float | None = None
    metrics: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    is_best: bool = False
    best: Best | None = None
    learning_rates: tuple[float, ...] = ()
    validation_s: float = 0.0
    step_s: float = 0.0
