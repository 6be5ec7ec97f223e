"""``check --all``, ``update --all`` and ``diff --all git:REV``: all plans of a manifest, one summary, one exit code.

Left out: the reviews and the looks of the summary (``review/manifest/``).
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TextIO

from heterps_compile.escape import printable
from heterps_compile.options import Asked
from heterps_compile.plan_diff.verdict import Verdict
from heterps_compile.progress import Progress

from .output import ProgressLine, append_summary, printing, quiet_libraries, result_stream, write_shown

if TYPE_CHECKING:
    from heterps_compile.review.manifest.manifest_file import Manifest
    from heterps_compile.review.manifest.outcomes import Outcome

Reviews = Callable[["Manifest"], "Iterator[Outcome]"]


def review_all(asked: Asked, reviews: Reviews, title: str) -> Verdict:
    """Review every plan of the manifest that is asked for, print the summary, return the worst verdict.

    Raises:
        HeterpsError: where there is no manifest to read.
    """
    form, path = asked["form"], asked["manifest"]
    assert path is not None or asked["all_plans"]  # noqa: S101 - one of the two is what made it this subject
    with (
        result_stream() as stream,
        quiet_libraries(verbose=False),
        closing(ProgressLine(sys.stderr, wanted=True)) as progress,
    ):
        from heterps_compile.review.manifest.manifest_file import read_manifest  # noqa: PLC0415 - only where there is one
        from heterps_compile.review.manifest.outcomes import verdict_of  # noqa: PLC0415 - as above

        manifest = read_manifest(path)
        progress.show(Progress("reviewing", 0, len(manifest.entries)))
        found: list[Outcome] = []
        for outcome in reviews(manifest):
            found.append(outcome)
            progress.show(Progress(f"reviewed {printable(outcome.plan)}", len(found), len(manifest.entries)))
        progress.close()
        print_outcomes(stream, found, form, title)
        return verdict_of(found)


def print_outcomes(stream: TextIO, found: "list[Outcome]", form: str, title: str) -> None:
    """Print what became of plans, and append it to the summary of a workflow's step where the format is for one."""
    from heterps_compile.review.manifest import outcomes as words  # noqa: PLC0415 - only what the result needs

    shown = {
        "text": lambda: words.outcomes_text(found),
        "json": lambda: words.outcomes_document(found),
        "markdown": lambda: words.outcomes_markdown(found, title),
        "github": lambda: words.outcomes_github(found, title),
    }[form]()
    with printing("the summary"):
        write_shown(stream, form, shown)
    if form == "github":
        append_summary(words.outcomes_markdown(found, title))
