"""A diff of two plans for a pull request, as Markdown.

Left out: the words (``diff_words.py``).
"""

from collections.abc import Sequence

from heterps_compile.escape import for_markdown
from heterps_compile.plan.diff import PlanDiff

from .diff_words import change_of, notes, sentences


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
        lines += [f"| {n.name} | {n.old_text} | {n.new_text} | {change_of(n)} |" for n in changes.numbers]
        lines.append("")
    told_notes = notes(changes, for_markdown)
    lines += [f"- note: {note}" for note in told_notes]
    lines += [""] if told_notes else []
    if failed:
        lines += [f"**Fails on {for_markdown(', '.join(failed))}.**", ""]
    return "\n".join(lines)
