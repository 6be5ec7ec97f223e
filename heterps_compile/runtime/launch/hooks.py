"""Call the functions of a training file that follow a run.

All are called on rank 0, after what they are told of has happened. What they raise ends the run, as with everything of
the training file. They decide nothing: what they return must be None.

Left out: what the run itself does after a step (``loop.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .run_view import RunView
from .training_file import Training, in_function


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
