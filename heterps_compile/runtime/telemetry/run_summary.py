"""A run in a few numbers, beside those that its plan promised.

Medians over the steps, so that a slow one (the first, a checkpoint) does not count for more than it is: of the last
``STEPS_KEPT`` steps, the first ``WARM_UP_STEPS`` left out where there are more.

Left out: why they differ (``plan_difference.py``).
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, plain_table
from heterps_compile.escape import printable, shorten
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, Estimate
from heterps_compile.schedule.zero_bubble import backward_factor
from heterps_compile.units import counted, format_bytes, format_rate, format_seconds, format_share

from .events import RankStart, RankTables
from .plan_difference import MeanStep, are_cores_taken, mean_step
from .step_report import StepReport, stage_link_bytes

WARM_UP_STEPS = 2
STEPS_KEPT = 1_000

_LONGEST_NAME = 24
_STEP = "step"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a run measured.

    Attributes:
        steps: That were counted.
        samples: Of one step.
        step_s: Median time of a step.
        pace_s: Median time from step to step, with what lies between them.
        bubble: Median share of the ranks' time in which they do not compute.
        stage_s: Per stage, the median time its ranks computed in a step.
        cpu_s: Per stage, the median CPU time of that; empty on GPUs.
        wait_s: Mean time of a rank and step that was spent waiting, by what for.
        link_bytes: Of a step, between positions of the pipeline.
        peak_rss_bytes: Of every rank's process.
        peak_gpu_bytes: Of every rank's GPU.
        mean: Of those that had one before them; None where there was none.
    """

    steps: int
    samples: int
    step_s: float
    pace_s: float
    bubble: float
    stage_s: Mapping[int, float]
    wait_s: Mapping[str, float]
    link_bytes: Mapping[tuple[int, int], int]
    peak_rss_bytes: Mapping[int, int]
    peak_gpu_bytes: Mapping[int, int]
    mean: MeanStep | None = None
    cpu_s: Mapping[int, float] = field(default_factory=dict)

    def is_taken(self, stage: int) -> bool:
        """Check if other processes took the cores of a stage."""
        return are_cores_taken(self.stage_s[stage], self.cpu_s.get(stage, 0.0))

    @property
    def samples_per_s(self) -> float:
        """Return the throughput: the samples of a step over the median time from step to step."""
        return self.samples / self.pace_s if self.pace_s > 0 else 0.0


class SummaryOfSteps:
    """Takes in steps and gives the summary of those so far."""

    def __init__(self) -> None:
        self._early: list[StepReport] = []
        self._kept: deque[StepReport] = deque(maxlen=STEPS_KEPT)

    def add(self, report: StepReport) -> None:
        """Take in a step."""
        (self._early if len(self._early) < WARM_UP_STEPS else self._kept).append(report)

    def summary(self, starts: Mapping[int, RankStart]) -> RunSummary | None:
        """Return the summary, None before the first step."""
        counted = list(self._kept) or self._early
        if not counted:
            return None
        last, waits_s = counted[-1], [step.wait_s for step in counted]
        whats = dict.fromkeys(what for wait_s in waits_s for what in wait_s)
        return RunSummary(
            steps=len(counted),
            samples=last.samples,
            step_s=median(step.step_s for step in counted),
            pace_s=median(step.pace_s for step in counted),
            bubble=median(step.bubble for step in counted),
            stage_s={stage: median(step.stage_s.get(stage, 0.0) for step in counted) for stage in last.stage_s},
            wait_s={what: sum(wait_s.get(what, 0.0) for wait_s in waits_s) / len(counted) for what in whats},
            link_bytes=stage_link_bytes(starts, last.link_bytes),
            peak_rss_bytes={rank.rank: rank.peak_rss_bytes for rank in last.ranks},
            peak_gpu_bytes={rank.rank: rank.peak_gpu_bytes for rank in last.ranks},
            mean=mean_step(starts, list(self._kept)),
            cpu_s={stage: median(step.cpu_s.get(stage, 0.0) for step in counted) for stage in last.cpu_s},
        )


def comparison_table(plan: Plan, summary: RunSummary, *, as_planned: bool, shared_step_s: float = 0.0) -> Table:
    """Draw measured numbers beside the plan's.

    Args:
        plan: What was promised.
        summary: What was measured.
        as_planned: Whether replicas, schedule, micro-batches and batch were the plan's; without that its times of a
            step are of something else, and are not shown.
        shared_step_s: What a step takes where ranks share this machine's cores; 0 where they do not.
    """
    table = plain_table()
    add_text(table, "")
    add_numbers(table, "planned", "measured", "measured / planned")
    for what, planned, measured, show in _rows(plan, summary):
        is_known = as_planned and planned > 0
        ratio = f"{measured / planned:.2f}" if is_known else "-"
        table.add_row(Text(what), Text(show(planned) if as_planned else "-"), Text(show(measured)), Text(ratio))
        if what.startswith(_STEP) and shared_step_s > 0:
            ratio = f"{measured / shared_step_s:.2f}"
            table.add_row(Text("  ranks sharing cores"), Text(show(shared_step_s)), Text(show(measured)), Text(ratio))
    return table


