"""A diff of two plans as annotations of a GitHub workflow: warnings at the lines of the new plan's file.

A workflow command is one line, ``::warning file=F,line=N,title=T::message``; what is data in it is escaped as GitHub's
runner reads it back, so that no name can end the line or begin a command of its own.

Left out: the words (``diff_words.py``).
"""

import json
from collections.abc import Sequence

from heterps_compile.escape import printable
from heterps_compile.plan.diff import PlanDiff

from .diff_words import change_of, sentences

ANNOTATIONS = 10
"""How many of one kind GitHub shows a step."""


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
        f"{n.name} {n.old_text} → {n.new_text}{f' ({change_of(n)})' if change_of(n) else ''}"
        for n in changes.numbers
        if n.has_changed
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
