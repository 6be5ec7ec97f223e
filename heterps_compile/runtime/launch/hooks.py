"""Functions of a training file that a run calls as it goes, and the view of the run that they are given.

All are called on rank 0, after what they are told of has happened. What they raise ends the run, as with everything of
the training file. They decide nothing: what they return must be None.

Left out: what the run itself does after a step (``loop.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.validation.best import Best

from .training_file import Training, in_function


@dataclass(frozen=True, slots=True)
class RunView:
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
    loss: float | None = None
    gradient_norm: float | None = None
    is_skipped: bool = False
    step_s: float = 0.0
    losses: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a training file, on the rank that calls them.

    Attributes:
        training: That has them.
    """

    training: Training

    def after_step(self, view: RunView) -> None:
        """Call ``on_step``, where there is one."""
        _call("on_step", self.training.on_step, view)

    def after_validation(self, view: RunView) -> None:
        """Call ``on_validation``, where there is one."""
        _call("on_validation", self.training.on_validation, view)

    def after_checkpoint(self, folder: Path, view: RunView) -> None:
        """Call ``on_checkpoint``, where there is one, with the checkpoint's folder."""
        _call("on_checkpoint", self.training.on_checkpoint, folder, view)


def _call(name: str, hook: Callable[..., Any] | None, *arguments: Any) -> None:
    """Call a hook.

    Raises:
        RunError: where it returns something, which nobody would heed.
    """
    if hook is None:
        return
    with in_function(name, hook):
        found = hook(*arguments)
    if found is not None:
        raise RunError(
            f"{name}() of the training file returned a {printable(type(found).__name__)}, and a run takes nothing from "
            f"it; return nothing (to end a run early there is --stop-after)"
        )
