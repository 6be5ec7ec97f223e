"""``heterps-compile diff OLD NEW``: what changed from one plan to another, for people, programs and pull requests.

Left out: the comparison itself and the looks of it (``plan_diff/``).
"""

import os
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.plan.command_options import DIFF, MANIFEST, TWO_PLANS
from heterps_compile.plan_diff.verdict import REVIEW_EXIT_CODES, Verdict

from . import options
from .judged import judged
from .output import append_summary, printing, result_stream, tell, write_shown
from .pictures import check_file, write_changes
from .review_all import print_outcomes, review_all

if TYPE_CHECKING:
    from heterps_compile.plan_diff.compare_plans import PlanDiff

_TITLE = "Placement plans"


@click.command("diff", epilog=REVIEW_EXIT_CODES)
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="[NEW]", required=False)
@options.takes(DIFF)
@click.pass_context
@judged
def diff(ctx: click.Context, /, old: str, new: str | None, **_: Any) -> int:
    """Compare two plans: what moved, which stages split or merged, and what that does to price and throughput.

    OLD and NEW are plan.json files, compiled folders, or git:REV:PATH. Layers are matched by structure, so that other
    names or numbers are no change. A plan that its path in OLD's commit does not have is new: that counts, unless
    --fail-on says what does. With --all, OLD is git:REV, and every plan of heterps.toml is compared with what it
    was there.

    \b
    Files:
      FILE.html         changes, layers, numbers and pictures, with --report

    \b
    Environment:
      GITHUB_STEP_SUMMARY   the file that --format github appends Markdown to

    \b
    Examples:
      heterps-compile diff old/plan.json new/plan.json
      heterps-compile diff git:origin/main:model.heterps model.heterps
      heterps-compile diff git:HEAD:plan.json plan.json --format markdown
      heterps-compile diff git:HEAD:plan.json plan.json --report changes.html
      heterps-compile diff old.json new.json --fail-on "placement,price>5%"
      heterps-compile diff --all git:main --format markdown
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    is_of_all = ctx.params["all_plans"] or ctx.params["manifest"] is not None
    if is_of_all and new is not None:
        raise click.UsageError("The manifest names the plans; leave NEW out, or --all.")
    with options.asked_of(ctx, DIFF, MANIFEST if is_of_all else TWO_PLANS) as asked:
        if is_of_all:
            from heterps_compile.review.manifest.diff_all import diff_all  # noqa: PLC0415 - pydantic

            return review_all(asked, lambda manifest: diff_all(manifest, old), _TITLE)
        if new is None:
            raise click.MissingParameter(ctx=ctx, param_hint="'NEW'", param_type="argument")
        return _diff(old, new, **asked.some("form", "fail_on", "report"))


def _diff(old: str, new: str, form: str, fail_on: str | None, report: str | None) -> int:
    from heterps_compile.plan.file import from_json  # noqa: PLC0415 - pydantic
    from heterps_compile.plan.source import GIT_PREFIX, find_plan_text, path_of, read_plan_text  # noqa: PLC0415
    from heterps_compile.plan_diff.fail_on import met, parse_criteria  # noqa: PLC0415 - only what the command needs

    criteria = None if fail_on is None else parse_criteria(fail_on)
    text = read_plan_text(new)
    after = from_json(text, new)
    # A plan of the same path is new there; of another path it may be misspelled, and is an error.
    is_same_path = old.startswith(GIT_PREFIX) and os.path.normpath(path_of(old)) == os.path.normpath(path_of(new))
    if is_same_path and find_plan_text(old) is None:
        return _new(new, form, report, counts=criteria is None)
    before = from_json(read_plan_text(old), old)
    check_file("--report", report)
    from heterps_compile.plan_diff.compare_plans import diff as diff_plans  # noqa: PLC0415 - as above

    changes = diff_plans(before, after)
    failed = [] if criteria is None else met(criteria, changes)
    if report is not None:
        write_changes(report, before, after, changes)
    with result_stream() as stream, printing("the diff"):
        write_shown(stream, form, _shown(form, changes, (old, new), (path_of(new), text), failed))
    if form == "github":
        from heterps_compile.plan_diff.formats import diff_markdown  # noqa: PLC0415 - only the format asked for

        append_summary(diff_markdown(changes, old, new, failed))
    counts = bool(failed) if criteria is not None else not changes.is_empty
    return Verdict.FAILS if counts else Verdict.FINE


def _new(plan: str, form: str, report: str | None, *, counts: bool) -> Verdict:
    """Tell a plan that the commit does not have, as --all does."""
    from heterps_compile.review.manifest.diff_all import new_plan  # noqa: PLC0415 - only where it is new

    found = [new_plan(plan, counts=counts)]
    with result_stream() as stream:
        print_outcomes(stream, found, form, _TITLE)
    if report is not None:
        tell(f"note: {report!r} is not written: a page needs an old plan")
    return found[0].verdict


def _shown(form: str, changes: "PlanDiff", where: tuple[str, str], file: tuple[str, str], failed: list[str]) -> str:
    from heterps_compile.plan_diff import formats  # noqa: PLC0415 - only what the result needs

    if form == "json":
        return formats.diff_document(changes, *where, failed)
    if form == "markdown":
        return formats.diff_markdown(changes, *where, failed)
    if form == "github":
        return formats.diff_github(changes, *file, failed)
    return formats.diff_text(changes, failed)
