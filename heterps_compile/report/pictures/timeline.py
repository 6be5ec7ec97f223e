"""A simulated step as pictures: who works on which micro-batch when, and what every device holds meanwhile.

A stage of many replicas shows the first ones; what is left out is said. Where a row would have more pieces than pixels
can tell apart, neighbours of one kind are drawn as one.

Left out: the trace for Perfetto, which has everything (``simulation/chrome_trace.py``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.stage_sync import own_words, rule_name
from heterps_compile.schedule.order import Phase
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, alone_words
from heterps_compile.schedule.simulate import ALL_REDUCE, PULL, PUSH, UPDATE, Around, Span, worker_spans
from heterps_compile.simulation.plan_steps import Step
from heterps_compile.units import counted, format_bytes, format_seconds, format_share

from .svg import WIDTH, Picture, device_classes, legend, line, listed, picture, rect, text, ticks, titled
from .text_width import SMALL, fitting, text_width

_LEFT, _NARROW_LEFT, _RIGHT = 170.0, 102.0, 24.0
_ROW, _SPACE = 22.0, 6.0
_MOST_ROWS = 40
_MOST_PIECES = 4000  # in the whole picture
_DIGIT = 7.0  # pixels of one
_COLOUR = {Phase.FORWARD: "p0", Phase.BACKWARD: "p1", Phase.WEIGHT: "p2"}
_ALL_REDUCE = "p3"
_ROWS = "p4"
_WORDS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.WEIGHT: "gradients of weights"}


@dataclass(frozen=True, slots=True)
class _Clock:
    """Where a time is drawn, and below what."""

    step_s: float
    width: float
    top: float

    @property
    def left(self) -> float:
        return _LEFT if self.width >= WIDTH else _NARROW_LEFT

    @property
    def scale(self) -> float:
        """Return pixels a second."""
        return (self.width - self.left - _RIGHT) / self.step_s if self.step_s > 0 else 0.0

    def x(self, time_s: float) -> float:
        return self.left + time_s * self.scale


def timeline(plan: Plan, step: Step, *, width: float = WIDTH) -> Picture:
    """Draw who runs what when: a row a replica, a piece an action."""
    rows = _rows(step)
    parts, top = _legend(plan, step, width)
    clock = _Clock(step.step_s, width, top)
    bottom = top + len(rows) * (_ROW + _SPACE)
    parts += _axis(clock, bottom)
    spans = worker_spans(step.timeline)
    room = max(20, _MOST_PIECES // max(1, len(rows)))
    colours = device_classes(stage.device_words for stage in plan.stages)
    for index, worker in enumerate(rows):
        y = top + index * (_ROW + _SPACE)
        stage, replica = worker
        number = f"{stage}" if step.timeline.replicas[stage] == 1 else f"{stage}.{replica}"
        parts += _label(plan, number, stage, y, colours, clock)
        own = spans[worker]
        parts += _pieces(own, y, clock) if len(own) <= room else _blocks(own, y, clock)
        parts += [_around(plan, each, y, clock) for each in step.timeline.around if each.stage == stage]
    more, height = listed([*_takes(plan, step), *_left_out(step, rows)], width, bottom + 24)
    return picture("timeline", "Timeline", height + 6, [*parts, *more], about=_summary(plan, step), width=width)


def memory_over_time(plan: Plan, step: Step, *, width: float = WIDTH) -> Picture:
    """Draw what one replica of every stage holds while the step runs: an area a stage, all on one scale."""
    points = dict(step.bytes_over_time())
    rows = [(stage, 0) for stage in range(len(plan.stages))][:_MOST_ROWS]
    height = 40.0
    most = max((size for worker in rows for _, size in points[worker]), default=0.0) or 1.0
    parts, top = legend([("", f"one scale for all, {format_bytes(most)} high")], width)
    bottom = top + len(rows) * (height + 12)
    clock = _Clock(step.step_s, width, top)
    parts += _axis(clock, bottom)
    colours = device_classes(stage.device_words for stage in plan.stages)
    for index, worker in enumerate(rows):
        base = top + index * (height + 12) + height
        colour = colours[plan.stages[worker[0]].device_words]
        parts += _label(plan, f"{worker[0]}", worker[0], base - 36, colours, clock)
        peak = max(size for _, size in points[worker])
        parts.append(text(30, base - 5, fitting(format_bytes(peak), clock.left - 36, SMALL), "soft small"))
        path = f"M{clock.left:.1f} {base:.1f}"
        for time_s, size in _thinned(points[worker], step.step_s):
            path += f"H{clock.x(time_s):.1f}V{base - size / most * height:.1f}"
        path += f"H{clock.x(step.step_s):.1f}V{base:.1f}Z"
        parts.append(f'<path class="d{colour}" d="{path}"/>')
    end = bottom + 30
    if len(plan.stages) > len(rows):
        parts.append(text(12, end + 8, f"{len(plan.stages) - len(rows)} more stages are not drawn", "soft"))
        end += 20
    title = "Memory of the first replica of every stage over the same time"
    return picture("memory-over-time", title, end, parts, width=width)


def _summary(plan: Plan, step: Step) -> str:
    """Say what is drawn; of several batches, that begin in an empty pipeline, neither reading is, so both are told."""
    count = counted(step.micro_batches, "micro-batch")
    if step.steps == 1:
        return f"{ONE_BATCH_ALONE}, {step.schedule}, {count}, {alone_words(step.estimate)}"
    steady, alone = plan.readings.steady_state, plan.readings.one_batch_alone
    return (
        f"the first {step.steps} batches, {count} each; bubble {format_share(steady.bubble)} in the {STEADY_STATE}, "
        f"{format_share(alone.bubble)} of {ONE_BATCH_ALONE}"
    )


def _rows(step: Step) -> list[tuple[int, int]]:
    """Return the (stage, replica) pairs that are drawn: as many busy replicas of every stage as there is room for."""
    counts = _busy(step)
    each = max(counts, default=1)
    while each > 1 and sum(min(each, count) for count in counts) > _MOST_ROWS:
        each -= 1
    rows = [(stage, replica) for stage, count in enumerate(counts) for replica in range(min(each, count))]
    return rows[:_MOST_ROWS]


def _busy(step: Step) -> list[int]:
    """Return how many replicas of every stage have a micro-batch."""
    workers = {(span.action.stage, span.replica) for span in step.timeline.spans}
    return [max(1, sum((i, r) in workers for r in range(count))) for i, count in enumerate(step.timeline.replicas)]


def _takes(plan: Plan, step: Step) -> Iterator[str]:
    """Say what a micro-batch takes in every stage."""
    found: dict[int, dict[Phase, list[float]]] = {}
    for span in step.timeline.spans:
        found.setdefault(span.action.stage, {}).setdefault(span.action.phase, []).append(span.end_s - span.start_s)
    sums: dict[int, str] = {}
    for each in step.timeline.around:
        stage, took = plan.stages[each.stage], format_seconds(each.end_s - each.start_s)
        words = {ALL_REDUCE: f"{rule_name(stage)} {took}", UPDATE: own_words(stage)}.get(
            each.kind, f"{each.kind} {took}"
        )
        sums[each.stage] = f"{sums.get(each.stage, '')}, {words}"
    for number, phases in sorted(found.items())[:_MOST_ROWS]:
        words = ", ".join(f"{_WORDS[phase]} {_from_to(times_s)}" for phase, times_s in phases.items())
        yield f"stage {number}: {words}{sums.get(number, '')}"


def _from_to(times_s: Sequence[float]) -> str:
    least, most = format_seconds(min(times_s)), format_seconds(max(times_s))
    return least if least == most else f"{least} to {most}"


def _left_out(step: Step, rows: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Say which rows are missing, and why."""
    busy = sum(_busy(step))
    if idle := sum(step.timeline.replicas) - busy:
        yield f"{counted(idle, 'more replica')} without a micro-batch"
    if missing := busy - len(rows):
        yield f"{counted(missing, 'more replica')} not drawn; the trace has all"


