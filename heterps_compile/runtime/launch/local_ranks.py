"""Run on this machine: one process a rank, watched until the last one has left.

::

    launcher   plan, layout  ->  store, ranks  ->  watches processes and heartbeats  ->  summary
                                  ^------------  again: a restart, or other widths
    rank r                       forked; worker.py ...................................... leaves

Ranks end in one of three ways: all are done; somebody asked to stop (Ctrl-C), and all leave after the same step; or a
rank is at fault, all print the same sentence, and what does not leave by itself is killed. The launcher starts them
again from the last checkpoint after a fault, as often as ``--restarts`` says, and after a stop for other widths
(``resize.py``). What ranks did after that checkpoint is gone with them, so every sample counts once. No process
outlives the launcher: each rank has a process group of its own, and on Linux the system kills it when the process that
it was forked from dies, which the launcher's end does (``fork_server.py``).

Why not torch's elastic launcher: its store listens on every interface, every rank imports for itself, and it reports
how a process ended, not which stage and micro-batch did.

Left out: what is printed meanwhile (``run_report.py``), other machines (``env_rank.py``).
"""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from heterps_compile.cluster.local import usable_cores
from heterps_compile.errors import HeterpsError, RunError, RunKilledError
from heterps_compile.escape import one_line, printable
from heterps_compile.runtime.checkpoint.folder import find_checkpoints, holding_checkpoints, tidy
from heterps_compile.runtime.checkpoint.format import Checkpoint
from heterps_compile.runtime.checkpoint.start import check_same_model, check_weights, find_start, start_notes
from heterps_compile.runtime.data.model_inputs import inputs_of_plan
from heterps_compile.runtime.data.open_source import check_spec
from heterps_compile.runtime.validation.data import try_validation
from heterps_compile.runtime.validation.result import Validation

from .addresses import loopback_interface
from .beats import BeatPage
from .faults import Fault, Place, Progress, exit_cause, fault_from_json
from .fork_server import ForkedProcess, ForkServer
from .heartbeats import Monitor, done_key
from .outputs import make_output_folder
from .prepare import Prepared, choose_device, core_notes, header, prepare
from .rank_context import RESULT_KEY, STEPS_KEY, Result, result_from_json
from .repeated_batches import refuse_large_tables
from .resize import ResizeRequests
from .run_data import try_data
from .run_folder import run_folder, write_private, writing_temporary_files
from .run_options import RunOptions
from .run_report import RunReport, clear_telemetry
from .run_store import launcher_store
from .stop_signals import RESIZED_BY, collecting_signals
from .store_values import read_number
from .watch import FAULT_KEY, STOP_KEY, post_fault
from .worker import CONFIG_NAME, PAGE_NAME

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_POLL_S = 0.1
_MONITOR_S = 0.5
_LEAVE_S = 2.0  # how long ranks may take to leave once a fault is known
_START_S = 300.0  # before the first heartbeat: importing torch on a busy machine
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")


@dataclass(frozen=True)
class _Rank:
    """One rank's process and the thread that passes on what it prints."""

    place: Place
    process: ForkedProcess
    pump: threading.Thread
    began_s: float = field(default_factory=time.monotonic)


def run_here(
    options: RunOptions, prepared: Prepared, server: ForkServer, *, chatter: TextIO
) -> tuple[Result, RunReport]:
    """Start the ranks and wait until all have left.

    Args:
        options: Of the run.
        prepared: What :func:`prepare` made of them.
        server: Starts the processes.
        chatter: Takes what ranks print, with the rank before each line, and the live view.

    Returns:
        What the run came to, and what was seen of it.

    Raises:
        RunError: naming the stage, replica, micro-batch and cause of what ended it early.
    """
    if options.data:
        # Ranks open it again; here it is refused before anything has started.
        check_spec(options.data, partial(inputs_of_plan, prepared.plan, prepared.folder))
    if options.validate is not None:
        check_spec(options.validate, partial(inputs_of_plan, prepared.plan, prepared.folder))
    check_weights(options, prepared)
    first_step, restarts, resizes, skipped = None, 0, 0, 0
    validations: list[Validation] = []
    with collecting_signals() as signals:
        while True:
            start = find_start(prepared, options)  # so does rank 0
            first_step = _step_of(start) if first_step is None else first_step
            try:
                ended = _run_ranks(options, prepared, start, _Around(server, chatter, signals))
            except _RanksFailedError as failed:
                if restarts == options.restarts or signals:
                    raise
                restarts += 1
                found = find_checkpoints(Path(options.checkpoint or ""))
                if found or options.weights is None:  # else it begins again with these weights
                    options = replace(options, resume=True, weights=None)
                where = printable(found[-1].name) if found else "the beginning"
                _say(chatter, f"{one_line(str(failed))}\nrestart {restarts} of {options.restarts}, from {where}")
                continue
            skipped += ended.result.skipped
            validations += ended.result.validations
            if ended.change is None or signals:
                stopped_by = signals[0] if signals and ended.change is not None else ended.result.stopped_by
                result = replace(ended.result, first_step=first_step, stopped_by=stopped_by, skipped=skipped)
                result = replace(result, restarts=restarts, resizes=resizes, validations=tuple(validations))
                return result, ended.show
            options, prepared = ended.change
            resizes += 1


