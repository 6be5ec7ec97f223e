"""How a search stands: a pure function of what it is and of its journal.

Left out: deciding what to run next (``search_run.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short

from .compute_classes import ComputeClass
from .journal import (
    JOURNAL_FILE,
    Asked,
    Ended,
    Event,
    Failed,
    Misfit,
    Nothing,
    Reported,
    Resumed,
    Started,
    Told,
    read_journal,
)
from .parameters import Value
from .search_record import SearchRecord, read_record

LEAST_S = 1e-3
"""Seconds of a trial that never ran: a time is positive."""

WAITING, RUNNING, TOLD, FAILED = "waiting", "running", "told", "failed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a trial.

    Attributes:
        worker: Where, as ``ComputeClass.worker_names`` has it.
        started_at_s: When.
        ended_at_s: When; None while it runs. An attempt that the end of the driver cut off ends with the driver.
        reason: Why it failed; "" where it did not.
    """

    worker: str
    started_at_s: float
    ended_at_s: float | None = None
    reason: str = ""

    @property
    def took_s(self) -> float:
        """Return how long it took, in seconds; 0 while it runs."""
        return 0.0 if self.ended_at_s is None else max(self.ended_at_s - self.started_at_s, LEAST_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialState(Asked):
    """How a trial stands: the event that asked for it, and what followed.

    Attributes:
        status: ``WAITING`` (for an attempt), ``RUNNING``, ``TOLD`` or ``FAILED`` (left for good).
        attempts: In order.
        curve: Validations of the attempt that counts: how far it had trained, and the metric.
        value: The metric at its end; None where it has none.
        time_s: What the attempt that counts took; None before its end.
        money: What its attempts cost so far.
        checkpoint: Below the folder of the search.
    """

    status: str = WAITING
    attempts: tuple[Attempt, ...] = ()
    curve: tuple[tuple[float, float], ...] = ()
    value: float | None = None
    time_s: float | None = None
    money: float = 0.0
    checkpoint: str | None = None

    @property
    def number(self) -> int:
        """Return its number, from 0 on, in the order asked."""
        return self.trial

    @property
    def reason(self) -> str:
        """Return why its last attempt failed; "" where it did not."""
        return self.attempts[-1].reason if self.attempts else ""

    @property
    def failed_s(self) -> list[float]:
        """Measure each failed attempt, in seconds."""
        return [attempt.took_s for attempt in self.attempts if attempt.reason]

    @property
    def is_open(self) -> bool:
        """Whether it is still to end."""
        return self.status in (WAITING, RUNNING)


@dataclass(slots=True)
class SearchState:
    """How a search stands: a fold of the events of its journal.

    Attributes:
        record: The search's description.
        folder: Its folder, as text.
        is_torn: Whether half a line at the end of the journal was dropped.
        wanted: Number of trials to run in all.
        trials: In the order asked.
        misfits: Configurations that fit no class, each with the reason.
        without: Classes whose last request failed, each with the reason.
        now_s: Time of the last event, in seconds.
        resumed_at_s: Times at which the search resumed in another process, in seconds.
        ended_why: Reason of the end, in one sentence; None while it runs (or was killed).
    """

    record: SearchRecord
    folder: str
    is_torn: bool
    wanted: int
    trials: list[TrialState] = field(default_factory=list)
    misfits: list[tuple[Mapping[str, Value], str]] = field(default_factory=list)
    without: dict[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    resumed_at_s: list[float] = field(default_factory=list)
    ended_why: str | None = None

    @property
    def best(self) -> TrialState | None:
        """Return the trial with the best value among those told that trained the longest; the first of equal ones.

        After the end of a search only whole trials count: a shorter one is not comparable with those that failed.
        """
        least = 0.0 if self.ended_why is None else self.record.most
        told = [(trial, trial.value) for trial in self.trials if trial.value is not None and trial.fidelity >= least]
        found = min(told, key=lambda one: (-one[0].fidelity, self.record.loss_of(one[1])), default=None)
        return None if found is None else found[0]

    @property
    def money(self) -> float:
        """Return what was spent, in the currency of the record."""
        return sum(trial.money for trial in self.trials)

    def count(self, status: str) -> int:
        """Return how many trials have a status."""
        return sum(trial.status == status for trial in self.trials)

    def take(self, event: Event) -> None:
        """Take an event.

        Raises:
            InputError: where it cannot follow those before it.
        """
        if event.at_s < self.now_s:
            raise InputError(f"it is of {event.at_s:g} s, and the line before it of {self.now_s:g} s")
        if self.ended_why is not None and not isinstance(event, Resumed):
            raise InputError("the search had ended")
        match event:
            case Asked():
                self._ask(event)
            case Nothing():
                self._class(event.class_name)
                self.without[event.class_name] = event.reason
            case Misfit():
                self.misfits.append((event.config, event.reason))
            case Started():
                self._start(event)
            case Reported():
                trial = self._of(event.trial, RUNNING)
                self._put(replace(trial, curve=(*trial.curve, (event.fidelity, event.value))))
            case Told():
                self._tell(event)
            case Failed():
                self._end(event, FAILED if event.is_left else WAITING, event.reason)
            case Resumed():
                self._resume(event)
            case Ended():
                self._cut_off()
                self.ended_why = event.why
        self.now_s = event.at_s

    def _ask(self, event: Asked) -> None:
        if event.trial != len(self.trials):
            raise InputError(f"trial {event.trial} is asked for where trial {len(self.trials)} is the next")
        self._class(event.class_name)
        if event.part >= len(self.record.parts):
            raise InputError(f"trial {event.trial} is of part {event.part}, and there are {len(self.record.parts)}")
        if event.continues is not None:
            self._of(event.continues, TOLD, FAILED)
        self.without.pop(event.class_name, None)
        self.trials.append(TrialState(**{each.name: getattr(event, each.name) for each in fields(event)}))

    def _start(self, event: Started) -> None:
        trial = self._of(event.trial, WAITING)
        of = next(each for each in self.record.classes if each.name == trial.class_name)
        if event.worker not in of.worker_names:
            raise InputError(f"{short(event.worker)} is no worker of class {short(trial.class_name)}")
        if event.attempt != len(trial.attempts):
            raise InputError(f"attempt {event.attempt} at trial {event.trial} follows {len(trial.attempts)} others")
        attempt = Attempt(event.worker, event.at_s)
        self._put(replace(trial, status=RUNNING, attempts=(*trial.attempts, attempt), curve=()))

    def _tell(self, event: Told) -> None:
        checkpoint = event.checkpoint
        if checkpoint is not None and (Path(checkpoint).is_absolute() or ".." in Path(checkpoint).parts):
            raise InputError(f"the checkpoint {short(checkpoint)} does not lie below the folder of the search")
        self._end(event, TOLD, value=event.value, checkpoint=checkpoint)

    def _end(self, event: Told | Failed, status: str, reason: str = "", **changes: Any) -> None:
        """End the running attempt of a trial, which is paid for."""
        trial = self._end_attempt(self._of(event.trial, RUNNING), event.at_s, reason)
        took_s = trial.attempts[-1].took_s
        money = trial.money + self._class(trial.class_name).price_of(took_s)
        self._put(replace(trial, status=status, time_s=None if status == WAITING else took_s, money=money, **changes))

    def _resume(self, event: Resumed) -> None:
        if event.trials < len(self.trials):
            raise InputError(f"{event.trials} trials are wanted in all, and {len(self.trials)} were asked for")
        self._cut_off()
        self.wanted = event.trials
        self.resumed_at_s.append(event.at_s)
        self.ended_why = None

    def _cut_off(self) -> None:
        """Let attempts that run end with the process that watched them: at the last event that it wrote."""
        for trial in self.trials:
            if trial.status == RUNNING:
                self._put(replace(self._end_attempt(trial, self.now_s, ""), status=WAITING))

    def _class(self, name: str) -> ComputeClass:
        for each in self.record.classes:
            if each.name == name:
                return each
        raise InputError(f"{short(name)} is no class of the search")

    def _of(self, number: int, *statuses: str) -> TrialState:
        if number >= len(self.trials):
            raise InputError(f"trial {number} was never asked for")
        trial = self.trials[number]
        if trial.status not in statuses:
            raise InputError(f"trial {number} is {trial.status}, where it should be {' or '.join(statuses)}")
        return trial

    def _put(self, trial: TrialState) -> None:
        self.trials[trial.number] = trial

    @staticmethod
    def _end_attempt(trial: TrialState, at_s: float, reason: str) -> TrialState:
        last = replace(trial.attempts[-1], ended_at_s=at_s, reason=reason)
        return replace(trial, attempts=(*trial.attempts[:-1], last))


def read_search(folder: Path) -> SearchState:
    """Read how the search of a folder stands.

    Raises:
        InputError: where it is no folder of a search, or its journal is no journal, naming the line.
    """
    journal = read_journal(folder)
    return state_of(read_record(folder), journal.events, folder=str(folder), is_torn=journal.is_torn)


def state_of(record: SearchRecord, events: Sequence[Event], *, folder: str = "", is_torn: bool = False) -> SearchState:
    """Return how a search stands after some events.

    Raises:
        InputError: naming the line of an event that cannot follow those before it.
    """
    state = SearchState(record, folder, is_torn, record.trials)
    for number, event in enumerate(events, 1):
        try:
            state.take(event)
        except InputError as error:
            raise InputError(f"{printable(str(Path(folder) / JOURNAL_FILE))}, line {number}: {error}") from error
    return state
