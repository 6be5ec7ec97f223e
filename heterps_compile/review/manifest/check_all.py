"""``check --all`` and ``update --all``: every plan of a manifest against its model, in one process.

A plan that cannot be judged stops no other one. Models, pools and profiles are read once (``shared_inputs.py``).

Left out: one plan's check (``check.py``), the looks of the summary (``outcomes.py``).
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from heterps_compile.api import choose_backend
from heterps_compile.api import compile as compile_model
from heterps_compile.errors import HeterpsError
from heterps_compile.frontends.input_files import read_values
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.drafts import Draft, Emitted
from heterps_compile.passes.pipeline import run_to
from heterps_compile.plan.input_values import values_again
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import DEFAULT_CLUSTER, make_request
from heterps_compile.plan.source import find_plan_text, read_plan
from heterps_compile.plan_diff.formats import diff_markdown, diff_text
from heterps_compile.plan_diff.verdict import Verdict
from heterps_compile.review.check import CheckResult, check_plan
from heterps_compile.review.check_words import check_document, check_notes, verdict
from heterps_compile.review.pose import PosedAgain, pose_again
from heterps_compile.review.shared_inputs import SharedInputs
from heterps_compile.review.update import folder_to_write, write_plan

from .manifest_file import Entry, Manifest
from .outcomes import Outcome, refused

_WRITTEN = "written: the manifest names it, and there was none"

Review = Callable[[Entry, SharedInputs], Outcome]


def check_all(manifest: Manifest) -> Iterator[Outcome]:
    """Yield what the check of every plan comes to, in the order of the manifest."""
    return _each(manifest, _check)


def update_all(manifest: Manifest) -> Iterator[Outcome]:
    """Yield what became of every plan: kept, written anew as a whole, or written for the first time."""
    return _each(manifest, _update)


def _each(manifest: Manifest, review: Review) -> Iterator[Outcome]:
    inputs = SharedInputs()
    for place, entry in enumerate(manifest.entries):
        try:
            yield review(entry, inputs)
        except HeterpsError as error:
            yield refused(entry.plan, error)
        if entry.model is not None and all(later.model != entry.model for later in manifest.entries[place + 1 :]):
            inputs.forget(entry.model)


def _check(entry: Entry, inputs: SharedInputs) -> Outcome:
    plan = read_plan(entry.plan)
    if entry.model is None:
        return Outcome(entry.plan, Verdict.FINE, "the file is sound; the manifest names no model to check it against")
    return _outcome(entry, check_plan(_posed(entry, plan, entry.model, inputs), entry.tolerance))


def _outcome(entry: Entry, checked: CheckResult) -> Outcome:
    said = "; ".join([verdict(checked, str), *check_notes(checked, str)])
    document = json.loads(check_document(checked, entry.plan))
    if checked.passes:
        return Outcome(entry.plan, Verdict.FINE, said, document=document)
    markdown = diff_markdown(checked.changes, entry.plan, "what the search finds now")
    return Outcome(entry.plan, Verdict.FAILS, said, diff_text(checked.changes), markdown, document)


def _options(entry: Entry) -> dict[str, Any]:
    """Return the options of an entry, with the values of inputs in place of where they are."""
    options = dict(entry.options)
    given = read_values(options.pop("inputs", None), options.pop("values", {}))
    return options | ({"example_inputs": given} if given else {})


def _posed(entry: Entry, plan: Plan, model: str, inputs: SharedInputs) -> PosedAgain:
    return pose_again(model, plan, asked=entry.request, inputs=inputs, **_options(entry))


def _update(entry: Entry, inputs: SharedInputs) -> Outcome:
    if entry.model is None:
        return Outcome(entry.plan, Verdict.NOT_JUDGED, "the manifest names no model to plan; name one")
    if find_plan_text(entry.plan) is None:
        return _write_first(entry, entry.model, inputs)
    plan = read_plan(entry.plan)
    given = values_again(plan.input_values, _options(entry).get("example_inputs", {}), must_have_all=True)
    posed = _posed(entry, plan, entry.model, inputs)
    checked = check_plan(posed, entry.tolerance)
    if not checked.is_worth_writing:
        return Outcome(entry.plan, Verdict.FINE, f"kept: {verdict(checked, str)}")
    profile = entry.options.get("profile")
    write_plan(entry.plan, checked.found, entry.model, posed.draft.cluster, profile, given=given)
    why = "since its hashes are of something else" if checked.passes else f"since {verdict(checked, str)}"
    return Outcome(entry.plan, Verdict.FINE, f"written anew, {why}")


def _write_first(entry: Entry, model: str, inputs: SharedInputs) -> Outcome:
    """Write the plan of a model that has none yet; one search finds it."""
    options, folder = _options(entry), folder_to_write(entry.plan)
    if folder is not None:
        compile_model(model, **options, **(entry.request or {})).save(folder)
        return Outcome(entry.plan, Verdict.FINE, _WRITTEN)
    pool = inputs.pool(options.pop("cluster", DEFAULT_CLUSTER))
    profile = options.pop("profile", None)
    draft = Draft(
        graph=inputs.graph(model, **options),
        cluster=pool,
        request=make_request(pool.currency, **(entry.request or {})),
        measurements=inputs.measurements(pool, profile),
    )
    emitted = run_to(draft, Emitted)
    plan = make_plan(emitted, choose_backend(emitted.graph, None, emitted.request.mode).on(emitted.stages))
    write_plan(entry.plan, plan, model, pool, profile)
    return Outcome(entry.plan, Verdict.FINE, _WRITTEN)
