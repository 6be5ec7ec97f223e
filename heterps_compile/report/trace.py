"""A simulated step in the Chrome trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Stages are processes, replicas their threads, actions slices, and what a replica holds a counter. Times are in
microseconds, as the format has them. The names of devices are data: JSON escapes them.

Source: "Trace Event Format", the Chromium project; complete ("X"), counter ("C") and metadata ("M") events.

Left out: flow arrows from stage to stage.
"""

import json
from typing import Any

from heterps_compile.escape import printable, shorten
from heterps_compile.plan.plan import Plan

from .simulation import Step

_US = 1e6
_LONGEST_NAME = 120


def chrome_trace(plan: Plan, step: Step) -> str:
    """Write a step of a plan as the text of a JSON trace."""
    events: list[dict[str, Any]] = []
    for stage in plan.stages:
        name = shorten(printable(f"stage {stage.index}: {stage.device}"), _LONGEST_NAME)
        events.append(_metadata("process_name", stage.index, 0, {"name": name}))
        events.append(_metadata("process_sort_index", stage.index, 0, {"sort_index": stage.index}))
        events += [_metadata("thread_name", stage.index, i, {"name": f"replica {i}"}) for i in range(stage.replicas)]
    for span in step.timeline.spans:
        action = span.action
        events.append(
            {
                "name": str(action),
                "cat": action.phase.value,
                "ph": "X",
                "ts": span.start_s * _US,
                "dur": (span.end_s - span.start_s) * _US,
                "pid": action.stage,
                "tid": span.replica,
                "args": {"micro_batch": action.micro_batch, "chunk": action.chunk},
            }
        )
    for (stage_index, replica), points in step.bytes_over_time():
        for time_s, size_bytes in points:
            events.append(
                {
                    "name": f"memory of replica {replica}",
                    "ph": "C",
                    "ts": time_s * _US,
                    "pid": stage_index,
                    "args": {"bytes": round(size_bytes)},
                }
            )
    about = {
        "model": shorten(printable(plan.model), _LONGEST_NAME),
        "schedule": step.schedule,
        "micro_batches": step.micro_batches,
        "source": "simulated by heterps-compile",
    }
    return json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, allow_nan=False) + "\n"


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments}
