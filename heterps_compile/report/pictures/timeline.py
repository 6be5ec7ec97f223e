"""A simulated step as pictures: who works on which micro-batch when, and what every device holds meanwhile.

A stage of many replicas shows the first ones; what is left out is said. Where a row would have more pieces than pixels
can tell apart, neighbours of one kind are drawn as one.

Left out: the trace for Perfetto, which has everything (``simulation/chrome_trace.py``).
"""

from collections.abc import Iterator, Sequence

from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.order import Phase
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, alone_words
from heterps_compile.schedule.simulate import Span, worker_spans
from heterps_compile.simulation.plan_steps import Step
from heterps_compile.units import counted, format_bytes, format_seconds, format_share

from .svg import WIDTH, Picture, device_classes, fitting, line, picture, rect, text, ticks, titled

_LEFT, _RIGHT, _TOP = 170.0, 20.0, 48.0
_ROW, _SPACE = 22.0, 6.0
_MOST_ROWS = 40
_MOST_PIECES = 4000  # in the whole picture
_DIGIT = 7.0  # pixels of one
_COLOUR = {Phase.FORWARD: "p0", Phase.BACKWARD: "p1", Phase.WEIGHT: "p2"}
_WORDS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.WEIGHT: "gradients of weights"}


def timeline(plan: Plan, step: Step) -> Picture:
    """Draw who runs what when: a row a replica, a piece an action."""
    rows = _rows(step)
    scale = (WIDTH - _LEFT - _RIGHT) / step.step_s if step.step_s > 0 else 0.0
    bottom = _TOP + len(rows) * (_ROW + _SPACE)
    parts = [*_legend(step), *_axis(step, scale, bottom)]
    spans = worker_spans(step.timeline)
    room = max(20, _MOST_PIECES // max(1, len(rows)))
    colours = device_classes(stage.device for stage in plan.stages)
    for index, worker in enumerate(rows):
        y = _TOP + index * (_ROW + _SPACE)
        parts += _label(plan, step, worker, y, colours)
        own = spans[worker]
        parts += _pieces(own, y, scale) if len(own) <= room else _blocks(own, y, scale)
    height = bottom + 34 + _left_out(parts, step, rows, bottom)
    return picture("timeline", f"Timeline: {_summary(plan, step)}", height, parts)


def memory_over_time(plan: Plan, step: Step) -> Picture:
    """Draw what one replica of every stage holds while the step runs: an area a stage, all on one scale."""
    points = dict(step.bytes_over_time())
    rows = [(stage, 0) for stage in range(len(plan.stages))][:_MOST_ROWS]
    scale = (WIDTH - _LEFT - _RIGHT) / step.step_s if step.step_s > 0 else 0.0
    height = 40.0
    bottom = _TOP + len(rows) * (height + 12)
    most = max((size for worker in rows for _, size in points[worker]), default=0.0) or 1.0
    parts = [text(12, 24, f"one scale for all, {format_bytes(most)} high", "soft"), *_axis(step, scale, bottom)]
    colours = device_classes(stage.device for stage in plan.stages)
    for index, worker in enumerate(rows):
        base = _TOP + index * (height + 12) + height
        colour = colours[plan.stages[worker[0]].device]
        parts += _label(plan, step, worker, base - 30, colours)
        peak = max(size for _, size in points[worker])
        parts.append(text(_LEFT - 12, base - 1, format_bytes(peak), "soft small", "end"))
        path = f"M{_LEFT:.1f} {base:.1f}"
        for time_s, size in _thinned(points[worker], step.step_s):
            path += f"H{_LEFT + time_s * scale:.1f}V{base - size / most * height:.1f}"
        path += f"H{_LEFT + step.step_s * scale:.1f}V{base:.1f}Z"
        parts.append(f'<path class="d{colour}" d="{path}"/>')
    return picture(
        "memory-over-time", "Memory of the first replica of every stage over the same time", bottom + 34, parts
    )


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
    """Return the (stage, replica) pairs that are drawn: as many replicas of every stage as there is room for."""
    counts = step.timeline.replicas
    each = max(counts, default=1)
    while each > 1 and sum(min(each, count) for count in counts) > _MOST_ROWS:
        each -= 1
    rows = [(stage, replica) for stage, count in enumerate(counts) for replica in range(min(each, count))]
    return rows[:_MOST_ROWS]


def _left_out(parts: list[str], step: Step, rows: Sequence[tuple[int, int]], bottom: float) -> float:
    """Say how many rows are missing; return the pixels that takes."""
    missing = sum(step.timeline.replicas) - len(rows)
    if not missing:
        return 0.0
    parts.append(text(_LEFT, bottom + 42, f"{missing} more replicas are not drawn; the trace has them", "soft"))
    return 20.0


def _legend(step: Step) -> Iterator[str]:
    x = 12.0
    for phase in dict.fromkeys(span.action.phase for span in step.timeline.spans):
        yield rect(x, 13, 14, 14, _COLOUR[phase], ' rx="3"')
        yield text(x + 20, 24, _WORDS[phase])
        x += 40 + 6.6 * len(_WORDS[phase])
    chunks = "; paler: a later chunk of the stage" if step.timeline.chunks > 1 else ""
    yield text(x + 6, 24, f"numbers are micro-batches{chunks}", "soft")


def _axis(step: Step, scale: float, bottom: float) -> Iterator[str]:
    for time_s in ticks(step.step_s, 6):
        x = _LEFT + time_s * scale
        yield line(x, _TOP - 8, x, bottom, "grid")
        yield text(x, bottom + 16, format_seconds(time_s), "soft small", "middle")


def _label(plan: Plan, step: Step, worker: tuple[int, int], y: float, colours: dict[str, int]) -> list[str]:
    stage, replica = worker
    device = plan.stages[stage].device
    number = f"stage {stage}" if step.timeline.replicas[stage] == 1 else f"stage {stage}.{replica}"
    words = fitting(f"{number} {device}", _LEFT - 44)
    return [rect(12, y + 4, 12, 12, f"d{colours[device]}", ' rx="3"'), text(30, y + 15, words)]


def _pieces(spans: Sequence[Span], y: float, scale: float) -> Iterator[str]:
    for span in spans:
        action = span.action
        x, width = _LEFT + span.start_s * scale, (span.end_s - span.start_s) * scale
        took = format_seconds(span.end_s - span.start_s)
        title = f"{_WORDS[action.phase]} of micro-batch {action.micro_batch}, {took}"
        paler = ' fill-opacity=".6"' if action.chunk else ""
        inner = max(width - 0.8, 0.4)
        shape = rect(x, y, inner, _ROW, _COLOUR[action.phase], f' rx="{min(3.0, inner / 3):.1f}"{paler}')
        yield titled(shape, title)
        number = str(action.micro_batch)
        if width >= _DIGIT * len(number) + 3:
            yield text(x + width / 2, y + 15, number, "small paper", "middle")


def _blocks(spans: Sequence[Span], y: float, scale: float) -> Iterator[str]:
    """Draw runs of neighbours of one phase as one piece."""
    first = 0
    for i in range(1, len(spans) + 1):
        ends = i == len(spans) or spans[i].action.phase is not spans[first].action.phase
        if ends or (spans[i].start_s - spans[i - 1].end_s) * scale > 1:
            start, end = spans[first].start_s, spans[i - 1].end_s
            title = f"{_WORDS[spans[first].action.phase]} of {i - first} micro-batches"
            width = max((end - start) * scale, 0.4)
            yield titled(rect(_LEFT + start * scale, y, width, _ROW, _COLOUR[spans[first].action.phase]), title)
            first = i


def _thinned(points: Sequence[tuple[float, float]], step_s: float) -> Iterator[tuple[float, float]]:
    """Leave out changes that fall on the pixel of a higher one."""
    pixel_s = step_s / (WIDTH - _LEFT - _RIGHT)
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