def summary_lines(summary: RunSummary) -> list[str]:
    """Return in words what has no counterpart in a plan: waits, messages, memory of whole processes."""
    lines = [f"median of {summary.steps:,} steps of {summary.samples:,} samples"]
    for stage, cpu_s in summary.cpu_s.items():
        taken = ": the cores were taken, so its CPU time is compared with the plan" if summary.is_taken(stage) else ""
        wall, cpu = format_seconds(summary.stage_s[stage]), format_seconds(cpu_s)
        lines.append(f"stage {stage} computed {wall} wall, {cpu} of CPU a step{taken}")
    between_s = summary.pace_s - summary.step_s
    if between_s > 0:
        lines.append(f"between two steps: {format_seconds(between_s)} (optimizer, checkpoints)")
    waits = {what: time_s for what, time_s in summary.wait_s.items() if time_s > 0}
    if waits:
        longest = sorted(waits, key=lambda what: -waits[what])
        parts = ", ".join(f"{printable(what)} {format_seconds(waits[what])}" for what in longest)
        lines.append(f"waiting of a rank in a step: {parts}")
    for (source, target), size_bytes in sorted(summary.link_bytes.items()):
        lines.append(f"{place_name(source)} to {place_name(target)}: {format_bytes(size_bytes)} a step")
    peaks = sorted(summary.peak_rss_bytes.items())
    lines.append("memory at most: " + ", ".join(f"rank {rank} {format_bytes(size)}" for rank, size in peaks))
    gpus = [(rank, size) for rank, size in sorted(summary.peak_gpu_bytes.items()) if size]
    if gpus:
        lines.append("GPU memory at most: " + ", ".join(f"rank {rank} {format_bytes(size)}" for rank, size in gpus))
    return lines


def table_lines(tables: RankTables) -> list[str]:
    """Return in words what tables on parameter servers hold."""
    size, servers = format_bytes(tables.size_bytes), counted(tables.servers, "parameter server")
    lines = [f"tables on {servers}: {size} of rows and the state of their optimizer"]
    for name, of in tables.tables.items():
        waiting = f", of which {of['waiting']:,} wait to be admitted" if of["waiting"] else ""
        lines.append(
            f"table {printable(repr(name))}: {of['rows']:,} rows{waiting}; {of['new']:,} new and {of['evicted']:,} "
            f"evicted since the run began"
        )
    return lines


def place_name(position: int) -> str:
    """Return the name of a place in the pipeline."""
    return "servers" if position < 0 else f"position {position}"


def reading_of_runs(plan: Plan) -> tuple[str, Estimate]:
    """Return what of a plan its runs are held against, and its name.

    Steps of inference overlap, as batches do in the steady state; those of training end with the update.
    """
    if plan.request.mode == "training":
        return ONE_BATCH_ALONE, plan.readings.one_batch_alone
    return STEADY_STATE, plan.readings.steady_state


def _rows(plan: Plan, summary: RunSummary) -> list[tuple[str, float, float, Callable[[float], str]]]:
    name, planned = reading_of_runs(plan)
    rows = [
        (f"throughput, {name}", planned.throughput_samples_per_s, summary.samples_per_s, format_rate),
        (f"{_STEP}, {name}", planned.batch_s, summary.pace_s, format_seconds),  # both with the update
        (f"bubble, {name}", planned.bubble, summary.bubble, format_share),
    ]
    for stage, time_s in summary.stage_s.items():
        device = shorten(printable(plan.stages[stage].device_words), _LONGEST_NAME)
        computed_s = summary.cpu_s[stage] if summary.is_taken(stage) else time_s
        rows.append((f"stage {stage} ({device})", _stage_s(plan, stage), computed_s, format_seconds))
    return rows


def _stage_s(plan: Plan, index: int) -> float:
    """Return what one replica of a stage was promised to take in a step: its part of the micro-batches."""
    stage = plan.stages[index]
    factor = backward_factor(plan.schedule.name, index)
    micro_batch_s = stage.micro_batch(plan.schedule.micro_batches).worked_s(factor)
    return micro_batch_s * plan.schedule.micro_batches / stage.replicas if micro_batch_s else stage.time_s
