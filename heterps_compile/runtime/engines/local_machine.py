"""This machine as the machines of a run: one process a rank, watched until the last one has left.

::

    driver     plan, layout  ->  store, ranks  ->  polls processes, faults and heartbeats  ->  result
    rank r                       forked; worker.py ...................................... leaves

Ranks end in one of three ways: all are done; they were asked to stop, and leave after the same step; or a rank is at
fault, its message becomes that of the run, and the others are killed. No process outlives the launcher: each rank has a
process group of its own, and on Linux the system kills it when the process that it was forked from dies, which the
launcher's end does (``fork_server.py``).

Why not torch's elastic launcher: its store listens on every interface, every rank imports for itself, and it reports
how a process ended, not which stage and micro-batch did.

Not covered: restarts and other widths (``driver.py``), what is printed meanwhile (``run_report.py``), other machines
(``env_rank.py``).
"""

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from heterps_compile.cluster.local import usable_cores
from heterps_compile.errors import SIGNALLED, RunError
from heterps_compile.escape import printable
from heterps_compile.runtime.checkpoint.folder import holding_checkpoints, tidy
from heterps_compile.runtime.checkpoint.start import check_weights, find_start, start_notes
from heterps_compile.runtime.data.model_inputs import inputs_of_plan
from heterps_compile.runtime.data.open_source import check_spec
from heterps_compile.runtime.launch.addresses import loopback_interface
from heterps_compile.runtime.launch.beats import BeatPage, Beats
from heterps_compile.runtime.launch.faults import Fault, Place, Progress, exit_cause, fault_from_json
from heterps_compile.runtime.launch.fork_server import ForkedProcess, ForkServer
from heterps_compile.runtime.launch.heartbeats import Monitor, done_key
from heterps_compile.runtime.launch.outputs import make_output_folder
from heterps_compile.runtime.launch.prepare import Prepared, choose_device, core_notes, header
from heterps_compile.runtime.launch.rank_context import RESULT_KEY, STEPS_KEY, Result, result_from_json
from heterps_compile.runtime.launch.repeated_batches import refuse_large_tables
from heterps_compile.runtime.launch.run_data import try_data
from heterps_compile.runtime.launch.run_folder import run_folder, write_private, writing_temporary_files
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.run_report import RunReport, clear_telemetry
from heterps_compile.runtime.launch.run_store import FOLDER, folder_store
from heterps_compile.runtime.launch.store_values import read_number
from heterps_compile.runtime.launch.watch import FAULT_KEY, FAULT_MARK, STOP_KEY
from heterps_compile.runtime.launch.worker import CONFIG_NAME, PAGE_NAME
from heterps_compile.runtime.validation.data import try_validation

from .deal import Dealt
from .driver import Ending, drive
from .elastic_limits import Limits
from .machines import Left, Machines, Started

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

_WORKER = "heterps_compile.runtime.launch.worker"
_MONITOR_S = 0.5
_LEAVE_S = 2.0  # how long a rank may take to leave once its fault is known
_START_S = 300.0  # before the first heartbeat: importing torch on a busy machine
_CGROUP_EVENTS = Path("/sys/fs/cgroup/memory.events")


def run_here(
    options: RunOptions, prepared: Prepared, server: ForkServer, *, chatter: TextIO
) -> tuple[Result, RunReport]:
    """Run on this machine until the run is over.

    Args:
        options: Of the run.
        prepared: What :func:`prepare` made of them.
        server: Starts the processes.
        chatter: Takes what ranks print, with the rank before each line, and the live view.

    Returns:
        The result of the run, and the report of its last start.

    Raises:
        RunError: naming the stage, replica, micro-batch and cause of what ended it early.
    """
    for data in filter(None, (options.data, options.validate)):
        # Ranks open them again; here they are refused before anything has started.
        check_spec(data, partial(inputs_of_plan, prepared.plan, prepared.folder))
    check_weights(options, prepared)
    machine = LocalMachine(server, chatter)
    ending = drive(machine, Dealt(options, prepared, ()), Limits(max_restarts=options.restarts))
    return machine.result(ending), machine.reports[-1]


