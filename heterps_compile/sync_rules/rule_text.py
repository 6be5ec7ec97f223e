"""Rules as text: ``topk(density=0.01, feedback=false)``.

A rule is its name, and in parentheses its options: those without a default always, others where they differ from it.
How one is written follows from the type of its field: a whole number, a number, ``true`` or ``false``, one of some
words, ``none``.

Left out: which rules there are (``rules.py``), and text that names several (``assignment.py``).
"""

import math
import re
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from heterps_compile.errors import InputError, PlugInError, UnknownNameError
from heterps_compile.escape import short

from .rule import SyncRule

RULE = re.compile(r"\s*([A-Za-z][\w-]{0,63})\s*(?:\(([^()]{0,1000})\))?\s*", re.ASCII)
"""A rule's name, and what stands in its parentheses."""

_OPTION = re.compile(r"\s*([A-Za-z]\w{0,63})\s*=\s*([\w.+-]{1,64})\s*", re.ASCII)


def rule_text(rule: SyncRule) -> str:
    """Return a rule as text that :func:`parse_options` of its type reads."""
    given = [
        f"{of.name}={_value_text(getattr(rule, of.name))}"
        for of in _options(type(rule))
        if of.default is MISSING or getattr(rule, of.name) != of.default
    ]
    return rule.name + (f"({', '.join(given)})" if given else "")


def parse_options(of: type[SyncRule], text: str | None) -> SyncRule:
    """Return a rule of a type with the options of a text; None where it has no parentheses.

    Raises:
        InputError: where the text is no list of options, a value is not what its option takes, or one is missing.
        UnknownNameError: for an unknown option, with the nearest.
    """
    kinds = _kinds(of)
    given: dict[str, Any] = {}
    for part in [] if text is None or not text.strip() else text.split(","):
        match = _OPTION.fullmatch(part)
        if match is None:
            raise InputError(f"{of.name} has {short(part.strip())} where NAME=VALUE is expected; write {of.example}")
        name, written = match.groups()
        if not kinds:
            raise InputError(f"{of.name} has no options, and {name!r} is given; write {of.name}")
        if name not in kinds:
            raise UnknownNameError(f"option of {of.name}", name, kinds)
        if name in given:
            raise InputError(f"the option {name!r} of {of.name} is given twice; leave one out")
        given[name] = _value(f"{name} of {of.name}", kinds[name], written)
    missing = [one.name for one in _options(of) if one.default is MISSING and one.name not in given]
    if missing:
        raise InputError(f"{of.name} needs {' and '.join(missing)}; write {of.example}")
    return of(**given)


def _options(of: type[SyncRule]) -> "tuple[Field[Any], ...]":
    return fields(of) if is_dataclass(of) else ()


def _kinds(of: type[SyncRule]) -> dict[str, Any]:
    """Return the type of every option."""
    try:
        hints = get_type_hints(of)
    except (NameError, TypeError) as error:
        raise PlugInError(f"the types of the options of the rule {of.name!r} cannot be read: {error}") from error
    return {one.name: hints[one.name] for one in _options(of)}


def _value_text(value: Any) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _value(what: str, kind: Any, written: str) -> Any:
    if get_origin(kind) is Literal:
        if written not in get_args(kind):
            raise UnknownNameError(f"value for {what}:", written, map(str, get_args(kind)))
        return written
    kinds = get_args(kind) or (kind,)
    if NoneType in kinds and written == "none":
        return None
    for one in kinds:
        try:
            if one is bool and written in ("true", "false"):
                return written == "true"
            if one is int and len(written) < _LONGEST:
                return int(written)
            if one is float and math.isfinite(float(written)):
                return float(written)
        except ValueError:
            continue
    words = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "none"}
    wanted = " or ".join(words.get(one, "what the rule takes") for one in kinds)
    raise InputError(f"{what} is {short(written)}; it must be {wanted}")


_LONGEST = 20  # digits of a number that is worth reading
