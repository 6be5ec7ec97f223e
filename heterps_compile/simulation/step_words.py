"""Simulated steps side by side, printed for people and for programs.

Left out: the simulation (``plan_steps.py``), the timeline (``report/pictures/timeline.py``, ``chrome_trace.py``).
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from heterps_compile.columns.column import Medium, pairs
from heterps_compile.console import add_numbers, add_text, name_text, note_text, pairs_table, plain_table
from heterps_compile.escape import printable
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import mixed_document
from heterps_compile.plan.stage_sync import rule_name, sync_document
from heterps_compile.plan.total_columns import READINGS, Summary
from heterps_compile.schedule.readings import ONE_BATCH_ALONE
from heterps_compile.units import counted, format_bytes, format_seconds, format_share, rate_number

from .plan_steps import Step, fits, shortest

FORMAT_VERSION = 1
_STAGES_SHOWN = 40


def print_steps(console: Console, plan: Plan, steps: Sequence[Step], notes: Sequence[str]) -> None:
    """Print the plan's readings, a row a schedule for one batch alone, then what replicas hold at most.

    Args:
        console: Where to.
        plan: The plan.
        steps: One a schedule.
        notes: What the reader should know of the numbers.
    """
    table = plain_table()
    add_text(table, ONE_BATCH_ALONE, no_wrap=True)
    add_numbers(table, "micro-batches", "step", "samples/s", "bubble", "most memory")
    add_text(table, "")
    shortest_s = shortest(plan, steps).step_s
    for step in steps:
        room = [] if fits(plan, step) else ["does not fit"]
        marks = room if room or step.step_s > shortest_s * (1 + 1e-9) else ["shortest"]
        if (step.schedule, step.micro_batches) == (plan.schedule.name, plan.schedule.micro_batches):
            marks.append("planned")
        cells = [
            step.schedule,
            f"{step.micro_batches}",
            format_seconds(step.step_s),
            rate_number(step.estimate.throughput_samples_per_s),
            format_share(step.estimate.bubble),
            format_bytes(max(step.peak_bytes)),
            ", ".join(marks),
        ]
        table.add_row(*map(Text, cells))
    stages = counted(len(plan.stages), "stage")
    console.print(Text(f"{printable(plan.model)}: {plan.request.purpose}, batch {plan.batch}, {stages}"))
    console.print()
    console.print(pairs_table(pairs(READINGS, Summary(plan), Medium.DETAILS, plan.currency)))
    console.print()
    console.print(table)
    for line in _around_actions(plan):
        console.print()
        console.print(Text(line))
    console.print()
    _print_memory(console, plan, steps)
    for note in notes:
        console.print(note_text(note))


def _around_actions(plan: Plan) -> Iterator[str]:
    """Say what a step has in some stages before their first forward, and once their last backward has ended."""
    count, what = plan.schedule.micro_batches, "of rows on servers"
    agreeing = " and ".join(dict.fromkeys(rule_name(stage) for stage in plan.stages if stage.all_reduce_s > 0))
    forward, backward = f"pull {what} before the first forward", f"push {what} after the last backward"
    for words, times_s in (
        (forward, [stage.pull_s(count) for stage in plan.stages]),
        (backward, [stage.push_s for stage in plan.stages]),
        (f"{agreeing} after the last backward", [stage.all_reduce_s for stage in plan.stages]),
        ("own work of rules after the last backward", [stage.handling_s for stage in plan.stages]),
        ("step of the optimizer", [stage.update_s for stage in plan.stages]),
    ):
        longest_s = max(times_s)
        if longest_s:
            stages = counted(sum(time_s > 0 for time_s in times_s), "stage")
            where = times_s.index(longest_s)
            yield f"{words} of {stages}, the longest {format_seconds(longest_s)} in stage {where}"
    beside = [stage for stage in plan.stages if stage.sync is not None and not stage.all_reduce_s]
    if beside:
        rules = " and ".join(dict.fromkeys(map(rule_name, beside)))
        yield f"{rules} of {counted(len(beside), 'stage')} beside the steps, which do not wait for it"


def _print_memory(console: Console, plan: Plan, steps: Sequence[Step]) -> None:
    memory = {device.name: format_bytes(device.memory_bytes) for device in plan.devices}
    table = plain_table()
    add_text(table, "peak memory of a replica", no_wrap=True)
    add_numbers(table, "there is", *(step.schedule for step in steps))
    for stage in plan.stages[:_STAGES_SHOWN]:
        there = " + ".join(memory.get(device, "-") for device, _ in stage.units)
        label = Text(f"stage {stage.index}: ")
        for place, (device, count) in enumerate(stage.units):
            label.append(f"{' + ' if place else ''}{count} x ").append_text(name_text(device, console.width))
        table.add_row(label, Text(there), *(Text(format_bytes(step.peak_bytes[stage.index])) for step in steps))
    console.print(table)
    if len(plan.stages) > _STAGES_SHOWN:
        console.print(Text(f"… {len(plan.stages) - _STAGES_SHOWN} more stages; --json shows all"))


def steps_document(plan: Plan, steps: Sequence[Step], notes: Sequence[str]) -> str:
    """Return the simulated steps as a JSON document; its keys are a promise, as those of a compilation's document are.

    The plan's own readings stand above the schedules; every one of these is one batch alone.

    Memory over time is that of every replica: pairs of the time of a change, in seconds, and the bytes from then on.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "model": plan.model,
        "mode": plan.request.mode,
        "precision": plan.request.precision,
        "batch": plan.batch,
        **plan.readings.to_json(),
        "planned": {"schedule": plan.schedule.name, "micro_batches": plan.schedule.micro_batches},
        "schedules": [_step(plan, step) for step in steps],
        "notes": list(notes),
    }
    return json.dumps(document, indent=2, allow_nan=False)


def _step(plan: Plan, step: Step) -> dict[str, Any]:
    over_time: dict[int, list[list[list[float]]]] = {stage.index: [] for stage in plan.stages}
    for (stage, _), points in step.bytes_over_time():
        over_time[stage].append([[time_s, math.ceil(size)] for time_s, size in points])
    return {
        "schedule": step.schedule,
        "micro_batches": step.micro_batches,
        "step_s": step.step_s,
        "samples_per_s": step.estimate.to_json()["throughput_samples_per_s"],
        "bubble": step.estimate.bubble,
        "fits": fits(plan, step),
        "stages": [
            {
                "device": stage.device,
                "replicas": stage.replicas,
                **mixed_document(stage),
                "sync": sync_document(stage),
                "all_reduce_s": stage.all_reduce_s,
                "handling_s": stage.handling_s,
                "update_s": stage.update_s,
                "pull_s": stage.pull_s(step.micro_batches),
                "push_s": stage.push_s,
                "peak_bytes": step.peak_bytes[stage.index],
                "memory_over_time": over_time[stage.index],
            }
            for stage in plan.stages
        ],
    }
