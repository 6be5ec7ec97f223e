"""``plan.json``: a plan as a small text file that is versioned, deterministic, and reads well in a diff.

The same plan gives the same bytes: keys in the order of the schema, one layer and one value per line, everything
outside printable ASCII escaped (so that no name can play tricks on a reviewer's screen).

Left out: the times spent (``search_s``, ``total_s``), which differ from run to run and read back as 0; weights and
code (they are the artefacts of the folder, ``folder.py``).
"""

import json
from typing import Any

from pydantic import ValidationError

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import PlanError
from heterps_compile.escape import shorten

from . import schema
from .consistency import contradictions
from .migrate import migrate
from .plan import Plan
from .record import to_document, to_plan

GIVEN_PLAN = "heterps-compile given plan"
"""The ``format`` of a problem file's plan, which is another file (``problem_file/given_plan.py``)."""

_ONE_LINE_DEPTH = 3  # of pins, memory parts and artefacts
_SHOWN_INPUT = 60


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
    try:
        document = json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        if conflict := unmerged(text):
            raise PlanError(f"{where} {conflict}") from error
        raise PlanError(f"{where} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from error
    except _BadJsonError as error:
        raise PlanError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        raise PlanError(f"{where} is no plan: it holds a number too long or brackets too deep") from error
    if isinstance(document, dict) and document.get("format") == GIVEN_PLAN:
        raise PlanError(
            f"{where} is the plan of a problem file: its stages are of layers whose times, prices and pool are in the "
            "problem file, and there is no model to check or run; heterps-compile predict PROBLEM --plan PLAN says "
            "what its step takes"
        )
    return to_plan(_check(document, where))


class _BadJsonError(Exception):
    """The text is JSON to Python, but not to us."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _BadJsonError(f"the key {twice!r} stands twice in one record; a merge gone wrong?")
    return record


def _no_constant(name: str) -> Any:
    raise _BadJsonError(f"{name} is no number")


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
    try:
        file = schema.PlanFile.model_validate(migrate(document, version))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        raise PlanError(f"{where}: {fault_text(faults[0])}{_more(len(faults))}") from error
    wrong = list(contradictions(file))
    if wrong:
        path, fault = wrong[0]
        raise PlanError(f"{where}: {path}: {fault}{_more(len(wrong))}")
    return file


def _more(count: int) -> str:
    return f" (and {count - 1} more faults)" if count > 1 else ""


def fault_text(fault: Any) -> str:
    """Say in one line where a document has a fault that pydantic found, and which."""
    path = ""
    for part in fault["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if part.isidentifier() else repr(part))
    if fault["type"] == "extra_forbidden":
        return f"{path}: unknown key"
    if fault["type"] == "missing":
        return f"{path}: the key is missing"
    said = fault["msg"].removeprefix("Value error, ")
    return f"{path}: {said}, got {shorten(repr(fault['input']), _SHOWN_INPUT)}"


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
