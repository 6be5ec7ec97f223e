"""A predicted step, printed for people and for programs.

Left out: the prediction (``predict_step.py``).
"""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from heterps_compile.columns.terminal import terminal_table
from heterps_compile.console import add_numbers, add_text, note_text, plain_table, warning_text
from heterps_compile.plan.plan_notes import is_warning
from heterps_compile.problem_file.given_plan import GivenPlan
from heterps_compile.problem_file.given_problem import GivenProblem
from heterps_compile.schedule.readings import ONE_BATCH_ALONE
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.units import counted, format_bytes, format_rate, format_seconds, format_share

from .predict_step import Prediction
from .predicted_columns import has_rules, predicted_columns, predicted_rows, shown_name

FORMAT_VERSION = 1
_STAGES_SHOWN = 40

_PARTS = (
    ("busiest_s", "busiest replica"),
    ("fill_s", "fill and drain"),
    ("transfers_s", "transfers"),
    ("rows_s", "rows of tables"),
    ("all_reduce_s", "all-reduce"),
    ("update_s", "update"),
    ("overhead_s", "overhead"),
)


def print_prediction(console: Console, problem: GivenProblem, plan: GivenPlan, prediction: Prediction) -> None:
    """Print the step, its parts and what every stage does in it."""
    is_step = prediction.reading == ONE_BATCH_ALONE
    what = "step" if is_step else "a batch every"
    console.print(
        Text(
            f"{shown_name(problem.name)}: {'training' if problem.training else 'inference'}, batch {plan.batch}, "
            f"{counted(prediction.micro_batches, 'micro-batch')} of {plan.micro_batch}, "
            f"{counted(len(plan.stages), 'stage')}{f', {plan.schedule}' if is_step else ''}"
        )
    )
    console.print(
        Text(
            f"{prediction.reading}: {what} {format_seconds(prediction.step_s)}, "
            f"{format_rate(prediction.samples_per_s)}, bubble {format_share(prediction.bubble)}"
        )
    )
    console.print()
    agreement = "agreement" if has_rules(plan) else "all-reduce"
    parts = plain_table()
    add_text(parts, "part", no_wrap=True)
    add_numbers(parts, "time", "share")
    for key, words in _PARTS:
        if key == "rows_s" and prediction.servers is None:
            continue
        time_s = getattr(prediction.parts, key)
        share = time_s / prediction.step_s if prediction.step_s > 0 else 0.0
        parts.add_row(agreement if key == "all_reduce_s" else words, format_seconds(time_s), format_share(share))
    console.print(parts)
    console.print()
    rows = predicted_rows(problem, prediction)[:_STAGES_SHOWN]
    console.print(terminal_table(predicted_columns(plan), rows, console.width, currency=""))
    if len(plan.stages) > _STAGES_SHOWN:
        console.print(Text(f"… {len(plan.stages) - _STAGES_SHOWN} more stages; --json shows all"))
    if prediction.servers is not None:
        console.print(Text(_served_words(prediction)))
    for note in (*problem.assumptions, *prediction.notes):
        console.print(warning_text(note) if is_warning(note) else note_text(note))


def _served_words(prediction: Prediction) -> str:
    """Say what lies on servers, and which stages wait for them how long."""
    servers = prediction.servers
    if servers is None:
        return ""
    waits = [
        f"stage {number} pulls {format_seconds(each.pull_s)} and pushes {format_seconds(each.push_s)}"
        for number, each in enumerate(prediction.stages)
        if each.pull_s > 0 or each.push_s > 0
    ]
    held = f"{counted(servers.tables, 'table')} on {counted(servers.count, 'server')}"
    return "; ".join([f"{held}, {format_bytes(servers.held_bytes)} each", *waits[:_STAGES_SHOWN]])


def prediction_document(problem: GivenProblem, plan: GivenPlan, prediction: Prediction) -> str:
    """Return the prediction as a JSON document; its keys are a promise."""
    return json.dumps(prediction_record(problem, plan, prediction), indent=2, allow_nan=False)


def prediction_record(problem: GivenProblem, plan: GivenPlan, prediction: Prediction) -> dict[str, Any]:
    """Return what the JSON document says."""
    rate = prediction.samples_per_s
    return {
        "format_version": FORMAT_VERSION,
        "problem": problem.name,
        "mode": "training" if problem.training else "inference",
        "reading": prediction.reading,
        "batch": plan.batch,
        "batch_of": problem.batch_of,
        "micro_batch": plan.micro_batch,
        "micro_batches": prediction.micro_batches,
        "schedule": plan.schedule,
        "step_s": prediction.step_s,
        "samples_per_s": None if rate == float("inf") else rate,
        "bubble": prediction.bubble,
        "parts": {key: getattr(prediction.parts, key) for key, _ in _PARTS},
        "stages": [
            {
                "layers": len(each.stage.layers),
                "replicas": [
                    {
                        "device": kind.device,
                        "count": kind.count,
                        "tensor_parallel": kind.tensor_parallel,
                        "held_bytes": round(held),
                    }
                    for kind, held in zip(each.stage.replicas, each.held_bytes, strict=True)
                ],
                "feed": each.stage.feed,
                "sync": rule_text(each.stage.sync),
                "forward_s": each.forward_s,
                "backward_s": each.backward_s,
                "busy_s": each.busy_s,
                "all_reduce_s": each.all_reduce_s,
                "update_s": each.update_s,
                "transfer_s": each.transfer_s,
                "pull_s": each.pull_s,
                "push_s": each.push_s,
            }
            for each in prediction.stages
        ],
        "servers": None
        if prediction.servers is None
        else {
            "count": prediction.servers.count,
            "tables": prediction.servers.tables,
            "held_bytes": round(prediction.servers.held_bytes),
        },
        "notes": [*problem.assumptions, *prediction.notes],
    }
