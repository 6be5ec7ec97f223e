"""Strict reading and whole writing of JSON files that may come from a stranger.

Refused are files beyond a size, other encodings, duplicate keys, NaN and infinities, numbers too long, brackets too
deep, and what a schema does not allow. A schema is a pydantic model, or a frozen dataclass whose
``__pydantic_config__`` is :data:`STRICT`: the value, its schema and its file are one class.

Left out: the plans of models, which have versions and migrations (``plan/file.py``); the meaning of a file.
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from heterps_compile.conflict_markers import unmerged
from heterps_compile.errors import HeterpsError, InputError, RunError
from heterps_compile.escape import one_line, printable, shorten
from heterps_compile.plain_file import open_plain
from heterps_compile.units import counted

MOST_BYTES = 256 << 20
MOST = 1e30
"""Of a number: beyond it sums over a file may overflow."""

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Whole = Annotated[int, Field(ge=1, le=2**31 - 1)]
Amount = Annotated[float, Field(ge=0, le=MOST)]

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")  # of a model, of a dataclass

T = TypeVar("T")


class Part(BaseModel):
    """A record of a file: known keys alone, no text for a number, finite numbers."""

    model_config = STRICT | ConfigDict(frozen=True, populate_by_name=True)


def read_record(path: str | Path, where: str, format_: str, versions: Sequence[int]) -> dict[str, Any]:
    """Read a file of one format.

    Args:
        path: A file.
        where: What to call it in messages.
        format_: The expected value of its key ``format``.
        versions: The versions that are read, ascending.

    Raises:
        InputError: if it cannot be read or is of another format or version.
    """
    return record_of(read_utf8(path, where), where, format_, versions)


def record_of(text: str, where: str, format_: str, versions: Sequence[int]) -> dict[str, Any]:
    """Parse the text of a file as :func:`read_record` reads the file."""
    document = parsed(text, where)
    if not isinstance(document, dict) or document.get("format") != format_:
        raise InputError(f"{where}: its key 'format' must be {format_!r}")
    if type(document.get("version")) is not int or document["version"] not in versions:
        found = shorten(printable(repr(document.get("version"))), 40)
        read = ", ".join(map(str, versions))
        raise InputError(f"{where} has version {found}, and {read} is what this heterps-compile reads")
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


def parsed(text: str, where: str, error_of: type[HeterpsError] = InputError) -> Any:
    """Parse JSON.

    Raises:
        HeterpsError: of the class given, if it is no JSON, or has a duplicate key, NaN, an infinity, long numbers or
            deep brackets.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_no_key_twice, parse_constant=_no_constant, parse_float=_finite_number
        )
    except json.JSONDecodeError as error:
        said = unmerged(text) or f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise error_of(f"{where} {said}") from error
    except _BadJsonError as error:
        raise error_of(f"{where}: {error}") from error
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, 100,000 brackets
        raise error_of(f"{where} holds a number too long or brackets too deep") from error


class _BadJsonError(Exception):
    """The text is JSON to Python, but not to us."""


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _BadJsonError(
            f"the key {shorten(printable(twice), 60)!r} stands twice in one record; a merge gone wrong?"
        )
    return record


def _no_constant(name: str) -> Any:
    raise _BadJsonError(f"{name} is no number")


def _finite_number(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise _BadJsonError(f"{shorten(text, 40)} is beyond the largest number, {sys.float_info.max:.3g}")
    return number


_ADAPTERS: dict[object, TypeAdapter[Any]] = {}


def adapter_of(schema: type[Any]) -> TypeAdapter[Any]:
    """Build the validator of a schema once."""
    if schema not in _ADAPTERS:
        _ADAPTERS[schema] = TypeAdapter(schema)
    return _ADAPTERS[schema]


def checked(schema: type[T], document: Any, where: str, error_of: type[HeterpsError] = InputError) -> T:
    """Check parsed JSON against a schema.

    Args:
        schema: A pydantic model, or a dataclass with :data:`STRICT`.
        document: As :func:`parsed` returns it.
        where: What to call the file in messages.
        error_of: The class of the error.

    Raises:
        HeterpsError: naming the place in the file, the value and the expectation.
    """
    try:
        value: T = adapter_of(schema).validate_json(json.dumps(document))  # lists become the tuples of a frozen value
    except ValidationError as error:
        raise error_of(f"{where}: {fault_of(error)}") from error
    except HeterpsError as error:
        raise error_of(f"{where}: {error}") from error
    return value


def received(schema: type[T], text: str | bytes, what: str) -> T:
    """Read what another rank sent.

    Args:
        schema: Of it.
        text: As it came.
        what: What to call it in messages.

    Raises:
        RunError: if it is something else.
    """
    sent = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return checked(schema, parsed(sent, what, RunError), what, RunError)


def fault_of(error: ValidationError) -> str:
    """Describe the first fault that pydantic found in one line: place, expectation, value, and how many more."""
    # a misspelt key is missing too: of the two it is the one that tells
    faults = error.errors(include_url=False, include_context=False)
    fault = next((each for each in faults if each["type"] in _UNKNOWN), faults[0])
    more = f" (and {counted(len(faults) - 1, 'more fault')})" if len(faults) > 1 else ""
    return one_line(f"{_place(fault['loc'])}: {_said(fault)}{more}")


def _place(location: tuple[int | str, ...]) -> str:
    place = ""
    for part in location:
        if isinstance(part, int):
            place += f"[{part}]"
        else:
            name = part if part.isidentifier() else repr(shorten(printable(part), 60))
            place += f"{'.' * (place != '')}{name}"
    return place or "the file"


def _said(fault: Any) -> str:
    if fault["type"] in _UNKNOWN:
        return "unknown key"
    if fault["type"] == "missing":
        return "the key is missing"
    said = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "value_error" or isinstance(fault["input"], (dict, list)):
        return said
    return f"{said}, not {shorten(printable(repr(fault['input'])), 60)}"


def read_json(path: Path, schema: type[T]) -> T:
    """Read a file that is one value of a schema.

    Raises:
        InputError: naming the file and the first fault.
    """
    where = printable(str(path))
    return checked(schema, parsed(read_utf8(path, where), where), where)


def write_json(path: Path, value: object) -> None:
    """Write a value of a schema, completely or not at all.

    Raises:
        RunError: if the file cannot be written.
        ValueError: if the value has a number that is not finite, which no reader would accept.
    """
    content = json.dumps(adapter_of(type(value)).dump_python(value, mode="json"), indent=2, allow_nan=False)
    new = path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(content.encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise RunError(f"cannot write {printable(str(path))}: {error.strerror or error}") from error
