"""``heterps-compile diff OLD NEW``: what changed from one plan to another, for people, programs and pull requests.

Left out: the comparison itself (``plan/diff.py``) and the looks of it (``report/diff_*.py``).
"""

from typing import TYPE_CHECKING, Any

import click

from heterps_compile.errors import HeterpsError
from heterps_compile.escape import one_line
from heterps_compile.plan.command_options import DIFF, TWO_PLANS

from . import options
from .output import printing, result_stream
from .pictures import check_file, write_changes
from .summary import append_summary

if TYPE_CHECKING:
    from heterps_compile.plan.diff import PlanDiff

_WRONG_USAGE = 2


@click.command(
    "diff",
    epilog="Exit codes: 0 the same, or nothing that --fail-on names; 1 changed; 2 wrong usage, or no plan to read; "
    "130 interrupted.",
)
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@options.takes(DIFF)
@click.pass_context
def diff(ctx: click.Context, /, old: str, new: str, **_: Any) -> int:
    """Compare two plans: what moved, which stages split or merged, and what that does to price and throughput.

    OLD and NEW are plan.json files, compiled folders, or git:REV:PATH. Layers are matched by structure, so that other
    names or numbers are no change.

    \b
    Files:
      FILE.html         the changes, both plans' layers and their numbers, and pictures of NEW, with --report

    \b
    Environment:
      GITHUB_STEP_SUMMARY   a file that --format github appends the changes to, as Markdown

    \b
    Examples:
      heterps-compile diff old/plan.json new/plan.json
      heterps-compile diff git:origin/main:model.heterps model.heterps
      heterps-compile diff git:HEAD:plan.json plan.json --format markdown
      heterps-compile diff git:HEAD:plan.json plan.json --report changes.html
      heterps-compile diff old.json new.json --fail-on "placement,price>5%,throughput<-2%"
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, DIFF, TWO_PLANS) as asked:
        return _diff(old, new, **asked.some("form", "fail_on", "report"))


def _diff(old: str, new: str, form: str, fail_on: str | None, report: str | None) -> int:
    from heterps_compile.plan.fail_on import met, parse_criteria  # noqa: PLC0415 - only what the command needs
    from heterps_compile.plan.file import from_json  # noqa: PLC0415 - pydantic
    from heterps_compile.plan.source import path_of, read_plan_text  # noqa: PLC0415

    try:
        criteria = None if fail_on is None else parse_criteria(fail_on)
        text = read_plan_text(new)
        before, after = from_json(read_plan_text(old), old), from_json(text, new)
        check_file("--report", report)
    except HeterpsError as error:
        return _refused(error)
    from heterps_compile.plan.diff import diff as diff_plans  # noqa: PLC0415 - as above

    changes = diff_plans(before, after)
    failed = [] if criteria is None else met(criteria, changes)
    if report is not None:
        try:
            write_changes(report, before, after, changes)
        except HeterpsError as error:
            return _refused(error)
    with result_stream() as stream, printing("the diff"):
        stream.write(_shown(form, changes, (old, new), (path_of(new), text), failed))
        stream.flush()
    if form == "github":
        from heterps_compile.report.diff_markdown import diff_markdown  # noqa: PLC0415 - only the format asked for

        append_summary(diff_markdown(changes, old, new, failed))
    return int(bool(failed) if criteria is not None else not changes.is_empty)


def _refused(error: HeterpsError) -> int:
    """Tell an error, and give an exit code other than 1, which means changed."""
    click.echo(f"Error: {one_line(str(error))}", err=True)
    return _WRONG_USAGE


def _shown(form: str, changes: "PlanDiff", where: tuple[str, str], file: tuple[str, str], failed: list[str]) -> str:
    if form == "json":
        from heterps_compile.report.diff_document import diff_document  # noqa: PLC0415 - only the format asked for

        return diff_document(changes, *where, failed)
    if form == "markdown":
        from heterps_compile.report.diff_markdown import diff_markdown  # noqa: PLC0415

        return diff_markdown(changes, *where, failed)
    if form == "github":
        from heterps_compile.report.diff_github import diff_github  # noqa: PLC0415

        return diff_github(changes, *file, failed)
    from heterps_compile.report.diff_text import diff_text  # noqa: PLC0415

    return diff_text(changes, failed)
