"""A simulated step in the Chrome trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Stages are processes, replicas their threads, actions slices, what a replica holds is a counter, and an arrow leads
from every action to the one in another stage that reads its result. Times are in microseconds, as the format has them.
The names of devices are data: JSON escapes them.

Source: "Trace Event Format", the Chromium project; complete ("X"), counter ("C"), metadata ("M") and flow ("s", "f")
events.

Left out: arrows inside a stage.
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from heterps_compile.escape import printable, shorten
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.stage_sync import own_words, rule_name
from heterps_compile.schedule.order import Phase
from heterps_compile.schedule.simulate import ALL_REDUCE, PULL, PUSH, UPDATE, input_of
from heterps_compile.units import trace_ns, trace_slice, trace_thread

from .plan_steps import Step

_NS_A_US = 1e3
_LONGEST_NAME = 120


def _replica(stage: PlannedStage, index: int) -> str:
    """Name a replica; with its device type where those of the stage differ."""
    of = f" on {stage.of_replicas[index].device}" if stage.mixed else ""
    return shorten(printable(f"replica {index}{of}"), _LONGEST_NAME)


def chrome_trace(plan: Plan, step: Step) -> str:
    """Write a step of a plan as the text of a JSON trace."""
    events: list[dict[str, Any]] = []
    for stage in plan.stages:
        name = shorten(printable(f"stage {stage.index}: {stage.device_words}"), _LONGEST_NAME)
        events.append(_metadata("process_name", stage.index, 0, {"name": name}))
        events.append(_metadata("process_sort_index", stage.index, 0, {"sort_index": stage.index}))
        events += [
            _metadata("thread_name", stage.index, trace_thread(i), {"name": _replica(stage, i)})
            for i in range(stage.replicas)
        ]
    for span in step.timeline.spans:
        action = span.action
        events.append(
            {
                "name": str(action),
                "cat": action.phase.value,
                "ph": "X",
                **trace_slice(span.start_s, span.end_s),
                "pid": action.stage,
                "tid": trace_thread(span.replica),
                "args": {"micro_batch": action.micro_batch, "chunk": action.chunk},
            }
        )
    for each in step.timeline.around:
        stage = plan.stages[each.stage]
        names = {
            PULL: "pull rows of servers",
            PUSH: "push gradients of rows to servers",
            ALL_REDUCE: rule_name(stage),
            UPDATE: own_words(stage),
        }
        for replica in range(step.timeline.replicas[each.stage]):
            events.append(
                {
                    "name": names[each.kind],
                    "cat": each.kind,
                    "ph": "X",
                    **trace_slice(each.start_s, each.end_s),
                    "pid": each.stage,
                    "tid": trace_thread(replica),
                    "args": {},
                }
            )
    events += _flows(step)
    for (stage_index, replica), points in step.bytes_over_time():
        for time_s, size_bytes in points:
            events.append(
                {
                    "name": f"memory of replica {replica}",
                    "ph": "C",
                    "ts": trace_ns(time_s) / _NS_A_US,
                    "pid": stage_index,
                    "args": {"bytes": math.ceil(size_bytes)},
                }
            )
    about = {
        "model": shorten(printable(plan.model), _LONGEST_NAME),
        "schedule": step.schedule,
        "micro_batches": step.micro_batches,
        "source": "simulated by heterps-compile",
    }
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, allow_nan=False) + "\n"


def _flows(step: Step) -> Iterator[dict[str, Any]]:
    """Yield the arrows, each from the slice of the action that makes a value late to the one that reads it."""
    timeline = step.timeline
    spans = {span.action: span for span in timeline.spans}
    crossing = (
        (spans[made], span)
        for span in timeline.spans
        if (made := input_of(span.action, len(timeline.replicas), timeline.chunks)) is not None
        and made.stage != span.action.stage
    )
    for number, (first, second) in enumerate(crossing):
        name = "activations" if second.action.phase is Phase.FORWARD else "gradients"
        # an arrow that left at the very end of a slice would belong to what comes next
        left_ns = max(trace_ns(first.start_s), trace_ns(first.end_s) - 1)
        for phase, span, time_ns in (("s", first, left_ns), ("f", second, trace_ns(second.start_s))):
            yield {
                "name": name,
                "cat": "flow",
                "ph": phase,
                "id": number,
                "ts": time_ns / _NS_A_US,
                "pid": span.action.stage,
                "tid": trace_thread(span.replica),
                **({"bp": "e"} if phase == "f" else {}),
            }


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments}
