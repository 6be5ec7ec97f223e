"""The recorder of one rank: what the engine tells it is added up, and written as one line a step.

It runs between the actions of a step, on the thread that computes, so it does little: an addition and an append for
every call, one line of JSON a step, and a look at the memory a few times a second (``tools/bench_runtime_telemetry.py``
measures what that costs).

Left out: progress for the watch over hanging ranks (``runtime/launch``), which has a recorder of its own.
"""

import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from heterps_compile.runtime.pipeline.recorder import LateLosses, StepResult, numbers_of
from heterps_compile.schedule.order import Phase

from .events import (
    Event,
    Ran,
    RankSpans,
    RankStart,
    RankStep,
    RankTables,
    RankValidation,
    Received,
    Waited,
    to_line,
    writing,
)
from .process_memory import MemoryUse, machine_name, memory_use

FILE_NAME = "rank-{rank:04d}.jsonl"
"""Of a rank's lines in the telemetry folder of a run."""

Measure = Callable[[], Mapping[str, Any]]
"""Returns fields of a step's line, by name."""

_MEMORY_EVERY_S = 0.25


def rank_starts(rank: int, *, position: int, replica: int, stages: tuple[int, ...]) -> RankStart:
    """Return that a rank begins now, in this process.

    Args:
        rank: Number of the rank.
        position: Its place in the pipeline; -1 for a server of tables.
        replica: Of that position.
        stages: That it runs.
    """
    clocks = time.perf_counter(), time.time()
    return RankStart(rank, position, replica, stages, machine_name(), os.getpid(), *clocks)


class TelemetryRecorder:
    """Writes what one rank does into ``<directory>/rank-NNNN.jsonl``; a :class:`Recorder` of the pipeline.

    Attributes:
        measures: Each returns further fields of a step's line, by name; called once a step.
    """

    def __init__(
        self,
        directory: Path,
        start: RankStart,
        *,
        trace_steps: range = range(0),
        gpu_index: int | None = None,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """Open the file.

        Args:
            directory: That all ranks of the run share; made where there is none.
            start: Which rank it is; the first line.
            trace_steps: Steps whose actions, messages and waits are written one by one.
            gpu_index: Of its CUDA device, None without one.
            cpu_clock: Seconds of CPU that the rank has used, by all its threads.

        Raises:
            RunError: where the file cannot be written.
        """
        self.measures: list[Measure] = []
        self._rank = start.rank
        self._trace_steps = trace_steps
        self._gpu = gpu_index
        self._cpu_clock = cpu_clock
        self._memory = MemoryUse(0, 0, 0, 0)
        self._memory_due_s = 0.0
        self._untold: deque[tuple[RankStep, LateLosses | None]] = deque()
        self._reset()
        path = directory / FILE_NAME.format(rank=start.rank)
        self._what = f"the telemetry {os.fspath(path)!r}"
        with writing(self._what):
            directory.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("w", encoding="ascii")
        self._write(start)

    def begin(self, step: int, stage: int, micro_batch: int, phase: Phase) -> None:
        """Note that an action begins."""
        self._is_inside = True
        self._inside_s = 0.0
        self._cpu_began_s = self._cpu_clock()

    def end(self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float) -> None:  # noqa: PLR0917 - the engine's
        """Note that an action ended; what it waited for inside is no computation."""
        is_forward = phase is Phase.FORWARD
        computed_s = ended_s - began_s - self._inside_s
        (self._forward_s if is_forward else self._backward_s)[stage] += computed_s
        if self._gpu is None:
            self._cpu_s[stage] += min(computed_s, self._cpu_clock() - self._cpu_began_s)
        self._micro_batches += is_forward
        self._is_inside = False
        self._count += 1
        if step in self._trace_steps:
            self._ran.append(Ran(stage, micro_batch, phase.value, began_s, ended_s))

    def message(self, step: int, source: int, target: int, size_bytes: int, began_s: float, ended_s: float) -> None:  # noqa: PLR0917 - the engine's
        """Note a message that came in, for the action that runs or comes next."""
        self._received_bytes[source] += size_bytes
        self._messages += 1
        if step in self._trace_steps:
            self._received.append(Received(source, size_bytes, began_s, ended_s, self._count))

    def waited(self, step: int, what: str, began_s: float, ended_s: float) -> None:
        """Note a wait."""
        self._wait_s[what] += ended_s - began_s
        if self._is_inside:
            self._inside_s += ended_s - began_s
        if step in self._trace_steps:
            self._waits.append(Waited(what, began_s, ended_s))

    def step_done(self, step: int, samples: int, result: StepResult, began_s: float, ended_s: float) -> None:
        """Write the step, once its losses are there.

        Raises:
            RunError: where it cannot be written.
        """
        if ended_s >= self._memory_due_s:
            self._memory = memory_use(self._gpu)
            self._memory_due_s = ended_s + _MEMORY_EVERY_S
        measured: dict[str, Any] = {}
        for measure in self.measures:
            measured |= measure()
        if step in self._trace_steps:
            self._write(RankSpans(self._rank, step, tuple(self._ran), tuple(self._received), tuple(self._waits)))
        self._untold.append(
            (
                RankStep(
                    rank=self._rank,
                    step=step,
                    began_s=began_s,
                    ended_s=ended_s,
                    samples=samples,
                    forward_s=self._forward_s,
                    backward_s=self._backward_s,
                    cpu_s=self._cpu_s,
                    micro_batches=self._micro_batches,
                    wait_s=self._wait_s,
                    received_bytes=self._received_bytes,
                    messages=self._messages,
                    between_s=self._between_s,
                    **self._memory._asdict(),
                    **numbers_of(result),
                    **measured,
                ),
                result.late,
            )
        )
        self._tell()
        self._reset()

    @contextmanager
    def between(self, what: str) -> Iterator[None]:
        """Note what the rank does in a block between two steps; it is told with the step that follows."""
        began_s = time.perf_counter()
        yield
        self._between_s[what] += time.perf_counter() - began_s

    def tell(self, event: RankValidation | RankTables) -> None:
        """Write a validation, or what tables hold.

        Raises:
            RunError: where it cannot be written.
        """
        self._tell()
        self._write(event)

    def close(self) -> None:
        """Close the file; steps whose losses never came are told without them.

        Raises:
            RunError: where what is left cannot be written.
        """
        self._tell()
        while self._untold:
            self._write(self._untold.popleft()[0])
        with writing(self._what):
            self._file.close()

    def _tell(self) -> None:
        """Write the steps whose losses are there, in their order."""
        while self._untold:
            step, late = self._untold[0]
            if late is not None:
                if not late.are_known:
                    return
                with suppress(RuntimeError):  # of a group that broke, which whoever sums next tells
                    loss, losses = late.means()
                    step = replace(step, loss=loss, losses=losses)
            self._untold.popleft()
            self._write(step)

    def _reset(self) -> None:
        self._between_s: dict[str, float] = defaultdict(float)
        self._forward_s: dict[int, float] = defaultdict(float)
        self._backward_s: dict[int, float] = defaultdict(float)
        self._cpu_s: dict[int, float] = defaultdict(float)
        self._wait_s: dict[str, float] = defaultdict(float)
        self._received_bytes: dict[int, int] = defaultdict(int)
        self._micro_batches = self._messages = self._count = 0
        self._is_inside = False
        self._inside_s = 0.0
        self._ran: list[Ran] = []
        self._received: list[Received] = []
        self._waits: list[Waited] = []

    def _write(self, event: Event) -> None:
        with writing(self._what):
            self._file.write(to_line(event))
            self._file.flush()  # the launcher shows it while the run goes on
