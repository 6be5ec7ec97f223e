"""The machines of a run that may change its widths: which are alive, and a start of ranks on some of them.

Left out: when they are used (``going_on.py``), those of Ray (``ray_nodes.py``).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.errors import SIGNALLED, RunError
from heterps_compile.runtime.launch.prepare import Prepared
from heterps_compile.runtime.launch.stop_signals import RESIZED_BY

from .deal import Deal, Host
from .job import Job, Streams


@dataclass(frozen=True, slots=True)
class Left:
    """How the ranks of one start have left.

    Attributes:
        codes: Exit codes, of machines or of ranks.
        lost: Machines that are gone, or to which the way is.
        error: What ended them, where it was no rank that told it.
    """

    codes: tuple[int, ...]
    lost: tuple[str, ...] = ()
    error: RunError | None = None

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
    def poll(self) -> bool:
        """Pass on what they print, where that needs doing; tell whether all have left, or have had time to."""

    @abstractmethod
    def tell(self, number: int) -> None:
        """Pass a signal on."""

    @abstractmethod
    def close(self) -> Left:
        """Kill what is left."""


class Machines(ABC):
    """The machines of a run."""

    patience_s: float
    """For how long the run waits for machines that it lacks."""

    @abstractmethod
    def listed(self) -> tuple[Host, ...]:
        """Return those that are alive, in their order.

        Raises:
            HeterpsError: where nothing says it at the moment.
        """

    @abstractmethod
    def fill(self, prepared: Prepared, hosts: Sequence[Host]) -> Deal | None:
        """Deal the processes of a run to machines; None where they do not take them."""

    @abstractmethod
    def start(self, job: Job, deal: Deal, streams: Streams) -> Started:
        """Start the ranks of a run."""

    @abstractmethod
    def lacking(self, prepared: Prepared, hosts: Sequence[Host]) -> str:
        """Explain why machines do not take a run."""
