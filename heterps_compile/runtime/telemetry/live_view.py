"""A run as it goes: a table that is drawn anew on a terminal, and plain lines now and then where there is none.

Left out: keys, colours that mean something, anything that a log or trace tells better.
"""

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from heterps_compile.escape import printable, shorten
from heterps_compile.runtime.validation.result import metric_words
from heterps_compile.units import format_bytes, format_rate, format_seconds

from .events import RankStart, RankStep, RankValidation
from .run_summary import WARM_UP_STEPS
from .step_report import StepReport

DRAW_EVERY_S = 0.25
LINE_EVERY_S = 10.0
"""Between two plain lines."""

_STEPS_LOOKED_BACK = 50
_PLAIN_WIDTH = 120
_RANKS_SHOWN = 24
_LONGEST_DEVICE, _SHORTEST_DEVICE = 24, 6
_ROOMY_WIDTH = 100
_WITHOUT_DEVICES = 70  # columns of the rest of the table, with all waits


class LiveView:
    """Shows steps as they come in.

    Attributes:
        total_steps: Of the run, None while that is not known.

    Args:
        stream: Where to.
        starts: Of the ranks, by rank; may fill up while the run goes on.
        devices: Per stage, what the plan has it on.
        total_steps: Of the run, None where it is not known yet.
        planned_per_s: Samples per second that the plan promises; 0 for a run that is not as planned.
        clock: Gives seconds; a test's own.
    """

    def __init__(
        self,
        stream: TextIO,
        starts: Mapping[int, RankStart],
        devices: Mapping[int, str],
        *,
        total_steps: int | None = None,
        planned_per_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total_steps = total_steps
        self._starts, self._devices, self._planned_per_s = starts, devices, planned_per_s
        self._steps_seen = 0
        self._paces_s: deque[float] = deque(maxlen=_STEPS_LOOKED_BACK)
        self._clock = clock
        is_terminal = stream.isatty()
        self._console = _Console(
            file=stream, markup=False, highlight=False, emoji=False, width=None if is_terminal else _PLAIN_WIDTH
        )
        self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
        self._is_terminal = is_terminal and not self._console.is_dumb_terminal
        self._due_s = float("-inf")
        self._last: StepReport | None = None
        self._is_shown = False
        if self._is_terminal:
            self._live.start()

    def add(self, entry: StepReport | RankValidation) -> None:
        """Show a step, unless another was shown a moment ago; a validation above the table."""
        if isinstance(entry, RankValidation):
            self._console.print(Text(validation_line(entry, self.total_steps)), soft_wrap=True)
        else:
            self._add_step(entry)

    def _add_step(self, report: StepReport) -> None:
        self._last, self._is_shown = report, False
        self._steps_seen += 1
        if self._steps_seen > WARM_UP_STEPS:
            self._paces_s.append(report.pace_s)
        if self._clock() >= self._due_s:
            self._show(report)

    def print(self, text: str) -> None:
        """Print a line of the run's own, above the table."""
        self._console.print(Text(printable(text)), soft_wrap=True)

    def close(self) -> None:
        """Show the last step and stop drawing."""
        if self._last is not None and not self._is_shown:
            self._show(self._last)
        self._live.stop()

    def _show(self, report: StepReport) -> None:
        self._is_shown = True
        left_s, planned_per_s = None, self._planned_per_s if self._paces_s else 0.0
        if self.total_steps is not None and self._paces_s:
            left_s = (self.total_steps - report.step - 1) * sum(self._paces_s) / len(self._paces_s)
        line = step_line(report, self.total_steps, planned_per_s=planned_per_s, left_s=left_s)
        if self._is_terminal:
            self._due_s = self._clock() + DRAW_EVERY_S
            table = rank_table(report, self._starts, self._devices, width=self._console.width)
            self._live.update(Group(Text(line), table), refresh=True)
        else:
            self._due_s = self._clock() + LINE_EVERY_S
            self._console.print(Text(line), soft_wrap=True)


class _Console(Console):
    """One that leaves it to its user what happens where nobody reads any more; rich's own ends the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def step_line(
    report: StepReport, total_steps: int | None, *, planned_per_s: float = 0.0, left_s: float | None = None
) -> str:
    """Return a step in one line.

    Args:
        report: Of the step.
        total_steps: Of the run; None where they are not known.
        planned_per_s: Samples per second that the plan promises; 0 where it promises none.
        left_s: How long the rest takes at the pace of late; None where nobody knows.
    """
    of = "" if total_steps is None else f"/{total_steps:,}"
    loss = "" if report.loss is None else f", loss {report.loss_words}"
    rates = ", ".join(f"{rate:.4g}" for rate in dict.fromkeys(report.learning_rates))
    learning = f", learning rate {rates}" if rates else ""
    norm = "" if report.gradient_norm is None else f", gradient norm {report.gradient_norm:.4g}"
    skipped = f", skipped (loss scale {report.loss_scale:g})" if report.is_skipped else ""
    planned = f" ({100 * report.samples_per_s / planned_per_s:.0f} % of the plan's)" if planned_per_s > 0 else ""
    slowest = max(report.stage_s, key=lambda stage: report.stage_s[stage], default=0)
    which = f", stage {slowest} slowest ({format_seconds(report.stage_s[slowest])})" if len(report.stage_s) > 1 else ""
    left = f", {_in_hours(left_s)} left" if left_s else ""
    return (
        f"step {report.step + 1:,}{of}{loss}{learning}{norm}{skipped}, {format_rate(report.samples_per_s)}{planned}, "
        f"{format_seconds(report.pace_s)} a step, bubble {100 * report.bubble:.0f} %{which}{left}"
    )


def _in_hours(time_s: float) -> str:
    """Return a time to wait: ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    seconds = round(time_s)
    minutes, hours = seconds // 60, seconds // 3600
    if hours:
        return f"{hours:,} h {minutes % 60} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"


def validation_line(validation: RankValidation, total_steps: int | None) -> str:
    """Return a validation in one line."""
    of = "" if total_steps is None else f"/{total_steps:,}"
    best = ""
    if validation.best_step is not None and validation.best_value is not None:
        then = f"{validation.best_value:.6g} after step {validation.best_step:,}"
        best = ", the best so far" if validation.is_best else f", the best was {then}"
    return (
        f"validation after step {validation.step:,}{of}: {metric_words(validation.metrics)}{best} "
        f"({validation.samples:,} samples, {format_seconds(validation.time_s)})"
    )


def rank_table(
    report: StepReport, starts: Mapping[int, RankStart], devices: Mapping[int, str], *, width: int = _PLAIN_WIDTH
) -> Table:
    """Draw what every rank did in a step: computing, waiting, receiving, memory.

    Args:
        report: Of the step.
        starts: Of its ranks.
        devices: Per stage, what the plan has it on.
        width: Columns of the terminal; names of devices give way first, and gaps.
    """
    waits = list(report.wait_s)
    longest = min(max(width - _WITHOUT_DEVICES, _SHORTEST_DEVICE), _LONGEST_DEVICE)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 1 if width >= _ROOMY_WIDTH else 0))
    for column in ("rank", "stage", "device"):
        table.add_column(column, no_wrap=True)
    has_gpu = any(rank.peak_gpu_bytes for rank in report.ranks)
    for column in ("busy", *waits, "received", "memory", *(["GPU"] if has_gpu else [])):
        table.add_column(column, justify="right", no_wrap=True)
    for rank in report.ranks[:_RANKS_SHOWN]:
        table.add_row(*map(Text, _cells(rank, starts[rank.rank], devices, waits, longest=longest, has_gpu=has_gpu)))
    if len(report.ranks) > _RANKS_SHOWN:
        table.add_row(Text(f"… {len(report.ranks) - _RANKS_SHOWN} more", style="dim"))
    return table


def _cells(
    rank: RankStep, start: RankStart, devices: Mapping[int, str], waits: list[str], *, longest: int, has_gpu: bool
) -> list[str]:
    def share(time_s: float) -> str:
        return f"{100 * time_s / rank.step_s:.0f} %" if rank.step_s > 0 else "-"

    names = dict.fromkeys(devices.get(stage, "-") for stage in start.stages)
    received = sum(rank.received_bytes.values()) / rank.step_s if rank.step_s > 0 else 0.0
    return [
        str(rank.rank),
        ", ".join(map(str, start.stages)) if start.stages else "servers",
        shorten(printable(", ".join(names)), longest),
        share(rank.busy_s),
        *(share(rank.wait_s.get(what, 0.0)) for what in waits),
        f"{format_bytes(received)}/s",
        format_bytes(rank.rss_bytes),
        *([format_bytes(rank.gpu_bytes)] if has_gpu else []),
    ]