class LocalMachine(Machines):
    """Starts the ranks of a run here.

    Attributes:
        reports: What is seen of the ranks, start by start.
    """

    stops_at_once = True

    def __init__(self, server: ForkServer, chatter: TextIO) -> None:
        """Set up.

        Args:
            server: Starts the processes.
            chatter: Takes what ranks print, and what is decided.
        """
        super().__init__(chatter)
        self.reports: list[RunReport] = []
        self._server = server
        self._first_step: int | None = None
        self._results: list[Result] = []

    def say(self, text: str) -> None:
        """Print a line, above the live view of the ranks."""
        if self.reports:
            self.reports[-1].line(text)
        else:
            super().say(text)

    def result(self, ending: Ending) -> Result:
        """Return the result of all starts together."""
        return replace(
            self._results[-1],
            first_step=self._first_step or 0,
            stopped_by=max(0, ending.code - SIGNALLED),
            skipped=sum(result.skipped for result in self._results),
            validations=tuple(one for result in self._results for one in result.validations),
            restarts=ending.restarts,
            resizes=ending.changes,
        )

    def start(self, run: Dealt) -> Started:
        """Start the ranks, once the run has passed the checks that need its files.

        Raises:
            HeterpsError: where it does not pass one.
        """
        options, prepared = run.options, run.prepared
        start = find_start(prepared, options)  # so does rank 0
        if self._first_step is None:
            self._first_step = 0 if start is None else int(start.path.name.removeprefix("step-"))
        if options.output is not None:
            make_output_folder(options.output)
        with ExitStack() as stack:
            stack.enter_context(holding_checkpoints(options.checkpoint))
            directory = stack.enter_context(run_folder())
            store = folder_store(directory, FOLDER)
            telemetry = Path(options.telemetry) if options.telemetry is not None else directory / "telemetry"
            clear_telemetry(telemetry)
            try_data(options, prepared)
            refuse_large_tables(prepared.sync, prepared.layout, prepared.plan, prepared.folder)
            try_validation(options, prepared)
            config = {
                "options": asdict(options),
                "parent": self._server.pid,
                "world_size": prepared.world_size,
                "plan": prepared.plan_sha256,
                "telemetry": str(telemetry),
            }
            with writing_temporary_files():
                write_private(directory / CONFIG_NAME, json.dumps(config))
                beats = BeatPage(directory / PAGE_NAME, prepared.world_size)
            report = stack.enter_context(RunReport(prepared, options, telemetry, self._stream))
            self.reports.append(report)
            if not options.quiet:
                for line in [
                    *header(prepared, options, _devices(prepared)),
                    *core_notes(prepared, options, usable_cores()),
                    *(f"  {note}" for note in start_notes(options, prepared, start)),
                ]:
                    report.line(line)
            stack.callback(report.poll)
            if options.checkpoint is not None:
                stack.callback(_tidy, Path(options.checkpoint))
            ranks = LocalRanks(prepared.places, store, beats, report, self._results, options.hang_after_s)
            stack.callback(ranks.end)
            environment = worker_environment(options.threads)
            for place in prepared.places:
                words = [str(directory), str(place.rank)]
                ranks.add(place.rank, self._server.start(_WORKER, words, environment, merges_output=True))
            ranks.cleanup = stack.pop_all()
        return ranks