def _legend(plan: Plan, step: Step, width: float) -> tuple[list[str], float]:
    phases = dict.fromkeys(span.action.phase for span in step.timeline.spans)
    chunks = "; paler: a later chunk of the stage" if step.timeline.chunks > 1 else ""
    told = f"numbers are micro-batches{chunks}; what one takes stands below"
    around = step.timeline.around
    kinds = {each.kind for each in around}
    agreement = dict.fromkeys(_agreement(plan.stages[each.stage]) for each in around if each.kind == ALL_REDUCE)
    sums = [(_ALL_REDUCE, " or ".join(agreement))] if agreement else []
    paler = "a paler one: the optimizer's step, and what rules take the processor"
    sums += [(_ALL_REDUCE if not agreement else "", paler)] if UPDATE in kinds else []
    rows = [(_ROWS, "rows from servers, their gradients to servers")] if kinds & {PULL, PUSH} else []
    items = [*((_COLOUR[phase], _WORDS[phase]) for phase in phases), *sums, *rows, ("", told)]
    return legend(items, width)


def _axis(clock: _Clock, bottom: float) -> Iterator[str]:
    most = 6 if clock.width >= WIDTH else 3
    last = format_seconds(clock.step_s)
    free = clock.width - 16 - text_width(last, SMALL)  # left of the end, which is always told
    for time_s in ticks(clock.step_s, most):
        x, words = clock.x(time_s), format_seconds(time_s)
        yield line(x, clock.top - 4, x, bottom, "grid")
        if x + text_width(words, SMALL) / 2 < free:
            yield text(x, bottom + 16, words, "soft small", "middle")
    end = clock.x(clock.step_s)
    yield line(end, clock.top - 4, end, bottom, "grid")
    yield text(clock.width - 8, bottom + 16, last, "ink small", "end")


