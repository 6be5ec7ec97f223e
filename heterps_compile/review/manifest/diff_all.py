"""``diff --all git:REV``: every plan of a manifest as it is here and as it was in a commit.

No model is read. A plan that is new counts as changed where the manifest does not say what counts (``fail_on``), and so
does one that only the manifest of the commit names; one that is gone fails; one on neither side could not be judged.

Left out: one plan's diff (``plan_diff/``), the looks of the summary (``outcomes.py``).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.plan.file import from_json
from heterps_compile.plan.source import GIT_PREFIX, find_plan_text, find_text_in_commit
from heterps_compile.plan_diff.compare_plans import PlanDiff, diff
from heterps_compile.plan_diff.fail_on import met, parse_criteria
from heterps_compile.plan_diff.formats import diff_document, diff_markdown, diff_text
from heterps_compile.plan_diff.sentences import change_of, sentences
from heterps_compile.plan_diff.verdict import Verdict

from .manifest_file import Entry, Manifest, parse_manifest
from .outcomes import Outcome, refused


def diff_all(manifest: Manifest, base: str) -> Iterator[Outcome]:
    """Yield what became of every plan since a commit.

    Args:
        manifest: Of today.
        base: ``git:REV``.

    Raises:
        InputError: where the commit cannot be read.
    """
    revision = base.removeprefix(GIT_PREFIX)
    if not base.startswith(GIT_PREFIX) or not revision or ":" in revision:
        raise InputError(
            f"{base!r} is not git:REV, such as git:main; with --all the manifest says which plans there are"
        )
    old_manifest = find_text_in_commit(base, manifest.path)
    for entry in manifest.entries:
        try:
            yield _diff(entry, f"{base}:{entry.plan}")
        except HeterpsError as error:
            yield refused(entry.plan, error)
    if old_manifest is not None:
        yield from _dropped(manifest, old_manifest, base)


def new_plan(plan: str, *, counts: bool) -> Outcome:
    """Return what is said of a plan that the commit does not have.

    Args:
        plan: Where it is.
        counts: Whether anything that changed does, a new plan too.
    """
    verdict = Verdict.FAILS if counts else Verdict.FINE
    return Outcome(plan, verdict, "the plan is new: there is nothing to compare it with", has_changed=True)


def _diff(entry: Entry, old: str) -> Outcome:
    before, after = find_plan_text(old), find_plan_text(entry.plan)
    if after is None:
        if before is None:
            return Outcome(entry.plan, Verdict.NOT_JUDGED, f"there is no plan, neither here nor at {old}")
        return Outcome(
            entry.plan, Verdict.FAILS, f"the plan is gone, which the manifest names; {old} has it", has_changed=True
        )
    here = from_json(after, entry.plan)
    criteria = None if entry.fail_on is None else parse_criteria(entry.fail_on)
    if before is None:
        return new_plan(entry.plan, counts=criteria is None)
    changes = diff(from_json(before, old), here)
    failed = [] if criteria is None else met(criteria, changes)
    fails = not changes.is_empty if criteria is None else bool(failed)
    said = _said(changes)
    if failed:
        said += f"; fails on {', '.join(failed)}"
    document = json.loads(diff_document(changes, old, entry.plan, failed))
    if changes.is_empty:
        return Outcome(entry.plan, Verdict.FINE, said, document=document)
    return Outcome(
        entry.plan,
        Verdict.FAILS if fails else Verdict.FINE,
        said,
        diff_text(changes, failed),
        diff_markdown(changes, old, entry.plan, failed),
        document,
        has_changed=True,
    )


def _said(changes: PlanDiff) -> str:
    """Return in a line what kinds of changes there are, and how the numbers changed."""
    if changes.is_empty:
        return "the plans are the same"
    kinds = list(dict.fromkeys(sentence.kind for sentence in sentences(changes, str)))
    numbers = [f"{number.label} {change}" for number in changes.numbers if (change := change_of(number))]
    return "; ".join([*([f"changed: {', '.join(kinds)}"] if kinds else []), *numbers])


def _dropped(manifest: Manifest, old_text: str, base: str) -> Iterator[Outcome]:
    """Yield the plans that the manifest of the commit had, and that this one has not."""
    where = f"{base}:{manifest.path}"
    try:
        old = parse_manifest(old_text, manifest.path)
    except InputError as error:
        yield Outcome(where, Verdict.NOT_JUDGED, f"which plans it had cannot be read: {error}")
        return
    kept = {entry.plan for entry in manifest.entries}
    for entry in old.entries:
        if entry.plan not in kept:
            there = "; its file is still there" if Path(os.path.normpath(entry.plan)).exists() else ""
            verdict = Verdict.FAILS if entry.fail_on is None else Verdict.FINE
            yield Outcome(entry.plan, verdict, f"the manifest names the plan no more{there}", has_changed=True)