def _say(chatter: TextIO, text: str) -> None:
    with suppress(OSError):  # nobody reads it any more, and the run goes on
        chatter.write(f"{text}\n")
        chatter.flush()


def _step_of(checkpoint: Checkpoint | None) -> int:
    return 0 if checkpoint is None else int(checkpoint.path.name.removeprefix("step-"))


class _RanksFailedError(RunError):
    """A rank was at fault; others could be started."""


@dataclass(frozen=True)
class _Around:
    """What stays while ranks are started again."""

    server: ForkServer
    chatter: TextIO
    signals: list[int]


@dataclass(frozen=True)
class _Ended:
    """How ranks ended: what they came to, what was seen of them, and what the run goes on with, if it does."""

    result: Result
    show: RunReport
    change: tuple[RunOptions, Prepared] | None


def _run_ranks(options: RunOptions, prepared: Prepared, start: Checkpoint | None, around: _Around) -> _Ended:
    """Start the ranks once, and wait until all have left.

    Raises:
        _RanksFailedError: where one was at fault.
    """
    if options.output is not None:
        make_output_folder(options.output)
    with holding_checkpoints(options.checkpoint), run_folder() as directory, launcher_store(directory) as store:
        telemetry = Path(options.telemetry) if options.telemetry is not None else directory / "telemetry"
        clear_telemetry(telemetry)
        try_data(options, prepared)
        refuse_large_tables(prepared.sync, prepared.layout, prepared.plan, prepared.folder)
        try_validation(options, prepared)
        config = {
            "options": asdict(options),
            # For resize, which may be typed in another folder than the run was.
            "checkpoints": None if options.checkpoint is None else os.path.abspath(options.checkpoint),
            "parent": around.server.pid,
            "world_size": prepared.world_size,
            "plan": prepared.plan_sha256,
            "telemetry": str(telemetry),
        }
        with writing_temporary_files():
            write_private(directory / CONFIG_NAME, json.dumps(config))
            beats = BeatPage(directory / PAGE_NAME, prepared.world_size)
        with RunReport(prepared, options, telemetry, around.chatter) as show:
            if not options.quiet:
                for line in [
                    *header(prepared, options, _devices(prepared)),
                    *core_notes(prepared, options, usable_cores()),
                    *(f"  {note}" for note in start_notes(options, prepared, start)),
                ]:
                    show.line(line)
            watched = _Watched(options, prepared, store, beats, show, around.signals)
            try:
                for place in prepared.places:
                    watched.ranks.append(_start(place, directory, options, around.server, show))
                change = _watch(watched)
                result = result_from_json(store.get(RESULT_KEY))
            finally:
                _end(watched.ranks)
                if options.checkpoint is not None:
                    with suppress(OSError):
                        tidy(Path(options.checkpoint))  # nobody builds there any more
                show.poll()
    return _Ended(result, show, change)


def _devices(prepared: Prepared) -> list[str]:
    """Return the kind of device that every stage runs on, for the header."""
    first = [prepared.layout.ranks_of(stage.index)[0] for stage in prepared.plan.stages]
    return [choose_device(prepared, rank, rank).type for rank in first]


def _start(place: Place, directory: Path, options: RunOptions, server: ForkServer, show: RunReport) -> _Rank:
    words, environment = [str(directory), str(place.rank)], worker_environment(options.threads)
    process = server.start("heterps_compile.runtime.launch.worker", words, environment, merges_output=True)
    pump = threading.Thread(target=_pass_on, args=(process, place, show), name=f"rank {place.rank}", daemon=True)
    pump.start()
    return _Rank(place, process, pump)


def _pass_on(process: ForkedProcess, place: Place, show: RunReport) -> None:
    with process.stdout:
        for line in process.stdout:
            show.line(f"[{place}] {printable(line.rstrip())}")


@dataclass(frozen=True)
class _Watched:
    """Ranks that run, and what is known of them."""

    options: RunOptions
    prepared: Prepared
    store: "Store"
    beats: BeatPage
    show: RunReport
    signals: list[int]
    ranks: list[_Rank] = field(default_factory=list)


