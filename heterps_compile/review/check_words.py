"""What a check of a committed plan found, for a terminal, a pull request, a workflow's annotations, and programs.

Left out: what changed from the committed plan to the one found (``plan_diff/formats.py`` tells it).
"""

import json

from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem
from heterps_compile.escape import Escape, for_markdown, printable
from heterps_compile.plan_diff.formats import diff_document, diff_markdown, diff_text, workflow_command
from heterps_compile.plan_diff.pool_changes import told_together
from heterps_compile.plan_diff.sentences import HASHED, as_sentence
from heterps_compile.units import format_percent

from .check import CheckResult

FORMAT_VERSION = 1


def verdict(checked: CheckResult, escape: Escape = printable) -> str:
    """Tell in one sentence whether the plan may stay, and why."""
    if checked.fault:
        return f"the plan does not hold any more: {escape(checked.fault)}"
    better = OBJECTIVES[checked.found.request.objective].better
    found = checked.found
    is_free = found.bound_of_all_orders >= found.bound > 0
    searched = plans_of_the_problem(sum(len(stage.layers) for stage in found.stages), in_any_order=is_free)
    allowed = f"the tolerance of {format_percent(100 * checked.tolerance)}"
    if checked.passes:
        if checked.gain == 0:
            return f"the plan holds, and the search finds no {searched} that is {better}"
        return f"the plan holds, and the best found is {format_percent(100 * checked.gain)} {better}: within {allowed}"
    gain = f"{_described(checked, checked.found.value)} in place of {_described(checked, checked.value or 0.0)}"
    return f"a plan that is {format_percent(100 * checked.gain)} {better} exists, {gain}: more than {allowed}"


def check_text(checked: CheckResult) -> str:
    """Return the lines for a terminal."""
    lines = [as_sentence(verdict(checked)), *(f"note: {note}" for note in check_notes(checked, printable))]
    shown = "\n".join(lines) + "\n"
    if checked.passes:
        return shown
    return f"{shown}\nFrom the plan {_priced(checked)} to the one found now:\n{diff_text(checked.changes)}"


def check_markdown(checked: CheckResult, plan: str) -> str:
    """Return Markdown for a pull request; ``plan`` is where the committed plan is."""
    lines = ["### Placement check", "", as_sentence(verdict(checked, for_markdown)), ""]
    lines += [f"- note: {note}" for note in check_notes(checked, for_markdown)]
    if not checked.passes:
        lines += ["", diff_markdown(checked.changes, f"{plan} {_priced(checked)}", "what the search finds now")]
    return "\n".join(lines).rstrip("\n") + "\n"


def check_github(checked: CheckResult, path: str) -> str:
    """Return annotations at the plan's file: an error where the check fails, a notice where only hashes changed."""
    lines = []
    if not checked.passes:
        lines.append(workflow_command("error", path, 1, "placement check", verdict(checked)))
    lines += [workflow_command("notice", path, 1, "placement check", note) for note in check_notes(checked, printable)]
    return "".join(f"{line}\n" for line in lines)


def check_document(checked: CheckResult, plan: str) -> str:
    """Return the text of a JSON document; its keys are a promise as those of ``plan_diff/formats.py``."""
    changes = json.loads(diff_document(checked.changes, plan, "what the search finds now"))
    document = {
        "format_version": FORMAT_VERSION,
        "plan": plan,
        "passes": checked.passes,
        "fault": checked.fault or None,
        "objective": checked.found.request.objective,
        "unit": OBJECTIVES[checked.found.request.objective].unit(checked.found.currency),
        "value": checked.value,
        "found_value": checked.found.value,
        "gain_percent": 100 * checked.gain,
        "tolerance_percent": 100 * checked.tolerance,
        "estimates_of_the_plan": "today" if checked.is_priced else "file",
        "changed_hashes": list(checked.stale),
        "changes": changes,
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _priced(checked: CheckResult) -> str:
    """Say what the numbers of the plan are that those of the plan found stand beside."""
    return "at today's costs and prices" if checked.is_priced else "with the estimates in its file"


def _described(checked: CheckResult, value: float) -> str:
    objective = OBJECTIVES[checked.found.request.objective]
    return objective.describe(value, checked.found.batch, checked.found.currency)


def check_notes(checked: CheckResult, escape: Escape) -> list[str]:
    """Tell what else changed: hashes, the pool, the value of the plan."""
    notes = []
    if checked.stale:
        names = ", ".join(HASHED.get(name, escape(name)) for name in checked.stale)
        notes.append(f"since the plan was made, {names} changed (by hash)")
    if checked.changes.pool:
        notes.append(f"the pool changed: {told_together(checked.changes.pool, escape)}")
    if checked.value is not None and abs(checked.value - checked.committed.value) > 1e-6 * checked.committed.value:
        now, then = _described(checked, checked.value), _described(checked, checked.committed.value)
        notes.append(f"the plan's value is {now} today, and its file says {then}")
    return notes
