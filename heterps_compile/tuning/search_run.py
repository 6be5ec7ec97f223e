"""A search that runs: free workers are given trials, what came of them is written down and told to the method.

Whatever is decided goes to the journal at once, in the order in which the method was asked and told; so a search that
was killed goes on from its folder as if it had not been (``replay.py``), but for trials that ran just then, which run
again. Trials that fail are started again ``retries`` times, at once and on the class they were for.

Left out: starting processes (the engines), printing (``cli/tune.py``).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.errors import InfeasibleError, InputError, RunError
from heterps_compile.escape import one_line, printable
from heterps_compile.strict_json import read_json
from heterps_compile.units import counted

from .ask_tell import identity
from .assignment import Assigned, AssignedSearch, SearchSettings
from .journal import (
    Asked,
    Ended,
    Event,
    Failed,
    JournalWriter,
    Misfit,
    Nothing,
    Reported,
    Resumed,
    Started,
    Told,
    read_journal,
)
from .parameters import Value
from .replay import replay, tell_result
from .search_figures import lengths
from .search_request import Search
from .search_state import TOLD, SearchState, TrialState, state_of
from .space import split_parts
from .trial_engine import Left, TrialEngine, Worker
from .trial_job import OUTPUT_FILE, RESULT_FILE, TrialJob, TrialResult
from .trial_log import LOG_FILE, TrialLog, values_of
from .trial_plans import TrialPlan, TrialPlans

PROBES = 3
"""Configurations compiled for every part of the space, before the first trial."""

FIRST_FAILURES = 5
"""So many trials that fail before any has a result end a search: what ails them ails all."""

MISFITS_TOLD = 3
"""So many configurations that fit no class are told as they come; all are in the journal."""

TRIALS_FOLDER = "trials"

_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Running:
    """A trial on a worker.

    Attributes:
        assigned: The trial.
        plan: It runs by.
        folder: Of the attempt.
        log: The log of its run.
    """

    assigned: Assigned
    plan: TrialPlan
    folder: Path
    log: TrialLog


def _result_of(folder: Path) -> tuple[TrialResult | None, str]:
    """Return what a trial left, and why it failed where it says so."""
    path = folder / RESULT_FILE
    try:
        result = read_json(path, TrialResult) if path.is_file() else None
    except InputError as error:
        return None, str(error)
    return result, "" if result is None else result.error


def _without_result(folder: Path, result: TrialResult | None) -> str:
    if result is not None:
        return "it ended without a value"
    return f"its process left without a result; {printable(str(folder / OUTPUT_FILE))} has what it printed"


class SearchRun:
    """A search that runs; its folder is locked by the caller."""

    def __init__(
        self,
        search: Search,
        workers: tuple[Worker, ...],
        plans: TrialPlans,
        engine: TrialEngine,
        tell: Callable[[str], None],
        *,
        trials: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bring the search to where its journal left it.

        Args:
            search: What it is.
            workers: That run trials.
            plans: Compiles and predicts.
            engine: Starts trials.
            tell: Is told what happens, line by line.
            trials: How many are wanted in all now; None for as many as before.
            clock: Gives seconds that never fall.

        Raises:
            InputError: where the journal is none of this search.
        """
        record = search.record
        journal = read_journal(search.folder)
        self._state = state_of(record, journal.events, folder=str(search.folder))
        self._search, self._record, self._workers = search, record, workers
        self._plans, self._engine, self._tell = plans, engine, tell
        settings = SearchSettings(
            search.space,
            record.method,
            record.fidelity,
            record.seed,
            record.rule,
            budget=float("inf") if record.budget is None else record.budget,
            probes=PROBES,
        )
        self._asking = AssignedSearch(settings, [each.compute for each in search.classes], plans.predict)
        replay(self._asking, self._state, journal.events)
        self._misfits = len(self._asking.refused)
        self._waiting = [self._asking.open[number] for number in sorted(self._asking.open)]
        self._writer = JournalWriter(search.folder, journal.size_bytes)
        self._clock, self._began_s = clock, clock() - self._state.now_s
        self._running: dict[Worker, _Running] = {}
        self._closed: dict[str, str] = {}  # classes that nothing fits, with the reason
        self._vain: set[str] = set()  # classes that had nothing since the last result
        known = self._state.trials
        self._tried = {(trial.fidelity, identity(trial.config)): trial.number for trial in reversed(known)}
        self._repeats = len(self._tried) < len(known)
        if journal.events:
            self._note(Resumed(at_s=self._now_s(), trials=trials or self._state.wanted))
        self._wanted = trials or self._state.wanted
        if journal.is_torn:
            tell("the last line of the journal was cut off by the end of the process before: it is dropped")

    def run(self) -> SearchState:
        """Run to the end; return how the search stands then.

        Raises:
            InfeasibleError: where no trial fits any class.
            RunError: where the first trials all fail.
            KeyboardInterrupt: after the search has been put away.
        """
        try:
            while True:
                self._give_work()
                if not self._running:
                    break
                for left in self._engine.wait(self._patience_s()):
                    self._take(left)
                self._report()
                self._end_late()
        except KeyboardInterrupt:
            self._note(Ended(at_s=self._now_s(), why="it was interrupted"))
            raise
        except (RunError, InfeasibleError) as error:
            self._note(Ended(at_s=self._now_s(), why=one_line(str(error))[:1000]))
            raise
        finally:
            self._writer.close()
        return self._state

    def _give_work(self) -> None:
        for worker in self._workers:
            while worker not in self._running:
                assigned = self._next_for(worker)
                if assigned is None:
                    break
                self._start(worker, assigned)
        if not self._running:
            self._note(Ended(at_s=self._now_s(), why=self._why_ended()))

    def _why_ended(self) -> str:
        asked = len(self._state.trials)
        if asked >= self._wanted:
            return f"all {counted(self._wanted, 'trial')} ended"
        if not asked and self._closed:
            raise InfeasibleError("; ".join(self._closed.values()))
        if self._closed.keys() == {each.name for each in self._search.classes}:
            return f"{asked} of {counted(self._wanted, 'trial')} ended: {'; '.join(self._closed.values())}"[:1000]
        budget = f"{self._record.budget:g} {self._record.currency}"
        if not asked:
            raise InfeasibleError(f"the budget of {budget} does not last for one trial; give more (--budget)")
        return f"{asked} of {counted(self._wanted, 'trial')} ended: the budget of {budget} does not last for another"

    def _next_for(self, worker: Worker) -> Assigned | None:
        """Return the next trial for a worker: one that waits to be started again, else a new one."""
        name = worker.of.name
        for at, waiting in enumerate(self._waiting):
            if waiting.class_name == name:
                return self._waiting.pop(at)
        if len(self._state.trials) >= self._wanted or name in self._closed or name in self._vain:
            return None
        assigned: Assigned | None
        try:
            assigned = self._asking.ask(name)
            reason = "the budget does not last for another trial"
        except InfeasibleError as error:
            assigned, reason = None, one_line(str(error))[:1000]
            if not self._asking.has_waiting:
                self._closed[name] = reason
        self._note_misfits()
        if assigned is None:
            self._vain.add(name)
            self._note(Nothing(at_s=self._now_s(), class_name=name, reason=reason))
            return None
        self._tell_repeated(assigned)
        self._note(
            Asked(
                at_s=self._now_s(),
                trial=assigned.number,
                part=assigned.part,
                class_name=name,
                config=dict(assigned.config),
                fidelity=assigned.trial.fidelity,
                continues=assigned.continues,
                predicted_s=assigned.predicted_s,
            )
        )
        return assigned

    def _tell_repeated(self, assigned: Assigned) -> None:
        """Tell, once, that a configuration is tried again at the same length: the method found no other."""
        key = assigned.trial.fidelity, identity(assigned.config)
        before = self._tried.setdefault(key, assigned.number)
        if before != assigned.number and not self._repeats:
            self._tell(
                f"trial {assigned.number} has the configuration of trial {before} again, as the method found no other "
                "left; more may follow, and are not told"
            )
            self._repeats = True

    def _note_misfits(self) -> None:
        for number, (config, reason) in enumerate(self._asking.refused[self._misfits :], self._misfits):
            self._note(Misfit(at_s=self._now_s(), config=dict(config), reason=one_line(reason)[:1000]))
            if number < MISFITS_TOLD:
                then = "; what follows is in the journal" if number == MISFITS_TOLD - 1 else ""
                self._tell(f"a configuration fits no class: {printable(reason)}{then}")
        self._misfits = len(self._asking.refused)

    def _start(self, worker: Worker, assigned: Assigned) -> None:
        number = assigned.number
        attempt = len(self._state.trials[number].attempts)
        plan = self._plans.plan(assigned.config, worker.of.name)
        folder = self._search.folder / TRIALS_FOLDER / str(number) / f"attempt-{attempt}"
        fault = plan.fault or plan.misfit
        if not fault:
            self._engine.start(worker, self._job(assigned, plan, folder))
        self._note(Started(at_s=self._now_s(), trial=number, attempt=attempt, worker=worker.name))
        running = _Running(assigned, plan, folder, TrialLog(folder))
        if fault:
            self._failed(worker, running, fault, is_certain=True)
        else:
            self._running[worker] = running

    def _job(self, assigned: Assigned, plan: TrialPlan, folder: Path) -> TrialJob:
        parts = split_parts(assigned.config)
        assert self._plans.length is not None, "known before trials start"  # noqa: S101
        before = None if assigned.continues is None else self._state.trials[assigned.continues]
        done = before if before is not None and before.status == TOLD and before.checkpoint is not None else None
        length = self._plans.length
        run: dict[str, Value | tuple[int, ...]] = {
            name: value for name, value in parts["plan"].items() if name in ("micro_batches", "schedule")
        }
        if self._record.validate_every is not None:
            run["validate_every"] = self._record.validate_every
        if "replicas" in parts["plan"]:
            run["replicas"] = plan.widths
        return TrialJob(
            folder=str(folder),
            plan=str(plan.folder),
            train=self._search.path("train"),
            data=self._search.path("data"),
            validate=self._search.path("validate") or None,
            metric=self._record.metric,
            values=parts["train"],
            run=run,
            steps=length.steps(assigned.trial.fidelity, plan.batch),
            checkpoint=str(folder / "checkpoint"),
            continues=None if done is None else str(self._search.folder / str(done.checkpoint)),
            done_steps=0 if done is None else length.steps(done.fidelity, plan.batch),
            done_value=None if done is None else done.value,
            seed=self._record.seed,
        )

    def _report(self) -> None:
        """Write down the validations of trials that run, as they come."""
        for running in self._running.values():
            self._note_validations(running)

    def _note_validations(self, running: _Running) -> None:
        assert self._plans.length is not None, "known before trials start"  # noqa: S101
        number = running.assigned.number
        for steps, value in values_of(running.log.read(), self._record.metric):
            reached = self._plans.length.fidelity(steps, running.plan.batch)
            self._note(Reported(at_s=self._now_s(), trial=number, fidelity=reached, value=value))

    def _take(self, left: Left) -> None:
        """Make of a trial that has left a result, or a failure."""
        running = self._running.pop(left.worker)
        result, fault = _result_of(running.folder)
        fault = fault or left.cause
        if fault or result is None or result.value is None:
            self._failed(left.worker, running, fault or _without_result(running.folder, result))
            return
        self._note_validations(running)
        number = running.assigned.number
        (running.folder / LOG_FILE).unlink(missing_ok=True)  # the journal has its validations
        checkpoint = running.folder / "checkpoint"
        relative = str(checkpoint.relative_to(self._search.folder)) if checkpoint.is_dir() else None
        self._note_result(Told(at_s=self._now_s(), trial=number, value=result.value, checkpoint=relative))
        self._tell(self._told_words(self._state.trials[number], left.worker))

    def _failed(self, worker: Worker, running: _Running, reason: str, *, is_certain: bool = False) -> None:
        """Take a failure: the trial waits for another attempt, or is left."""
        number = running.assigned.number
        is_left = is_certain or len(self._state.trials[number].failed_s) >= self._record.retries
        if not is_left:
            self._waiting.append(running.assigned)
        reason = one_line(reason)[:1500]
        self._note_result(Failed(at_s=self._now_s(), trial=number, reason=reason, is_left=is_left))
        then = "it is left" if is_left else "it is started again"
        self._tell(f"trial {number} failed on {printable(worker.name)}, {then}: {printable(reason)}")
        if is_left:
            self._end_hopeless(reason)

    def _end_hopeless(self, reason: str) -> None:
        state = self._state
        if state.count(TOLD) == 0 and sum(not trial.is_open for trial in state.trials) >= FIRST_FAILURES:
            raise RunError(f"the first {FIRST_FAILURES} trials all failed, the last since {reason}")

    def _end_late(self) -> None:
        limit_s = self._record.time_limit_s
        if limit_s is None:
            return
        for worker, running in list(self._running.items()):
            if self._now_s() - self._started_at_s(running) > limit_s:
                self._engine.end(worker)
                del self._running[worker]
                self._failed(worker, running, f"it did not end within {limit_s:g} s (--time-limit), and was ended")

    def _patience_s(self) -> float:
        """Return how long to wait for a trial to leave: no longer than one may take."""
        limit_s = self._record.time_limit_s
        if limit_s is None:
            return _WAIT_S
        oldest_s = min(map(self._started_at_s, self._running.values()))
        return max(0.0, min(_WAIT_S, oldest_s + limit_s - self._now_s()))

    def _started_at_s(self, running: _Running) -> float:
        return self._state.trials[running.assigned.number].attempts[-1].started_at_s

    def _told_words(self, trial: TrialState, worker: Worker) -> str:
        best, metric = self._state.best, printable(self._record.metric)
        beside = "" if best is None else f"; best {best.value:.6g} of trial {best.number}"
        return (
            f"trial {trial.number} on {printable(worker.name)}: {metric} {trial.value:.6g} after "
            f"{lengths(self._state, trial.fidelity)}, {trial.time_s:.1f} s{beside}"
        )

    def _note(self, event: Event) -> None:
        self._state.take(event)
        self._writer.add(event)

    def _note_result(self, event: Told | Failed) -> None:
        self._note(event)
        tell_result(self._asking, self._state, event)
        self._vain.clear()

    def _now_s(self) -> float:
        return self._clock() - self._began_s
