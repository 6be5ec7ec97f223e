"""``plan.json``: a plan as a small text file that is versioned, deterministic, and reads well in a diff.

The same plan gives the same bytes: keys in the order of the schema, one layer and one value per line, everything
outside printable ASCII escaped (so that no name can play tricks on a reviewer's screen).

Left out: the times spent (``search_s``, ``total_s``), which differ from run to run and read back as 0; weights and
code (they are the artefacts of the folder, ``folder.py``).
"""

import json
from typing import Any

from heterps_compile.errors import PlanError
from heterps_compile.strict_json import checked, parsed
from heterps_compile.units import counted

from . import schema
from .consistency import contradictions
from .migrate import migrate
from .plan import Plan
from .record import to_document, to_plan

GIVEN_PLAN = "heterps-compile given plan"
"""The ``format`` of a problem file's plan, which is another file (``problem_file/given_plan.py``)."""

_ONE_LINE_DEPTH = 3  # of pins, memory parts and artefacts


def to_json(plan: Plan) -> str:
    """Write a plan as the text of ``plan.json``; the installed versions made it where it does not say.

    Args:
        plan: A complete plan: provisioned and scheduled.

    Raises:
        PlanError: where the plan breaks the schema, naming the JSON path; reading it back would fail.
    """
    return render(_check(to_document(plan), "the plan").model_dump()) + "\n"


def from_json(text: str, where: str) -> Plan:
    """Read a plan from the text of ``plan.json``.

    Args:
        text: The file's text.
        where: What to call the file in messages.

    Raises:
        PlanError: where anything is wrong, naming the JSON path and what was expected.
    """
    document = parsed(text, where, PlanError)
    if isinstance(document, dict) and document.get("format") == GIVEN_PLAN:
        raise PlanError(
            f"{where} is the plan of a problem file: its stages are of layers whose times, prices and pool are in the "
            "problem file, and there is no model to check or run; heterps-compile predict PROBLEM --plan PLAN says "
            "what its step takes"
        )
    return to_plan(_check(document, where))


def _check(document: Any, where: str) -> schema.PlanFile:
    version = document.get("version") if isinstance(document, dict) else None
    if type(version) is not int:
        raise PlanError(f'{where} is no plan: expected a record with "version": {schema.VERSION}')
    if version > schema.VERSION:
        raise PlanError(
            f"{where} has version {version}, this heterps-compile reads version {schema.VERSION}: "
            f"a newer release wrote it, so upgrade (pip install --upgrade heterps-compile) or compile again"
        )
    if version < 1:
        raise PlanError(
            f"{where} has version {version}, and there is none below 1: the file is damaged or no plan; compile again"
        )
    file = checked(schema.PlanFile, migrate(document, version), where, PlanError)
    wrong = list(contradictions(file))
    if wrong:
        path, fault = wrong[0]
        more = f" (and {counted(len(wrong) - 1, 'more fault')})" if len(wrong) > 1 else ""
        raise PlanError(f"{where}: {path}: {fault}{more}")
    return file


def render(value: Any, depth: int = 0) -> str:
    """Lay out JSON with one entry a line, but a small record of plain values deep inside on one line."""
    if isinstance(value, dict):
        brackets, entries = "{}", [(f"{json.dumps(key)}: ", item) for key, item in value.items()]
        is_small = depth >= _ONE_LINE_DEPTH and not any(isinstance(item, dict | list) for item in value.values())
    elif isinstance(value, list):
        brackets, entries, is_small = "[]", [("", item) for item in value], False
    else:
        return json.dumps(value, allow_nan=False)
    if is_small or not entries:
        return brackets[0] + ", ".join(key + render(item) for key, item in entries) + brackets[1]
    inner = ",\n".join("  " * (depth + 1) + key + render(item, depth + 1) for key, item in entries)
    return f"{brackets[0]}\n{inner}\n{'  ' * depth}{brackets[1]}"
