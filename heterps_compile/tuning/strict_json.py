"""Files of one JSON value each, read strictly: types are checked, unknown keys and endless files are refused.

Left out: the journal, which has an event a line (``journal.py``).
"""

import os
from pathlib import Path
from typing import Any, TypeVar

from heterps_compile.errors import InputError, RunError
from heterps_compile.escape import one_line, printable, short

STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}
"""The ``__pydantic_config__`` of a dataclass that is a file."""

_LARGEST_BYTES = 64 * 2**20

Kind = TypeVar("Kind")


def read_json(path: Path, kind: type[Kind]) -> Kind:
    """Read a value of a dataclass.

    Raises:
        InputError: naming the file and the first fault.
    """
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - only where files are read

    shown = printable(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}") from error
    if len(data) > _LARGEST_BYTES:
        raise InputError(f"{shown} has more than {_LARGEST_BYTES:,} bytes; expected {_LARGEST_BYTES:,} or fewer")
    try:
        return TypeAdapter(kind).validate_json(data)
    except ValidationError as error:
        raise InputError(f"{shown}: {fault_of(error)}") from error
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error


def write_json(path: Path, value: object) -> None:
    """Write a value of a dataclass, completely or not at all.

    Raises:
        RunError: if the file cannot be written.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 - only where files are written

    new = path.with_name(f".{path.name}.new")
    try:
        with new.open("wb") as file:
            file.write(TypeAdapter(type(value)).dump_json(value, indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {printable(str(path))}: {error.strerror or error}") from error


def fault_of(error: Any) -> str:
    """Return the first fault that pydantic found, in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{short(printable(place))}: {one_line(first['msg'])}" if place else one_line(first["msg"])
