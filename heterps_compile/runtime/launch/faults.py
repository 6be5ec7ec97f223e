"""What ended a run, told in one sentence that every rank and the launcher print alike.

Left out: how a fault is noticed (``watch.py``).
"""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic import ConfigDict

from heterps_compile.errors import HeterpsError, RunError
from heterps_compile.strict_json import received

from .store_values import to_send

STARTING = "starting"
WAITING = "waiting for other ranks"

_CAUSE_LENGTH = 2000
_FLOATS = "the loss takes floats, and a column has whole numbers; of a CSV file say --data FILE.csv?types=label:float"
_HINTS = {
    "index out of range in self": "an id lies outside of the table that it is looked up in",
    "can't be cast to the desired output type Long": _FLOATS,
    "Found dtype Long but expected Float": _FLOATS,
}
_WHERE = re.compile(r"stages? [\d ,and]+, replica \d+ \(rank \d+\), ")  # how the pipeline says where an action failed


class PeerError(RunError):
    """What a rank sees of somebody else's end; the other one says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank is: the stages it hosts and which replica of them, or a parameter server.

    Attributes:
        rank: In the world.
        stages: That it hosts; empty for a parameter server.
        replica: Of these stages, or the number of the server; -1 before the plan has been read.
    """

    rank: int
    stages: tuple[int, ...] = ()
    replica: int = -1

    def __str__(self) -> str:
        if not self.stages:
            return "a process" if self.replica < 0 else f"parameter server {self.replica}"
        stages = " and ".join(map(str, self.stages))
        return f"stage{'s' if len(self.stages) > 1 else ''} {stages}, replica {self.replica}"


@dataclass(frozen=True, slots=True)
class Progress:
    """What a rank was last known to do.

    Attributes:
        doing: ``"forward"``, ``"backward"``, or another activity in words.
        step: None before the first.
        stage: The one it works on; None before the first action.
        micro_batch: The last one it began.
        for_s: Seconds since it began.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    doing: str = STARTING
    step: int | None = None
    stage: int | None = None
    micro_batch: int | None = None
    for_s: float = 0.0

    def __str__(self) -> str:
        if self.step is None:
            return f"before the first step ({self.doing})"
        if self.micro_batch is None:
            return f"in step {self.step} ({self.doing})"
        return f"in step {self.step}, last micro-batch {self.micro_batch} ({self.doing})"


@dataclass(frozen=True, slots=True)
class Fault:
    """Who ended the run, where it stood, and why.

    Attributes:
        place: The guilty rank.
        progress: What it did.
        cause: Such as ``"was killed by SIGKILL"``; a sentence that begins with its verb.
    """

    place: Place
    progress: Progress
    cause: str

    def __str__(self) -> str:
        stage = self.progress.stage
        is_early = self.place.stages and self.progress.step is not None and self.progress.micro_batch is None
        early = ", before its first micro-batch" if is_early else ""
        hosts = f"stage {stage}, replica {self.place.replica}" if stage in self.place.stages else str(self.place)
        return f"{hosts} (rank {self.place.rank}) {self.cause}; it was {self.progress}{early}"

    def to_json(self) -> str:
        """Return text that :func:`fault_from_json` reads back."""
        return to_send(replace(self, cause=self.cause[:_CAUSE_LENGTH]))


def fault_from_json(text: str | bytes) -> Fault:
    """Read what :meth:`Fault.to_json` wrote; it comes from another process, so that all of it is checked.

    Raises:
        RunError: where it is something else.
    """
    return received(Fault, text, "a message about a fault")


def exit_cause(code: int, *, out_of_memory: bool = False) -> str:
    """Tell how a process ended, from what ``waitpid`` says of it.

    Args:
        code: Its exit code; minus the signal's number where a signal killed it.
        out_of_memory: Whether the system killed a process for its memory meanwhile.
    """
    if code >= 0:
        return f"left with exit code {code} before the run was over"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if -code != signal.SIGKILL:
        return f"was killed by {name}"
    why = "the system ran out of memory" if out_of_memory else "by somebody, or by the system for its memory"
    return f"was killed by {name} ({why})"


def exception_cause(error: BaseException) -> str:
    """Tell an exception of a rank in one line; where it stood is told elsewhere."""
    error = innermost(error)
    text = " ".join(str(error).split())
    text += next((f" ({hint})" for said, hint in _HINTS.items() if said in text), "")
    where = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
    if is_out_of_memory(error):
        return f"ran out of memory ({text or type(error).__name__}){where}"
    if isinstance(error, HeterpsError):
        return f"stopped{where}: {text}"
    return f"raised {type(error).__name__}: {text}{where}" if text else f"raised {type(error).__name__}{where}"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception is Python's or torch's for memory that could not be had."""
    is_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return is_memory or "can't allocate memory" in str(error)


def is_of_data(error: BaseException) -> bool:
    """Tell whether an exception is known to come of the data, so that its message says it all."""
    return any(said in str(error) for said in _HINTS)


def innermost(error: BaseException) -> BaseException:
    """Return what was raised in an action, without the pipeline's word about where."""
    while isinstance(error, RunError) and error.__cause__ is not None and _WHERE.match(str(error)):
        error = error.__cause__
    return error


def is_from_a_peer(error: BaseException) -> bool:
    """Tell whether an exception is what a rank sees of somebody else's end: a connection that broke."""
    chain: BaseException | None = error
    seen: list[str] = []
    while chain is not None:
        if isinstance(chain, PeerError):
            return True
        seen.append(f"{type(chain).__name__}: {chain}")
        chain = chain.__cause__ or chain.__context__
    text = " ".join(seen).lower()
    signs: Sequence[str] = (
        "gloo",
        "connection closed by peer",
        "connection reset",
        "broken pipe",
        "distnetwork",
    )
    return any(sign in text for sign in signs)