def _label(  # noqa: PLR0917 - whose row, where
    plan: Plan, number: str, stage: int, y: float, colours: dict[str, int], clock: _Clock
) -> list[str]:
    device = plan.stages[stage].device_words
    words = f"stage {number} {device}" if clock.width >= WIDTH else f"stage {number}"
    shown = fitting(words, clock.left - 38)
    return [rect(12, y + 4, 12, 12, f"d{colours[device]}", ' rx="3"'), text(30, y + 15, shown)]


def _pieces(spans: Sequence[Span], y: float, clock: _Clock) -> Iterator[str]:
    for span in spans:
        action = span.action
        x, width = clock.x(span.start_s), (span.end_s - span.start_s) * clock.scale
        took = format_seconds(span.end_s - span.start_s)
        title = f"{_WORDS[action.phase]} of micro-batch {action.micro_batch}, {took}"
        paler = ' fill-opacity=".6"' if action.chunk else ""
        inner = max(width - 0.8, 0.4)
        shape = rect(x, y, inner, _ROW, _COLOUR[action.phase], f' rx="{min(3.0, inner / 3):.1f}"{paler}')
        yield titled(shape, title)
        number = str(action.micro_batch)
        if width >= _DIGIT * len(number) + 3:
            yield text(x + width / 2, y + 15, number, "small paper", "middle")


def _around(plan: Plan, each: Around, y: float, clock: _Clock) -> str:
    """Draw what a stage does before its first action or behind its last."""
    words, colour, paler = _agreement(plan.stages[each.stage]), _ALL_REDUCE, ""
    if each.kind == UPDATE:
        words, paler = own_words(plan.stages[each.stage]), ' fill-opacity=".5"'
    if each.kind in (PULL, PUSH):
        words, colour = "push of gradients to servers" if each.kind == PUSH else "pull of rows from servers", _ROWS
    width = max((each.end_s - each.start_s) * clock.scale - 0.8, 0.4)
    shape = rect(clock.x(each.start_s), y, width, _ROW, colour, f' rx="{min(3.0, width / 3):.1f}"{paler}')
    return titled(shape, words if paler else f"{words}, {format_seconds(each.end_s - each.start_s)}")


def _agreement(stage: PlannedStage) -> str:
    """Say how the replicas of a stage agree."""
    return "all-reduce of gradients" if stage.sync is None else stage.sync.rule


def _blocks(spans: Sequence[Span], y: float, clock: _Clock) -> Iterator[str]:
    """Draw runs of neighbours of one phase as one piece."""
    first = 0
    for i in range(1, len(spans) + 1):
        ends = i == len(spans) or spans[i].action.phase is not spans[first].action.phase
        if ends or (spans[i].start_s - spans[i - 1].end_s) * clock.scale > 1:
            start, end = spans[first].start_s, spans[i - 1].end_s
            title = f"{_WORDS[spans[first].action.phase]} of {i - first} micro-batches"
            width = max((end - start) * clock.scale, 0.4)
            yield titled(rect(clock.x(start), y, width, _ROW, _COLOUR[spans[first].action.phase]), title)
            first = i


def _thinned(points: Sequence[tuple[float, float]], step_s: float) -> Iterator[tuple[float, float]]:
    """Leave out changes that fall on the pixel of a higher one."""
    pixel_s = step_s / (WIDTH - _LEFT - _RIGHT)  # of the wider picture
    kept: tuple[float, float] | None = None
    for time_s, size in points:
        if kept is not None and time_s - kept[0] < pixel_s / 2:
            kept = (kept[0], max(kept[1], size))
            continue
        if kept is not None:
            yield kept
        kept = (time_s, size)
    if kept is not None:
        yield kept
