"""``heterps-compile check MODEL --against plan.json``: does a committed plan still hold, and is there a better one.

Left out: the check itself (``review/check.py``; without the model ``check_alone.py``) and the looks of it
(``review/check_words.py``).
"""

import sys
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from heterps_compile.options import Asked
from heterps_compile.plan.command_options import CHECK, MANIFEST, ONNX, PLAN
from heterps_compile.plan_diff.verdict import REVIEW_EXIT_CODES, Verdict
from heterps_compile.progress import Progress

from . import options
from .judged import judged
from .output import ProgressLine, append_summary, printing, quiet_libraries, result_stream, tell, write_shown
from .pictures import check_file, write_changes
from .review_all import review_all

if TYPE_CHECKING:
    from heterps_compile.review.check import CheckResult


@click.command("check", epilog=REVIEW_EXIT_CODES)
@click.argument("model", metavar="[MODEL.onnx]", required=False)
@options.takes(CHECK)
@click.pass_context
@judged
def check(ctx: click.Context, /, model: str | None, **_: Any) -> int:
    """Check that a committed plan still holds: compile MODEL.onnx, or with --all all of heterps.toml, and compare.

    No stage is built. Passes while the plan fits the model, keeps what was asked, and the search finds none that beats
    it by more than the tolerance, all at today's model, pool and prices. Other weights alone are no failure; they are
    told.

    Without MODEL.onnx the plan is checked by its file and today's pool alone: is it sound, does the pool still have
    what it takes, what does it cost there. Passes while the pool is the one that the plan was made for.

    \b
    Files:
      FILE.html         the committed plan beside the one found now, with --report
      PLAN              written anew with --update, a folder with its stages

    \b
    Environment:
      GITHUB_STEP_SUMMARY   the file that --format github appends Markdown to

    \b
    Examples:
      heterps-compile check model.onnx --against model.heterps
      heterps-compile check model.onnx --against plans/plan.json --tolerance 2%
      heterps-compile check model.onnx --against plan.json --format github
      heterps-compile check model.onnx --against plan.json --report check.html
      heterps-compile check model.onnx --against plan.json --update
      heterps-compile check --against plan.json
      heterps-compile check --all --format github
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, CHECK, subject_of(ctx, model, takes_plan=True)) as asked:
        if asked.subject == MANIFEST:
            from heterps_compile.review.manifest.check_all import check_all  # noqa: PLC0415 - onnx

            return review_all(asked, check_all, "Placement check")
        if asked.subject == PLAN:
            return _check_alone(asked)
        return check_one(str(model), asked, update=asked["update"])


def subject_of(ctx: click.Context, model: str | None, *, takes_plan: bool = False) -> str:
    """Return what a command that checks works on: one model and its plan, that plan alone, or a manifest.

    Raises:
        UsageError: where several are named, or none.
    """
    if ctx.params["all_plans"] or ctx.params["manifest"] is not None:
        if model is not None:
            raise click.UsageError("The manifest names the models; leave MODEL.onnx out, or --all.")
        return MANIFEST
    if model is None and takes_plan and ctx.params["against"] is not None:
        return PLAN
    if model is None:
        raise click.UsageError("Name a MODEL.onnx and its plan (--against), or take those of a manifest (--all).")
    if ctx.params["against"] is None:
        raise click.MissingParameter(ctx=ctx, param_hint="'--against'", param_type="option")
    return ONNX


def check_one(model: str, asked: Asked, *, update: bool) -> int:
    """Check one plan, print the result, and write what was found where that is asked for."""
    against, cluster, profile, form = asked["against"], asked["cluster"], asked["profile"], asked["form"]
    report = asked.some("report").get("report")
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.plan.source import path_of, read_plan  # noqa: PLC0415 - pydantic

        plan = read_plan(against)
        check_file("--report", report)
        if update and against.startswith("git:"):
            raise click.UsageError("An update writes files, and a commit is none; name the plan's file or folder.")
        progress.show(Progress("compiling again", 0, 1))
        from heterps_compile.api import need_front_end  # noqa: PLC0415 - numpy
        from heterps_compile.frontends.input_files import read_values  # noqa: PLC0415 - numpy
        from heterps_compile.packages import need_all  # noqa: PLC0415 - as above
        from heterps_compile.passes.placement.methods import find_method  # noqa: PLC0415 - as above
        from heterps_compile.plan.input_values import values_again  # noqa: PLC0415 - as above
        from heterps_compile.review.check import check_plan  # noqa: PLC0415 - torch and onnx
        from heterps_compile.review.pose import pose_again  # noqa: PLC0415 - as above

        need_all([partial(need_front_end, model), partial(find_method, plan.request.method)])
        given = read_values(asked["inputs"], asked["values"])
        if update:
            given = values_again(plan.input_values, given, must_have_all=True)
        posed = pose_again(model, plan, given, cluster=cluster, profile=profile, **asked.some("batch", "shapes"))
        checked = check_plan(posed, asked["tolerance"])
        if report is not None:
            write_changes(report, checked.committed, checked.found, checked.changes)
        progress.close()
        with printing("the result of the check"):
            write_shown(stream, form, _shown(form, checked, against))
        if form == "github":
            from heterps_compile.review.check_words import check_markdown  # noqa: PLC0415 - only the format asked for

            append_summary(check_markdown(checked, against))
        if not update or not checked.is_worth_writing:
            return Verdict.FINE if checked.passes else Verdict.FAILS
        from heterps_compile.review.update import write_plan  # noqa: PLC0415 - only where it is asked for

        write_plan(against, checked.found, model, posed.draft.cluster, profile, given=given)
        tell(f"Wrote {path_of(against)!r} anew.")
        return Verdict.FINE


def _check_alone(asked: Asked) -> int:
    """Check one plan without its model, and print the result."""
    from heterps_compile.plan.source import path_of, read_plan  # noqa: PLC0415 - pydantic
    from heterps_compile.review.check_alone import check_alone, markdown_alone, shown_alone  # noqa: PLC0415 - as above

    against, form = asked["against"], asked["form"]
    checked = check_alone(read_plan(against), asked["cluster"])
    with result_stream() as stream, printing("the result of the check"):
        write_shown(stream, form, shown_alone(form, checked, against, path_of(against)))
    if form == "github":
        append_summary(markdown_alone(checked))
    return Verdict.FINE if checked.passes else Verdict.FAILS


def _shown(form: str, checked: "CheckResult", against: str) -> str:
    from heterps_compile.plan.source import path_of  # noqa: PLC0415 - pydantic
    from heterps_compile.review import check_words  # noqa: PLC0415 - only what the result needs

    if form == "json":
        return check_words.check_document(checked, against)
    if form == "markdown":
        return check_words.check_markdown(checked, against)
    if form == "github":
        return check_words.check_github(checked, path_of(against))
    return check_words.check_text(checked)
