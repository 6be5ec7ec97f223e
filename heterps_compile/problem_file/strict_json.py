"""Reads a JSON file that may come from a stranger: strictly, and with one sentence for what is wrong.

Refused are files beyond a size, other encodings, keys that stand twice, NaN and infinities, numbers too long, brackets
too deep, and what a schema does not know.

Left out: what the files say (``read_problem.py``, ``given_plan.py``).
"""

import json
import os
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import InputError
from heterps_compile.escape import one_line, printable, shorten
from heterps_compile.plain_file import open_plain
from heterps_compile.units import counted

MOST_BYTES = 256 << 20
MOST = 1e30
"""Of a number: beyond it sums over a file may overflow."""

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Whole = Annotated[int, Field(ge=1, le=2**31 - 1)]
Amount = Annotated[float, Field(ge=0, le=MOST)]

T = TypeVar("T", bound=BaseModel)


class Part(BaseModel):
    """A record of a file: known keys alone, no text for a number, no number that is none."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, populate_by_name=True)


def read_record(path: str | Path, where: str, format_: str, version: int) -> dict[str, Any]:
    """Read a file of one format.

    Args:
        path: A file.
        where: What to call it in messages.
        format_: That its key ``format`` must name.
        version: That its key ``version`` must be.

    Raises:
        InputError: where it cannot be read or is of another format.
    """
    document = parsed(read_utf8(path, where), where)
    if not isinstance(document, dict) or document.get("format") != format_:
        raise InputError(f"{where}: its key 'format' must be {format_!r}")
    if type(document.get("version")) is not int or document["version"] != version:
        found = shorten(printable(repr(document.get("version"))), 40)
        raise InputError(f"{where} has version {found}, and {version} is what this heterps-compile reads")
    return document


def read_utf8(path: str | Path, where: str) -> str:
    """Read a text file.

    Raises:
        InputError: if it cannot be read, is too large, or is no UTF-8 text.
    """
    try:
        with open_plain(path) as file:
            is_large = os.fstat(file.fileno()).st_size > MOST_BYTES
            content = b"" if is_large else file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {where}: {getattr(error, 'strerror', None) or 'no file has this name'}"
        ) from error
    if is_large or len(content) > MOST_BYTES:
        raise InputError(f"{where} has more than {MOST_BYTES >> 20} MiB; none is that large")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is no UTF-8 text: {error.reason} at byte {error.start}") from error


def parsed(text: str, where: str) -> Any:
    """Parse JSON.

    Raises:
        InputError: if it is no JSON, or holds a key twice, NaN, an infinity, long numbers or deep brackets.
    """
    try:
        return json.loads(text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        said = unmerged(text) or f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise InputError(f"{where} {said}") from error
    except _BadJsonError as error:
        raise InputError(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        raise InputError(f"{where} holds a number too long or brackets too deep") from error


class _BadJsonError(Exception):
    """The text is JSON to Python, but not to us."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _BadJsonError(f"the key {shorten(printable(twice), 60)!r} stands twice in one record")
    return record


def _no_constant(name: str) -> Any:
    raise _BadJsonError(f"{name} is no number")


def checked(schema: type[T], document: Any, where: str) -> T:
    """Check a record against a schema.

    Raises:
        InputError: naming the place in the file, what stands there and what was expected.
    """
    try:
        return schema.model_validate(document)
    except ValidationError as error:
        # a misspelt key is missing too: of the two it is the one that tells
        faults = error.errors(include_url=False, include_context=False)
        fault = next((each for each in faults if each["type"] == "extra_forbidden"), faults[0])
        more = f" (and {counted(len(faults) - 1, 'more fault')})" if len(faults) > 1 else ""
        raise InputError(one_line(f"{where}: {_place(fault['loc'])}: {_said(fault)}{more}")) from error


def _place(location: tuple[int | str, ...]) -> str:
    place = ""
    for part in location:
        place += f"[{part}]" if isinstance(part, int) else f"{'.' * (place != '')}{shorten(printable(part), 60)}"
    return place or "the file"


def _said(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        return "unknown key"
    if fault["type"] == "missing":
        return "the key is missing"
    said = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error" or isinstance(fault["input"], (dict, list)):
        return said
    return f"{said}, not {shorten(printable(repr(fault['input'])), 60)}"
