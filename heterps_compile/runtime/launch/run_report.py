"""What is seen of a run and kept of it: live view, log, TensorBoard, trace, and the summary at its end.

Left out: how each of them looks (``telemetry/``).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console
from rich.text import Text

from heterps_compile.cluster.local import usable_cores
from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.runtime.telemetry.events import RankTables
from heterps_compile.runtime.telemetry.follow import RunFollower
from heterps_compile.runtime.telemetry.live_view import LiveView
from heterps_compile.runtime.telemetry.plan_difference import difference_lines, plan_difference
from heterps_compile.runtime.telemetry.run_summary import (
    RunSummary,
    SummaryOfSteps,
    comparison_table,
    reading_of_runs,
    summary_lines,
    table_lines,
)
from heterps_compile.runtime.telemetry.step_log import Entry, StepLog, TensorBoardLog
from heterps_compile.runtime.telemetry.step_report import StepReport
from heterps_compile.runtime.validation.result import metric_words
from heterps_compile.units import counted

from .prepare import Prepared, sharing_words, step_sharing_cores
from .rank_context import Result
from .run_options import RunOptions
from .stop_signals import RESIZED_BY
from .telemetry_relay import TelemetryCollector

_REPORTS_TRACED = 100
_POLL_S = 0.5


class _Sink(Protocol):
    def add(self, entry: Entry) -> None: ...

    def close(self) -> None: ...


class RunReport:
    """Follows what ranks tell of their steps.

    Attributes:
        last_loss: Of the last step that told one, in words; "" before.
        tables: What those on parameter servers hold, as it was told last; None before, and where there are none.
    """

    def __init__(self, prepared: Prepared, options: RunOptions, telemetry: Path, stream: TextIO) -> None:
        """Begin to follow.

        Args:
            prepared: The run.
            options: Say what is kept, and where.
            telemetry: Folder that the ranks write to.
            stream: For the live view and what ranks print.

        Raises:
            InputError: where a file cannot be written.
        """
        self.last_loss = ""
        self.tables: RankTables | None = None
        self._prepared = prepared
        self._options = options
        self._follower = RunFollower(telemetry, prepared.layout.world_size)
        self._summary = SummaryOfSteps()
        self._reports: list[StepReport] = []
        self._lock = threading.Lock()
        if options.trace is not None:
            _try_writing(options.trace)  # not only when the run is over
        self._sinks: list[_Sink] = []
        if options.log is not None:
            self._sinks.append(StepLog(Path(options.log), append=options.resume))
        if options.tensorboard is not None:
            self._sinks.append(TensorBoardLog(Path(options.tensorboard)))
        devices = {stage.index: stage.device_words for stage in prepared.plan.stages}
        self._stream = stream
        self._is_seen = True
        self._live = (
            None
            if options.quiet
            else LiveView(
                stream,
                self._follower.starts,
                devices,
                total_steps=options.steps,
                planned_per_s=reading_of_runs(prepared.plan)[1].throughput_samples_per_s if self.is_as_planned else 0.0,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._view(self._live.close)
        for sink in self._sinks:
            sink.close()
        if self._options.trace is not None:
            self._write_trace(self._options.trace)

    def know_steps(self, steps: int) -> None:
        """Hear how many steps the run has, once it is known what the data hold."""
        if self._live is not None:
            self._live.total_steps = steps

    def line(self, text: str) -> None:
        """Print a line of a rank's, from any thread."""
        if self._live is not None:
            self._view(partial(self._live.print, text))
        else:
            self._view(partial(print, printable(text), file=self._stream, flush=True))

    def _view(self, show: Callable[[], object]) -> None:
        """Show something while there is somebody to see it: a run does not end with its terminal, or with a pipe."""
        with self._lock:
            if not self._is_seen:
                return
            try:
                show()
            except OSError:
                self._is_seen = False

    def poll(self) -> None:
        """Take in what ranks have told since the last time."""
        entries: list[Entry] = [*self._follower.poll(), *self._follower.take_others()]
        for entry in sorted(entries, key=attrgetter("after_steps")):  # a validation follows the step before it
            for sink in self._sinks:
                sink.add(entry)
            if isinstance(entry, RankTables):
                self.tables = entry
                continue
            if self._live is not None:
                self._view(partial(self._live.add, entry))
            if isinstance(entry, StepReport):
                self.last_loss = entry.loss_words or self.last_loss
                self._summary.add(entry)
                if len(self._reports) < _REPORTS_TRACED:
                    self._reports.append(entry)

    def summary(self) -> RunSummary | None:
        """Return what was measured, None before the first step."""
        return self._summary.summary(self._follower.starts)

    @property
    def plan(self) -> Plan:
        """Return the plan of the run."""
        return self._prepared.plan

    @property
    def is_as_planned(self) -> bool:
        """Tell whether mode, precision, replicas, schedule and batch are the plan's, so that times can be compared."""
        plan, layout = self._prepared.plan, self._prepared.layout
        widths = [len(layout.ranks_of(stage.index)) for stage in plan.stages]
        return (
            layout.training == (plan.request.mode == "training")
            and self._prepared.precision == plan.request.precision
            and widths == [stage.replicas for stage in plan.stages]
            and layout.schedule == plan.schedule.name
            and layout.micro_batches == plan.schedule.micro_batches
            and layout.batch == plan.batch
            and not (self._options.speeds and any(stage.mixed for stage in plan.stages))
        )

    @property
    def shared_step_s(self) -> float:
        """Return what a step takes at least where ranks share the cores of this machine; 0 where they do not."""
        if len({start.machine for start in self._follower.starts.values()}) != 1:
            return 0.0
        return step_sharing_cores(self._prepared, self._options, usable_cores())

    def difference_lines(self, summary: RunSummary) -> list[str]:
        """Return why steps took another time than the plan says; nothing for a run that is not as planned."""
        plan, mean = self.plan, summary.mean
        if mean is None or not self.is_as_planned:
            return []
        _, promised = reading_of_runs(plan)
        planned_s = plan.batch / promised.throughput_samples_per_s if promised.throughput_samples_per_s > 0 else 0.0
        difference = plan_difference(plan, planned_s, mean)
        if difference is None:
            return []
        machines = {start.machine for start in self._follower.starts.values()}
        sharing = sharing_words(self._prepared, self._options, usable_cores()) if len(machines) == 1 else ""
        return difference_lines(plan, mean, difference, sharing)

    @contextmanager
    def following(self, collector: TelemetryCollector) -> Iterator[None]:
        """Take in what ranks tell while a block runs, from a thread; ``collector`` brings it from other machines."""
        over = threading.Event()

        def follow() -> None:
            while not over.wait(_POLL_S):
                collector.collect()
                self.poll()

        thread = threading.Thread(target=follow, name="show", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            collector.collect()
            self.poll()

    def _write_trace(self, path: str) -> None:
        from heterps_compile.runtime.telemetry.measured_trace import measured_trace  # noqa: PLC0415 - only where asked for

        spans = self._follower.spans
        traced = {span.step for span in spans}
        reports = [report for report in self._reports if report.step in traced]
        text = measured_trace(self._prepared.plan, self._follower.starts, spans, reports)
        try:
            Path(path).write_text(text, "utf-8")
        except OSError as error:
            raise RunError(f"cannot write the trace {path!r}: {error.strerror}") from error


def clear_telemetry(folder: Path) -> None:
    """Make the folder that ranks write to, without what an earlier run left in it.

    Raises:
        RunError: where it cannot be made or cleared.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("rank-*.jsonl"):
            old.unlink()
    except OSError as error:
        raise RunError(f"cannot use {str(folder)!r} for telemetry: {error.strerror}") from error


def _try_writing(path: str) -> None:
    try:
        with open(path, "a", encoding="utf-8"):
            pass
    except OSError as error:
        raise RunError(f"cannot write the trace {path!r}: {error.strerror}") from error


def result_lines(result: Result, last_loss: str) -> list[str]:
    """Return in words what was done."""
    done = result.steps - result.first_step
    lines = [f"{done:,} steps, {done * result.batch - result.filled:,} samples"]
    if result.first_step:
        lines[0] += f", after the {result.first_step:,} steps of the checkpoint"
        if not done and not result.stopped_by and not result.stopped_after:
            lines[0] += ": all that were asked for are done"
    if result.skipped:
        skipped = counted(result.skipped, "step")
        lines.append(f"{skipped} skipped: gradients were not finite in float16, and the loss scale was halved")
    changes = [(result.restarts, "restart", " after a failed process"), (result.resizes, "resize", "")]
    lines += [f"{counted(count, what)}{why}" for count, what, why in changes if count]
    if last_loss:
        lines.append(f"last loss {last_loss}")
    if result.stopped_by:
        when = f"after {result.steps:,} steps" if done else "before a step was done"
        why = ", for other widths," if result.stopped_by == RESIZED_BY else ""
        lines.append(f"stopped by {signal.Signals(result.stopped_by).name}{why} {when}")
    if result.validations:
        last = metric_words(result.validations[-1].metrics)
        lines.append(f"{counted(len(result.validations), 'validation')}, the last: {last}")
    if result.stopped_after:
        without = counted(result.stopped_after, "validation")
        lines.append(f"ended by --stop-after: {without} without a better one after step {result.best_step:,}")
    if result.best_checkpoint:
        lines.append(f"best checkpoint {printable(result.best_checkpoint)}")
    if result.checkpoint:
        go_on = "; go on with --resume" if result.stopped_by not in (0, RESIZED_BY) else ""
        lines.append(f"checkpoint {printable(result.checkpoint)}{go_on}")
    return lines


def print_summary(console: Console, result: Result, show: RunReport) -> None:
    """Print the end of a run; where nobody reads it any more, the run is over all the same."""
    with console.capture() as captured:
        _print(console, result, show)
    try:
        console.file.write(captured.get())
        console.file.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, console.file.fileno())  # what is left in the buffer goes there
        os.close(nowhere)


def _print(console: Console, result: Result, show: RunReport) -> None:
    for line in result_lines(result, show.last_loss):
        console.print(Text(line), soft_wrap=True)
    for line in () if show.tables is None else table_lines(show.tables):
        console.print(Text(line), soft_wrap=True)
    summary = show.summary()
    if summary is None:
        return
    planned = comparison_table(show.plan, summary, as_planned=show.is_as_planned, shared_step_s=show.shared_step_s)
    console.print(planned)
    for line in (*show.difference_lines(summary), *summary_lines(summary)):
        console.print(Text(line), soft_wrap=True)
