"""``profile.json``: a profile as a text file with a published schema, read strictly.

A profile may come from somebody else, so it is hostile input (``strict_json.py``). :func:`json_schema` gives the schema
as JSON Schema; the package holds it as ``profile.schema.json``. Every number has its unit in its name.

Version 2 has parallel fractions of layers, version 3 slowdowns of busy cores, version 4 times of layers whose tables
are on parameter servers, and rates of a step's other work; older files are read too.

Left out: measuring (``profiling/``).
"""

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from heterps_compile.strict_json import adapter_of, checked, read_utf8, record_of

from .profile import Profile

FORMAT = "heterps-compile profile"
VERSION = 4
_READ = (1, 2, 3, 4)
SCHEMA_NAME = "profile.schema.json"
_SCHEMA_ID = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the schema as JSON Schema, made from the classes of a profile."""
    schema = adapter_of(Profile).json_schema()
    schema["properties"] = {"format": {"const": FORMAT}, "version": {"enum": list(_READ)}, **schema["properties"]}
    return {"$schema": _SCHEMA_ID, **schema, "required": ["format", "version", *schema["required"]]}


def published_schema() -> str:
    """Return the text of the JSON Schema that is in the package."""
    return resources.files("heterps_compile.cost").joinpath(SCHEMA_NAME).read_text("utf-8")


def to_json(profile: Profile) -> str:
    """Write a profile as the text of its file."""
    document = {"format": FORMAT, "version": VERSION, **asdict(profile)}
    text = json.dumps(document, indent=1) + "\n"
    from_json(text, "the profile")
    return text


def read_profile(path: str | Path) -> Profile:
    """Read a profile from its file.

    Raises:
        InputError: if the file is missing, too large, no JSON, or breaks the schema.
    """
    where = f"the profile {str(path)!r}"
    return from_json(read_utf8(path, where), where)


def from_json(text: str, where: str) -> Profile:
    """Read a profile from the text of its file.

    Args:
        text: The file's text.
        where: What to call the file in messages.

    Raises:
        InputError: naming the place in the file and the expectation there.
    """
    document = record_of(text, where, FORMAT, _READ)
    return checked(Profile, {key: value for key, value in document.items() if key not in ("format", "version")}, where)
