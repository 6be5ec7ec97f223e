"""The journal of a search: ``journal.jsonl`` in its folder, one event a line, appended and never changed.

What a folder holds, and who makes it::

    RUN/search.json      what the search is (search_record.py); written once
    RUN/journal.jsonl    what happened, in order; this file
    RUN/plans/           compiled models, one folder for every one that differs
    RUN/trials/N/        what trial N left: its checkpoint and what it printed

What readers (the board, the page) may rely on:

- ``read_search(folder)`` of ``search_state.py`` returns a frozen ``SearchState``, a pure function of both files. It
  holds no lock and may be called while the search runs. Everything in it was checked: types, ranges, and that events
  follow each other (a trial is asked before it starts, and ends once).
- Names and reasons in it are data: they go through ``printable`` before they are shown.
- ``at_s`` of every event is in seconds from the start of the search, and never falls. The clock stands while nobody
  runs the search: after ``Resumed`` it goes on from the last event.
- Trials are numbered from 0 in the order asked. A trial waits, runs (each attempt on one worker), and is told or
  failed. The same configuration trained further is another trial, whose ``continues`` names the one before it.

A writer that is killed may leave half a line at the end: it is dropped, and ``Journal.is_torn`` says so. Every other
line that is no event is refused with its number.

Left out: what the events amount to (``search_state.py``).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import printable
from heterps_compile.strict_json import STRICT, fault_of

from .parameters import Value

JOURNAL_FILE = "journal.jsonl"
MOST_EVENTS = 2_000_000
MOST_LINE_BYTES = 256 * 1024

Amount = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Reason = Annotated[str, Field(max_length=2_000)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """What all events have.

    Attributes:
        at_s: When, in seconds from the start of the search.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    at_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(_Event):
    """The search chose a trial for a class.

    Attributes:
        trial: Its number: that of the one before and 1.
        part: Index of the part of the space it lies in (``SearchRecord.parts``).
        class_name: The class it is for.
        config: Its configuration.
        fidelity: How far it trains in all.
        continues: The trial whose checkpoint it trains on from.
        predicted_s: What it is predicted to take, in seconds.
    """

    trial: Count
    part: Count
    class_name: str
    config: Mapping[str, Value]
    fidelity: Amount
    continues: Count | None
    predicted_s: Amount
    event: Literal["asked"] = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing(_Event):
    """A class asked for a trial and there was none for it: the budget does not last, or nothing fits it."""

    class_name: str
    reason: Reason
    event: Literal["nothing"] = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit(_Event):
    """A configuration that fits no class; it counts as a failed one for the search, and has no number."""

    config: Mapping[str, Value]
    reason: Reason
    event: Literal["misfit"] = "misfit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(_Event):
    """An attempt at a trial began, from 0 on, on a worker of its class."""

    trial: Count
    attempt: Count
    worker: str
    event: Literal["started"] = "started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(_Event):
    """A validation on the way: how far the trial had trained, and the metric's value."""

    trial: Count
    fidelity: Amount
    value: float
    event: Literal["reported"] = "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(_Event):
    """A trial ended with a result.

    Attributes:
        trial: Its number.
        value: The metric at its end.
        checkpoint: Of the trial, below the folder of the search; None where it left none.
    """

    trial: Count
    value: float
    checkpoint: str | None = None
    event: Literal["told"] = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(_Event):
    """The running attempt at a trial failed.

    Attributes:
        trial: Its number.
        reason: Why, in one sentence.
        is_left: Whether the trial is left; else it is started again.
    """

    trial: Count
    reason: Reason
    is_left: bool
    event: Literal["failed"] = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(_Event):
    """The search goes on in another process; trials that ran are started again, without counting as failed.

    Attributes:
        trials: How many are to be run in all now.
    """

    trials: Count
    event: Literal["resumed"] = "resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(_Event):
    """The search ended, in one sentence why; it may still be resumed."""

    why: Reason
    event: Literal["ended"] = "ended"


Event = Asked | Nothing | Misfit | Started | Reported | Told | Failed | Resumed | Ended


@dataclass(frozen=True, slots=True)
class Journal:
    """What a file holds.

    Attributes:
        events: In order; event ``i`` stood in line ``i + 1``.
        is_torn: Whether half a line at the end was dropped.
        size_bytes: Of the whole lines.
    """

    events: tuple[Event, ...]
    is_torn: bool
    size_bytes: int


def read_journal(folder: Path) -> Journal:
    """Read the journal of a search; one that is not there is empty.

    Raises:
        InputError: naming the line that is no event.
    """
    path = folder / JOURNAL_FILE
    shown = printable(str(path))
    events: list[Event] = []
    size_bytes = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(MOST_LINE_BYTES + 1):
                where = f"{shown}, line {len(events) + 1}"
                if len(line) > MOST_LINE_BYTES:
                    raise InputError(f"{where} has more than {MOST_LINE_BYTES:,} bytes, which are the most of an event")
                if not line.endswith(b"\n"):
                    return Journal(tuple(events), True, size_bytes)
                if len(events) == MOST_EVENTS:
                    raise InputError(f"{shown} has more than {MOST_EVENTS:,} lines, which are the most of a journal")
                events.append(_read_event(where, line))
                size_bytes += len(line)
    except FileNotFoundError:
        return Journal((), False, 0)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}") from error
    return Journal(tuple(events), False, size_bytes)


@cache
def _adapter() -> TypeAdapter[Event]:
    return TypeAdapter(Annotated[Event, Field(discriminator="event")])


def _read_event(where: str, line: bytes) -> Event:
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        raise InputError(f"{where} is no event of a search: {fault_of(error)}") from error


class JournalWriter:
    """Appends events to the journal of a folder whose lock the caller holds; what ``add`` took is on the disk."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        """Open the journal, cut to its whole lines.

        Raises:
            RunError: where it cannot be written.
        """
        self._path = folder / JOURNAL_FILE
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._descriptor, size_bytes)
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, event: Event) -> None:
        """Append an event.

        Raises:
            RunError: where it cannot be written.
        """
        line = _adapter().dump_json(event) + b"\n"
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._unwritable(error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _unwritable(self, error: OSError) -> RunError:
        return RunError(f"cannot write the journal {printable(str(self._path))}: {error.strerror or error}")