def _watch(run: _Watched) -> tuple[RunOptions, Prepared] | None:
    """Wait until every rank has left in good order; return what the run goes on with, where somebody resized it.

    Raises:
        _RanksFailedError: where one did not, or a fault was found otherwise.
    """
    ranks, store, options, show, signals = run.ranks, run.store, run.options, run.show, run.signals
    monitor = Monitor(store, run.beats, [rank.place for rank in ranks], options.hang_after_s)
    requests = ResizeRequests(store)
    change: tuple[RunOptions, Prepared] | None = None
    killed_before = _out_of_memory_kills()
    due_s = 0.0
    asked, knows_steps = 0, False
    while any(rank.process.poll() is None for rank in ranks):
        if len(signals) > 1:
            raise RunKilledError("interrupted twice: the ranks were killed in the middle of a step", signals[0])
        if signals and not asked:
            asked = signals[0]
            store.compare_set(STOP_KEY, "", str(asked))
            show.line(f"{signal.Signals(asked).name}: stopping after this step")
        now = time.monotonic()
        fault: Fault | None = None
        if now >= due_s:
            due_s = now + _MONITOR_S
            fault = monitor.find_fault() or _find_late(run, now)
            show.poll()
            change = _resize(requests, run, change)
            if not knows_steps and store.check([STEPS_KEY]):
                show.know_steps(read_number(store, STEPS_KEY, "the count of steps"))
                knows_steps = True
        fault = fault or _find_dead(run, killed_before)
        if fault is not None:
            post_fault(store, fault)
        if store.check([FAULT_KEY]):
            _raise(ranks, fault_from_json(store.get(FAULT_KEY)))
        time.sleep(_POLL_S)
    fault = _find_dead(run, killed_before)
    if fault is not None or store.check([FAULT_KEY]):
        _raise(ranks, post_fault(store, fault) if fault is not None else fault_from_json(store.get(FAULT_KEY)))
    if not store.check([RESULT_KEY]):
        raise RunError("all ranks left, and none told the result of the run")
    return change


def _resize(
    requests: ResizeRequests, run: _Watched, decided: tuple[RunOptions, Prepared] | None
) -> tuple[RunOptions, Prepared] | None:
    """Look for a request to go on otherwise; return what is decided: the first one that can be."""
    wanted = requests.next()
    if wanted is None:
        return decided
    if decided is not None or run.signals:
        requests.answer("it is being stopped or resized already", refused=True)
        return decided
    try:
        options = replace(wanted.applied(run.options), batch=run.prepared.layout.batch)
        prepared = prepare(options)
        check_same_model(run.prepared, prepared)
    except HeterpsError as error:
        requests.answer(str(error), refused=True)
        return None
    before, after = (", ".join(map(str, one.layout.widths)) for one in (run.prepared, prepared))
    words = f"replicas {before} until this step is done, then {after}"
    requests.answer(words, refused=False)
    run.show.line(f"resized: {words}")
    run.store.compare_set(STOP_KEY, "", str(int(RESIZED_BY)))
    return options, prepared


def _raise(ranks: Sequence[_Rank], fault: Fault) -> None:
    """Let the ranks print the fault and leave; then raise it."""
    deadline_s = time.monotonic() + _LEAVE_S
    while time.monotonic() < deadline_s and any(rank.process.poll() is None for rank in ranks):
        time.sleep(_POLL_S)
    raise _RanksFailedError(str(fault))


def _find_dead(run: _Watched, killed_before: int) -> Fault | None:
    """Look for a process that ended other than it should."""
    store = run.store
    if store.check([FAULT_KEY]):
        return None
    for rank in run.ranks:
        code = rank.process.poll()
        if code is None:
            continue
        if code == 0 and store.check([done_key(rank.place.rank)]):
            continue
        cause = exit_cause(code, out_of_memory=_out_of_memory_kills() > killed_before)
        beat = run.beats.last(rank.place.rank)
        return Fault(rank.place, Progress() if beat is None else beat.progress, cause)
    return None


def _find_late(run: _Watched, now: float) -> Fault | None:
    """Look for a rank that has not given its first heartbeat."""
    for rank in run.ranks:
        waited_s = now - rank.began_s
        if waited_s > _START_S and run.beats.last(rank.place.rank) is None:
            return Fault(rank.place, Progress(), f"did not start in {waited_s:.0f} s")
    return None


def _end(ranks: Sequence[_Rank]) -> None:
    """Kill what is left, with all it started, and wait for it."""
    for rank in ranks:
        rank.process.kill_group()
    for rank in ranks:
        rank.process.wait()
        rank.pump.join(timeout=_LEAVE_S)


def _out_of_memory_kills() -> int:
    """Return how many processes of this container the system has killed for their memory; 0 where nobody says."""
    try:
        lines = _CGROUP_EVENTS.read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def worker_environment(threads: int) -> dict[str, str]:
    """Return the environment of a process that runs on this machine alone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment["GLOO_SOCKET_IFNAME"] = loopback_interface()
    environment["OMP_NUM_THREADS"] = str(threads)
    environment["PYTHONUNBUFFERED"] = "1"
    environment.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # its errors are raised too, and told in one line
    return environment