class LocalRanks(Started):
    """The ranks of one start, as their processes, the store, their heartbeats and their output show them.

    Attributes:
        cleanup: What to undo when they have left.
    """

    def __init__(  # noqa: PLR0917 - what the ranks of one start share
        self,
        places: Sequence[Place],
        store: "Store",
        beats: Beats,
        report: RunReport,
        results: list[Result],
        hang_after_s: float,
    ) -> None:
        """Begin without processes; :meth:`add` adds that of a rank.

        Args:
            places: Of all ranks.
            store: Of the ranks.
            beats: Their heartbeats.
            report: Takes what they print.
            results: Takes their result.
            hang_after_s: Seconds without progress that count as a hang.
        """
        self.cleanup = ExitStack()
        self._store, self._beats, self._report, self._results = store, beats, report, results
        self._places = {place.rank: place for place in places}
        self._monitor = Monitor(store, beats, places, hang_after_s)
        self._processes: dict[int, ForkedProcess] = {}
        self._pumps: dict[int, threading.Thread] = {}
        self._printed: list[str] = []  # faults that ranks could not write into the store
        self._kills_before = _out_of_memory_kills()
        self._start_by_s = self._leave_by_s = math.inf
        self._due_s = -math.inf
        self._knows_steps = False
        self._fault: Fault | None = None
        self._left = Left((1,))

    def add(self, rank: int, process: ForkedProcess) -> None:
        """Follow the process that was started as a rank."""
        place = self._places[rank]
        self._processes[rank] = process
        pump = threading.Thread(target=self._pass_on, args=(place, process), name=f"rank {rank}", daemon=True)
        self._pumps[rank] = pump
        pump.start()

    def poll(self, now_s: float) -> bool:
        """Look for a fault and the result; return whether all ranks have left, or the one at fault."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        fault = self._fault or self._find_told()
        if now_s >= self._due_s:
            self._due_s = now_s + _MONITOR_S
            self._report.poll()
            if not self._knows_steps and self._store.check([STEPS_KEY]):
                self._report.know_steps(read_number(self._store, STEPS_KEY, "the count of steps"))
                self._knows_steps = True
            fault = fault or self._monitor.find_fault(now_s) or self._find_late(now_s)
        fault = fault or self._find_dead(codes)
        if fault is not None:
            if self._fault is None:
                self._fault, self._leave_by_s = fault, now_s + _LEAVE_S
            self._left = Left((1,), error=RunError(str(fault)))
            return codes.get(fault.place.rank, 0) is not None or now_s > self._leave_by_s
        if None in codes.values():
            return False
        if self._store.check([RESULT_KEY]):
            self._results.append(result_from_json(self._store.get(RESULT_KEY)))
            self._left = Left((self._results[-1].exit_code,), is_over=True)
        else:
            error = RunError("all ranks left, and none told the result of the run")
            self._left = Left((1,), error=error, is_over=True)
        return True

    def stop(self, number: int) -> None:
        """Have all ranks stop after the same step."""
        self._store.compare_set(STOP_KEY, "", str(int(number)))

    def close(self) -> Left:
        """Kill the ranks that are left, and undo what their start did."""
        self.cleanup.close()
        return self._left

    def end(self) -> None:
        """Kill what is left, with all it started, and wait for it."""
        for process in self._processes.values():
            process.kill_group()
        for rank, process in self._processes.items():
            process.wait()
            self._pumps[rank].join(timeout=_LEAVE_S)

    def _pass_on(self, place: Place, process: ForkedProcess) -> None:
        with process.stdout as lines:
            for line in lines:
                text, mark, fault = line.rstrip().partition(FAULT_MARK)
                if mark:
                    self._printed.append(fault)
                if text or not mark:
                    self._report.line(f"[{place}] {printable(text)}")

    def _find_told(self) -> Fault | None:
        """Look for a fault that a rank has written into the store, or printed if it could not."""
        if self._store.check([FAULT_KEY]):
            return fault_from_json(self._store.get(FAULT_KEY))
        return fault_from_json(self._printed[0]) if self._printed else None

    def _find_dead(self, codes: Mapping[int, int | None]) -> Fault | None:
        """Look for a process that ended other than it should."""
        for place in self._places.values():
            code = codes[place.rank]
            if code is None or (code == 0 and self._store.check([done_key(place.rank)])):
                continue
            self._pumps[place.rank].join(timeout=_LEAVE_S)  # it may have printed its fault
            cause = exit_cause(code, out_of_memory=_out_of_memory_kills() > self._kills_before)
            beat = self._beats.last(place.rank)
            return self._find_told() or Fault(place, Progress() if beat is None else beat.progress, cause)
        return None

    def _find_late(self, now_s: float) -> Fault | None:
        """Look for a rank without a first heartbeat."""
        self._start_by_s = min(self._start_by_s, now_s + _START_S)
        if now_s > self._start_by_s:
            for place in self._places.values():
                if self._beats.last(place.rank) is None:
                    return Fault(place, Progress(), f"did not start in {_START_S:.0f} s")
        return None


def _devices(prepared: Prepared) -> list[str]:
    """Return the kind of device that every stage runs on, for the header."""
    first = [prepared.layout.ranks_of(stage.index)[0] for stage in prepared.plan.stages]
    return [choose_device(prepared, rank, rank).type for rank in first]


def _tidy(checkpoints: Path) -> None:
    """Delete what ranks that have left did not finish."""
    with suppress(OSError):
        tidy(checkpoints)


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
