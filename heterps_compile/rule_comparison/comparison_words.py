"""Rules side by side, printed for people and for programs.

Left out: the comparison (``compare_rules.py``).
"""

import json
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, note_text, plain_table
from heterps_compile.escape import printable
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import SyncGroup, left_uncounted
from heterps_compile.units import counted, format_bytes, format_money, format_percent, format_seconds, rate_number

from .compare_rules import RuleComparison, RuleOnPlan

FORMAT_VERSION = 1
_STAGES_SHOWN = 20
_LOSS = (
    "what a rule makes of the loss is not predicted here: docs/synchronisation.md says when to use which, and when not"
)
_PLACEMENT = "placement, replicas and schedule are the plan's, which were searched with "


def print_comparison(console: Console, found: RuleComparison) -> None:
    """Print a row a rule, the stages that agree, and what the numbers leave out."""
    plan = found.posed.plan
    console.print(
        Text(
            f"{printable(plan.model)}: {plan.request.purpose}, batch {plan.batch}, "
            f"{counted(len(plan.stages), 'stage')}, {printable(plan.schedule.name)}, "
            f"{counted(plan.schedule.micro_batches, 'micro-batch')}"
        )
    )
    console.print()
    table = plain_table()
    add_text(table, "rule", "class", no_wrap=True)
    add_numbers(table, "step", "samples/s", "exposed", "work", "bytes a step", "memory", f"{plan.currency}/M samples")
    add_text(table, "")
    for row in found.rows:
        if row.is_possible:
            table.add_row(*map(Text, _cells(found, row)))
    console.print(table)
    console.print()
    for line in _stage_lines(found):
        console.print(Text(line))
    for note in notes(found):
        console.print(note_text(note))


def _cells(found: RuleComparison, row: RuleOnPlan) -> list[str]:
    marks = ["shortest"] if row is found.shortest and found.agrees else []
    if found.own and {row.rule} == {rule for rule, group in zip(found.own, found.groups, strict=True) if group.agrees}:
        marks.append("planned")
    if not found.own and row is found.rows[0]:
        marks.append("planned")
    change = row.step_s / found.rows[0].step_s - 1
    return [
        printable(row.rule),
        row.exactness,
        format_seconds(row.step_s) + (f" ({'+' * (change > 0)}{format_percent(100 * change)})" if change else ""),
        rate_number(row.samples_per_s),
        format_seconds(max(row.exposed_s)),
        format_seconds(max(row.handling_s)),
        format_bytes(sum(row.sent_bytes)),
        format_bytes(max(row.held_bytes)),
        format_money(row.price_per_million_samples),
        ", ".join(marks),
    ]


def _stage_lines(found: RuleComparison) -> Iterator[str]:
    stages = [
        (stage, group) for stage, group in zip(found.posed.plan.stages, found.groups, strict=True) if group.agrees
    ]
    for stage, group in stages[:_STAGES_SHOWN]:
        yield (
            f"stage {stage.index}: {printable(stage.hardware)} in {counted(group.machines, 'machine')}, "
            f"{format_bytes(group.gradient_bytes)} of gradients, {format_bytes(group.parameter_bytes)} of weights, "
            f"{format_seconds(found.rows[0].update_s[stage.index])} a step of the optimizer"
        )
    if len(stages) > _STAGES_SHOWN:
        yield f"… {len(stages) - _STAGES_SHOWN} more stages; --json shows all"


def notes(found: RuleComparison) -> list[str]:
    """Say what cannot be, and what the numbers leave out."""
    faults = [f"{row.rule}: {row.fault}" for row in found.rows if not row.is_possible]
    own = [
        f"the plan has {rule} in stage {index}"
        for index, (rule, group) in enumerate(zip(found.own, found.groups, strict=False))
        if group.agrees and len(set(found.own)) > 1
    ]
    alone = [] if found.agrees else ["no stage has several replicas with weights: there is nothing to agree on"]
    request = found.posed.plan.request
    searched = "an all-reduce in every stage" if request.is_all_reduced else f"--sync {request.synchronisation}"
    uncounted = left_uncounted(parse_rule(row.rule) for row in found.rows if row.is_possible)
    return [*faults, *alone, *own, _PLACEMENT + searched, *uncounted, _LOSS]


def comparison_document(found: RuleComparison) -> str:
    """Return the text of a JSON document; its keys are a promise."""
    plan = found.posed.plan
    document = {
        "format_version": FORMAT_VERSION,
        "model": plan.model,
        "batch": plan.batch,
        "currency": plan.currency,
        "schedule": plan.schedule.name,
        "micro_batches": plan.schedule.micro_batches,
        "stages": [
            {"stage": stage.index, "device": stage.device, **_group(group)}
            for stage, group in zip(plan.stages, found.groups, strict=True)
        ],
        "planned": list(found.own) or None,
        "update_s": list(found.rows[0].update_s),
        "rules": [
            {
                "rule": row.rule,
                "class": row.exactness,
                "fault": row.fault or None,
                "step_s": row.step_s,
                "samples_per_s": row.samples_per_s,
                "exposed_s": list(row.exposed_s),
                "handling_s": list(row.handling_s),
                "sent_bytes": list(row.sent_bytes),
                "held_bytes": list(row.held_bytes),
                "rule_bytes": list(row.rule_bytes),
                "price_per_hour": row.price_per_hour,
                "price_per_million_samples": row.price_per_million_samples,
            }
            for row in found.rows
        ],
        "shortest": found.shortest.rule,
        "notes": notes(found),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _group(group: SyncGroup) -> dict[str, int]:
    return {
        "replicas": group.replicas,
        "machines": group.machines,
        "gradient_bytes": group.gradient_bytes,
        "parameter_bytes": group.parameter_bytes,
        "tensors": group.tensors,
    }
