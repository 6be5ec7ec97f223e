"""``heterps-compile update``: write the plan that ``check`` finds, where the committed one is not as good or as new.

Left out: the search (``review/check.py``), how a plan is replaced as a whole (``review/update.py``).
"""

from typing import Any

import click

from heterps_compile.plan.command_options import MANIFEST, ONNX, UPDATE
from heterps_compile.plan_diff.verdict import REVIEW_EXIT_CODES

from . import options
from .check import check_one, subject_of
from .judged import judged
from .review_all import review_all


@click.command("update", epilog=REVIEW_EXIT_CODES)
@click.argument("model", metavar="[MODEL.onnx]", required=False)
@options.takes(UPDATE)
@click.pass_context
@judged
def update(ctx: click.Context, /, model: str | None, **_: Any) -> int:
    """Update a committed plan: check MODEL.onnx, or with --all every model of heterps.toml, and write the plan found.

    A plan that holds, and than which none better by more than the tolerance is found, stays. Each plan is replaced as a
    whole: a crash leaves the old one or the new one. Of a manifest, plans that are not there yet are written too.

    \b
    Files:
      PLAN              written anew; a compiled folder is compiled anew

    \b
    Environment:
      GITHUB_STEP_SUMMARY   the file that --format github appends Markdown to

    \b
    Examples:
      heterps-compile update model.onnx --against model.heterps
      heterps-compile update --all
      heterps-compile update --manifest ci/heterps.toml --format markdown
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    with options.asked_of(ctx, UPDATE, subject_of(ctx, model)) as asked:
        if asked.subject == MANIFEST:
            from heterps_compile.review.manifest.check_all import update_all  # noqa: PLC0415 - onnx

            return review_all(asked, update_all, "Placement update")
        assert (asked.subject, model is None) == (ONNX, False)  # noqa: S101 - as subject_of says
        return check_one(str(model), asked, update=True)
