"""What the review of every plan of a manifest came to: one summary, one comment, one verdict.

Left out: the reviews themselves (``check_all.py``, ``diff_all.py``).
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.errors import HeterpsError
from heterps_compile.escape import for_markdown, printable
from heterps_compile.plan.source import path_of
from heterps_compile.plan_diff.formats import ANNOTATIONS, workflow_command
from heterps_compile.plan_diff.verdict import Verdict, verdict_of_error, worst
from heterps_compile.units import counted

FORMAT_VERSION = 1  # of the JSON document

_WORDS = {Verdict.FINE: "fine", Verdict.FAILS: "fails", Verdict.NOT_JUDGED: "not judged"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one plan.

    Attributes:
        plan: Its path.
        verdict: Whether it may stay.
        said: Why, in one sentence without a full stop.
        text: What changed, in lines for a terminal; "" for nothing to add.
        markdown: The same for a pull request.
        document: The same as JSON; None for nothing to add.
        has_changed: Whether it is another plan than in the commit that it is compared with.
    """

    plan: str
    verdict: Verdict
    said: str
    text: str = ""
    markdown: str = ""
    document: Any = None
    has_changed: bool = False


def refused(plan: str, error: HeterpsError) -> Outcome:
    """Return what an error says of a plan."""
    return Outcome(plan, verdict_of_error(error), str(error))


def verdict_of(outcomes: Sequence[Outcome]) -> Verdict:
    """Return the worst verdict."""
    return worst(outcome.verdict for outcome in outcomes)


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """Return the lines for a terminal: every plan's verdict, the count, then what changed in those that fail."""
    verdict, plan = (max(map(len, column)) for column in zip(*map(_row, outcomes), strict=True))
    lines = [
        f"{_WORDS[one.verdict].ljust(verdict)}  {printable(one.plan).ljust(plan)}  {printable(one.said)}"
        for one in outcomes
    ]
    lines += ["", _count(outcomes)]
    for outcome in _with_more(outcomes):
        lines += ["", f"{printable(outcome.plan)}:", outcome.text.rstrip("\n")]
    return "\n".join(lines) + "\n"


def outcomes_markdown(outcomes: Sequence[Outcome], title: str) -> str:
    """Return one comment for a pull request."""
    lines = [f"### {title}", "", _count(outcomes), "", "| plan | | |", "|---|---|---|"]
    for one in sorted(outcomes, key=lambda outcome: -outcome.verdict):
        word = _WORDS[one.verdict]
        lines.append(
            f"| {for_markdown(one.plan)} | {word if one.verdict is Verdict.FINE else f'**{word}**'} "
            f"| {for_markdown(one.said)} |"
        )
    for outcome in _with_more(outcomes):
        summary = f"<details><summary>{for_markdown(outcome.plan)}</summary>"
        lines += ["", summary, "", outcome.markdown.rstrip("\n"), "", "</details>"]
    return "\n".join(lines) + "\n"


def outcomes_github(outcomes: Sequence[Outcome], title: str) -> str:
    """Return annotations, as many as GitHub shows: errors at plans that are not fine, notices where others changed."""
    failing = sorted((one for one in outcomes if one.verdict is not Verdict.FINE), key=lambda one: -one.verdict)
    changed = [one for one in outcomes if one.verdict is Verdict.FINE and one.text]
    lines = [*_annotations("error", failing, title), *_annotations("notice", changed, title)]
    return "".join(f"{line}\n" for line in lines)


def _annotations(level: str, outcomes: Sequence[Outcome], title: str) -> Iterator[str]:
    shown = outcomes if len(outcomes) <= ANNOTATIONS else outcomes[: ANNOTATIONS - 1]
    for one in shown:
        yield workflow_command(level, path_of(one.plan), 1, title, one.said)
    if len(shown) < len(outcomes):
        more = f"{counted(len(outcomes) - len(shown), 'more plan')} like this; the summary of the step lists them"
        yield workflow_command(level, path_of(outcomes[len(shown)].plan), 1, title, more)


def outcomes_document(outcomes: Sequence[Outcome]) -> str:
    """Return the text of a JSON document; keys may be added, none goes or changes its meaning."""
    document = {
        "format_version": FORMAT_VERSION,
        "exit_code": int(verdict_of(outcomes)),
        "plans": [
            {
                "plan": one.plan,
                "verdict": _WORDS[one.verdict],
                "said": one.said,
                "changed": one.has_changed,
                "found": one.document,
            }
            for one in outcomes
        ],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _row(outcome: Outcome) -> tuple[str, str]:
    return _WORDS[outcome.verdict], printable(outcome.plan)


def _with_more(outcomes: Sequence[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.text]


def _count(outcomes: Sequence[Outcome]) -> str:
    counts = {verdict: sum(one.verdict is verdict for one in outcomes) for verdict in Verdict}
    many = _WORDS | {Verdict.FAILS: "fail"}
    told = [f"{count} {(_WORDS if count == 1 else many)[verdict]}" for verdict, count in counts.items() if count]
    return f"{counted(len(outcomes), 'plan')}: {', '.join(told)}."
