"""A diff of two plans as lines for a terminal, Markdown for a pull request, GitHub annotations, and JSON.

A workflow command of GitHub is one line, ``::warning file=F,line=N,title=T::message``; what is data in it is escaped as
GitHub's runner reads it back, so that no name can end the line or begin a command of its own.

The keys of the JSON document are a promise: keys may be added, none goes or changes its meaning. A change in percent is
null where the old number is 0, or the two are in different currencies.

Left out: colours; the sentences that the formats for people share (``sentences.py``).
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from heterps_compile.escape import for_markdown, printable
from heterps_compile.sync_rules.rules import USUAL

from .compare_plans import PlanDiff, StageChange
from .sentences import change_of, notes, sentences

FORMAT_VERSION = 1  # of the JSON document
ANNOTATIONS = 10
"""How many of one kind GitHub shows a step."""


def diff_markdown(changes: PlanDiff, old: str, new: str, failed: Sequence[str] = ()) -> str:
    """Return the Markdown; every name in it is escaped.

    Args:
        changes: What changed.
        old: Where the old plan is from.
        new: Where the new one is from.
        failed: What of it counts as a failure, as ``--fail-on`` wrote it.
    """
    lines = ["### Placement plan", "", f"From {for_markdown(old)} to {for_markdown(new)}.", ""]
    if changes.is_empty:
        lines += ["The plans are the same.", ""]
    else:
        told = sentences(changes, for_markdown)
        lines += [f"- **{sentence.kind}**: {sentence.text}" for sentence in told]
        lines += [""] if told else []
        lines += ["| | old | new | change |", "|---|---:|---:|---:|"]
        lines += [f"| {n.label} | {n.old_text} | {n.new_text} | {change_of(n)} |" for n in changes.numbers]
        lines.append("")
    told_notes = notes(changes, for_markdown)
    lines += [f"- note: {note}" for note in told_notes]
    lines += [""] if told_notes else []
    if failed:
        lines += [f"**Fails on {for_markdown(', '.join(failed))}.**", ""]
    return "\n".join(lines)


def diff_text(changes: PlanDiff, failed: Sequence[str] = ()) -> str:
    """Return the lines: every change, then the numbers of both plans, then notes.

    Args:
        changes: What changed.
        failed: What of it counts as a failure, as ``--fail-on`` wrote it.
    """
    lines = ["The plans are the same." if changes.is_empty else ""]
    if not changes.is_empty:
        told = sentences(changes, printable)
        width = max((len(sentence.kind) for sentence in told), default=0)
        lines = [f"{sentence.kind.ljust(width)}  {sentence.text}" for sentence in told]
        lines += ["", *_numbers(changes)] if told else _numbers(changes)
    lines += [f"note: {note}" for note in notes(changes, printable)]
    if failed:
        lines.append(f"fails on {', '.join(failed)}")
    return "\n".join(lines) + "\n"


def _numbers(changes: PlanDiff) -> list[str]:
    rows = [(n.label, n.from_to, change_of(n) if n.has_changed else "same") for n in changes.numbers]
    name, text = (max(len(row[i]) for row in rows) for i in range(2))
    return [f"{label.ljust(name)}  {told.ljust(text)}  {change}".rstrip() for label, told, change in rows]


def diff_github(changes: PlanDiff, path: str, text: str, failed: Sequence[str] = ()) -> str:
    """Return one workflow command a line; none where the plans are the same.

    Args:
        changes: What changed.
        path: Of the new plan's file in the repository.
        text: Of that file, to find the lines of layers in; "" where it is not known.
        failed: What of it counts as a failure, as ``--fail-on`` wrote it.
    """
    if changes.is_empty and not failed:
        return ""
    found = [(sentence.kind, sentence.text, sentence.layer) for sentence in sentences(changes, printable)]
    numbers = [
        f"{n.label} {n.from_to}{f' ({change_of(n)})' if change_of(n) else ''}" for n in changes.numbers if n.has_changed
    ]
    if numbers:
        found.insert(0, ("estimates", "; ".join(numbers), ""))
    if len(found) > ANNOTATIONS:
        rest = len(found) - ANNOTATIONS + 1
        more = f"{rest} more changes; heterps-compile diff lists them"
        found = [*found[: ANNOTATIONS - 1], ("changes", more, "")]
    lines = [workflow_command("warning", path, _line_of(text, layer), kind, said) for kind, said, layer in found]
    if failed:
        lines.append(workflow_command("error", path, 1, "plan", f"the change of the plan fails on {', '.join(failed)}"))
    return "".join(f"{line}\n" for line in lines)


def escape_message(text: str) -> str:
    """Escape what stands behind the second ``::``."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """Escape the value of a property."""
    return escape_message(text).replace(":", "%3A").replace(",", "%2C")


def workflow_command(level: str, path: str, line: int, title: str, message: str) -> str:
    """Return one annotation: ``level`` is ``"error"``, ``"warning"`` or ``"notice"``; names need no escape before."""
    where = f"file={escape_property(printable(path))},line={line},title={escape_property(title)}"
    return f"::{level} {where}::{escape_message(printable(message))}"


def _line_of(text: str, layer: str) -> int:
    """Return the line of a plan's file that a layer stands on; the first one where it is not found."""
    place = text.find(f'{{"name": {json.dumps(layer)}, ') if layer else -1
    return 1 if place < 0 else text.count("\n", 0, place) + 1


def diff_document(changes: PlanDiff, old: str, new: str, failed: Sequence[str] = ()) -> str:
    """Return the text of the document.

    Args:
        changes: What changed.
        old: Where the old plan is from.
        new: Where the new one is from.
        failed: What of it counts as a failure, as ``--fail-on`` wrote it.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "old": old,
        "new": new,
        "is_same": changes.is_empty,
        "failed": list(failed),
        "moved": [asdict(change) for change in changes.moved],
        "added": [asdict(layer) for layer in changes.added],
        "removed": [asdict(layer) for layer in changes.removed],
        "altered": list(changes.altered),
        "renamed": [{"old": old_name, "new": new_name} for old_name, new_name in changes.renamed.items()],
        "regrouped": [asdict(change) for change in changes.regrouped],
        "stage_events": [asdict(event) for event in changes.events],
        "stages": [_stage(stage) for stage in changes.stages],
        "settings": [asdict(change) for change in changes.settings],
        "estimates": {
            number.name: {
                "unit": number.unit or None,
                "scope": number.scope or None,
                "old": number.old,
                "new": number.new,
                "change_percent": number.percent if isfinite(number.percent) else None,
            }
            for number in changes.numbers
        },
        "pool": [asdict(change) for change in changes.pool],
        "changed_hashes": list(changes.hashes),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _stage(stage: StageChange) -> dict[str, Any]:
    old = stage.old
    mixed = any(each is not None and len(each.units) > 1 for each in (old, stage.new))
    units = {"units": dict(stage.new.units), "old_units": None if old is None else dict(old.units)}
    ruled = any(each is not None and each.rule != USUAL.name for each in (old, stage.new))
    rules = {"sync": stage.new.rule, "old_sync": None if old is None else old.rule} if ruled else {}
    return (
        (units if mixed else {})
        | rules
        | {
            "stage": stage.index,
            "old_stage": stage.origin,
            "device": stage.new.device,
            "old_device": None if old is None else old.device,
            "replicas": stage.new.replicas,
            "old_replicas": None if old is None else old.replicas,
            "backend": stage.new.backend,
            "old_backend": None if old is None else old.backend,
            "recompute": stage.new.recompute,
            "old_recompute": None if old is None else old.recompute,
        }
    )
