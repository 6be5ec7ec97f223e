"""The machines of a run, and the ranks that were started on them: this machine's, or those of a cluster.

Not covered: when they are used (``driver.py``), this machine (``local_machine.py``), Ray (``ray_nodes.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from heterps_compile.errors import SIGNALLED, RunError
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.stop_signals import RESIZED_BY

from .deal import Deal, Dealt, Host


@dataclass(frozen=True, slots=True)
class Left:
    """How the ranks of one start have left.

    Attributes:
        codes: Exit codes, of machines or of ranks.
        lost: Machines that are gone, or to which the way is.
        error: What ended them, where no rank has printed it.
        is_over: Whether the run is over, so that no restart follows.
    """

    codes: tuple[int, ...]
    lost: tuple[str, ...] = ()
    error: RunError | None = None
    is_over: bool = False

    @property
    def code(self) -> int:
        """Return the first exit code other than 0."""
        return next((code for code in self.codes if code), 0)

    @property
    def is_for_other_widths(self) -> bool:
        """Tell whether all have left in order, with a checkpoint, to be started again with other widths."""
        stopped = set(self.codes) - {0}  # a host whose processes died before, and are done without, has none to tell it
        return self.error is None and stopped == {SIGNALLED + RESIZED_BY}


class Started(ABC):
    """Ranks that were started, from then to their end."""

    @abstractmethod
    def poll(self, now_s: float) -> bool:
        """Look at the ranks; return whether all have left, or have had time to.

        Args:
            now_s: On the monotonic clock.
        """

    @abstractmethod
    def stop(self, number: int) -> None:
        """Have all ranks stop after the same step, by a signal."""

    @abstractmethod
    def close(self) -> Left:
        """Kill the ranks that are left."""


class Machines(ABC):
    """The machines of a run.

    Attributes:
        patience_s: Longest wait for machines that the run lacks.
        stops_at_once: Whether ranks can be stopped while they begin.
    """

    patience_s: float = 0.0
    stops_at_once: bool = False

    def __init__(self, stream: TextIO) -> None:
        """Set up.

        Args:
            stream: Takes what the driver decides.
        """
        self._stream = stream

    def say(self, text: str) -> None:
        """Print a line; a run does not end with whoever read it."""
        with suppress(OSError, ValueError):
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def listed(self) -> tuple[Host, ...]:
        """Return those that are alive, in their order; none where there is no choice.

        Raises:
            HeterpsError: where nothing says it at the moment.
        """
        return ()

    def fill(self, prepared: Prepared, hosts: Sequence[Host]) -> Deal:
        """Distribute the processes of a run over machines; over none where there is no choice.

        Raises:
            RunError: with what the machines lack for it.
        """
        del prepared, hosts
        return ()

    @abstractmethod
    def start(self, run: Dealt) -> Started:
        """Start the ranks of a run."""
