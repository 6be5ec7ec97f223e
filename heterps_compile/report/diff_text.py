"""A diff of two plans for a terminal.

Left out: colours; the words (``diff_words.py``).
"""

from collections.abc import Sequence

from heterps_compile.escape import printable
from heterps_compile.plan.diff import PlanDiff

from .diff_words import change_of, notes, sentences


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
    rows = [(n.name, n.old_text, n.new_text, change_of(n) if n.has_changed else "same") for n in changes.numbers]
    name, old, new = (max(len(row[i]) for row in rows) for i in range(3))
    return [f"{r[0].ljust(name)}  {r[1].rjust(old)}  →  {r[2].rjust(new)}  {r[3]}".rstrip() for r in rows]
