"""Call the functions of a training file that follow a run.

All are called on rank 0, after what they are told of has happened. What they raise ends the run, as with everything of
the training file. They decide nothing: what they return must be None.

Left out: what the run itself does after a step (``loop.py``).
"""

from dataclasses import dataclass
from typing import Any

from heterps_compile.errors import RunError
from heterps_compile.escape import printable

from .training_file import Training, in_function


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of a training file, on the rank that calls them.

    Attributes:
        training: That has them.
    """

    training: Training

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``on_step``, ``on_validation`` or ``on_checkpoint``, if the file has it.

        Raises:
            RunError: where it returns something, which nobody would heed.
        """
        hook = getattr(self.training, name)
        if hook is None:
            return
        with in_function(name, hook):
            found = hook(*arguments)
        if found is not None:
            raise RunError(
                f"{name}() of the training file returned a {printable(type(found).__name__)}, and a run takes nothing "
                f"from it; return nothing (to end a run early there is --stop-after)"
            )
