"""``space.toml``: a space as its user writes it, read strictly.

A table is a group, or a parameter where it has one of the keys ``float``, ``integer`` and ``choice``; a
plain value is a constant. Groups nest, and their names begin those of their parameters. Of an ``exclusive`` group one
member is chosen; an ``optional`` group is there or not; what is chosen is a parameter with the group's name.

Not covered: the checks of a space as a whole (``make_space.py``).
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.strict_json import read_utf8
from heterps_compile.units import in_words

from .make_space import make_space
from .parameters import ALWAYS, Choice, Clause, Condition, Float, Integer, Parameter, Value
from .space import PARTS, Space

PLAN_PARAMETERS = ("micro_batches", "precision", "replicas", "schedule")
"""What can be tuned of the plan that a trial runs by."""

_FORBIDDEN = "forbidden"
_KINDS = ("float", "integer", "choice")
_OF_PARAMETERS = ("log", "when")
_OF_GROUPS = ("exclusive", "optional", "when")
_RESERVED = {*_KINDS, *_OF_PARAMETERS, *_OF_GROUPS, _FORBIDDEN}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_DEEPEST = 16
_LARGEST = 4 * 2**20  # characters
_MOST = 2**53


def read_space(path: Path) -> Space:
    """Read a space from a ``.toml`` file.

    Raises:
        InputError: naming the file, the place and the fault.
    """
    return space_of_text(str(path), read_utf8(path, printable(str(path))))


def space_of_text(name: str, text: str) -> Space:
    """Return the space in the text of a file.

    Args:
        name: The file's name.
        text: Its text.

    Raises:
        InputError: naming the file, the place and the fault.
    """
    shown = printable(name)
    if not name.endswith(".toml"):
        raise InputError(f"{shown} is no .toml file. Fix: begin a search with the space as TOML")
    if len(text) > _LARGEST:
        raise InputError(f"{shown} has more than {_LARGEST:,} characters, which are the most of a space")
    try:
        return parse_space(tomllib.loads(text))
    except InputError as error:
        raise InputError(f"{shown}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown} is no TOML: {printable(str(error))}") from error


def parse_space(given: Mapping[str, object]) -> Space:
    """Return the space of the tables of a ``space.toml``.

    Raises:
        InputError: naming the place and the fault.
    """
    parameters: list[Parameter] = []
    for part, table in given.items():
        if part == _FORBIDDEN:
            continue
        if part not in PARTS:
            raise InputError(
                f"{_shown(part)} is no part of a space; put parameters under {in_words(PARTS)}{_nearest(part, PARTS)}"
            )
        if not isinstance(table, dict):
            raise InputError(f"{_shown(part)} is {short(table)}; it must be a table of parameters")
        parameters += _group(part, table, ALWAYS)
    for parameter in parameters:
        part, _, rest = parameter.name.partition(".")
        if part == "plan" and rest not in PLAN_PARAMETERS:
            raise InputError(
                f"{_shown(parameter.name)}: of the plan only {in_words(PLAN_PARAMETERS)} can be tuned"
                f"{_nearest(rest, PLAN_PARAMETERS)}"
            )
    return make_space(parameters, _forbidden(given.get(_FORBIDDEN, [])))


def _group(name: str, table: Mapping[str, object], when: Condition) -> Iterator[Parameter]:
    """Yield the parameters of a table whose group is active under a condition."""
    if name.count(".") > _DEEPEST:
        raise InputError(f"{_shown(name)}: groups lie {_DEEPEST} deep at most")
    members = {key: value for key, value in table.items() if key not in _OF_GROUPS}
    if not members:
        raise InputError(f"{_shown(name)} is an empty group; put parameters into it")
    exclusive, optional = _switch(name, table, "exclusive"), _switch(name, table, "optional")
    if exclusive and optional:
        raise InputError(f"{_shown(name)} is exclusive and optional; put the exclusive group into an optional one")
    when += _when(name, table)
    if optional:
        yield Choice(name, (False, True), when)
        when = (Clause(name, (True,)),)
    if exclusive:
        yield Choice(name, tuple(members), when)
    for key, value in members.items():
        _check_name(name, key)
        if exclusive and value == {}:
            continue  # a member without parameters
        yield from _member(f"{name}.{key}", value, (Clause(name, (key,)),) if exclusive else when)


def _member(name: str, value: object, when: Condition) -> Iterator[Parameter]:
    if isinstance(value, dict):
        kinds = [kind for kind in _KINDS if kind in value]
        if kinds:
            yield _parameter(name, value, kinds, when)
        else:
            yield from _group(name, value, when)
    elif isinstance(value, list):
        raise InputError(f"{_shown(name)} is a list; write {{ choice = {short(value)} }}")
    else:
        yield Choice(name, _values(name, value), when)


def _parameter(name: str, table: Mapping[str, object], kinds: Sequence[str], when: Condition) -> Parameter:
    kind, given = kinds[0], table[kinds[0]]
    if len(kinds) > 1:
        raise InputError(f"{_shown(name)} has both {kind} and {kinds[1]}; it can be one of them")
    known = (kind, "when") if kind == "choice" else (kind, *_OF_PARAMETERS)
    for key in table:
        if key not in known:
            raise InputError(
                f"{_shown(name)} has the key {_shown(key)}; with {kind} go {in_words(known[1:])}{_nearest(key, known)}"
            )
    when += _when(name, table)
    if not isinstance(given, list):
        raise InputError(f"{_shown(name)}: {kind} is {short(given)}; it must be a list")
    values = _values(name, given)
    if kind == "choice":
        return Choice(name, values, when)
    log = _switch(name, table, "log")
    wanted = (int,) if kind == "integer" else (int, float)
    if len(values) != 2 or any(type(value) not in wanted for value in values):
        raise InputError(
            f"{_shown(name)}: {kind} is {short(given)}; it must be "
            f"{'two whole numbers' if kind == 'integer' else 'two numbers'}, the least and the most"
        )
    low, high = values
    if kind == "integer":
        return Integer(name, int(low), int(high), log, when)
    return Float(name, float(low), float(high), log, when)


def _switch(name: str, table: Mapping[str, object], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"{_shown(name)}: {key} is {short(value)}; it must be true or false")
    return value


def _when(name: str, table: Mapping[str, object]) -> Condition:
    return _clauses(f"{_shown(name)}: when", table["when"]) if "when" in table else ALWAYS


def _clauses(begins: str, given: object) -> Condition:
    if not isinstance(given, dict) or not given:
        raise InputError(f'{begins} is {short(given)}; write {{ "train.optimizer" = "sgd" }}')
    return tuple(Clause(name, _values(name, test)) for name, test in given.items())


def _forbidden(given: object) -> tuple[Condition, ...]:
    if not isinstance(given, list):
        raise InputError(f"{_FORBIDDEN} is {short(given)}; write a table under [[{_FORBIDDEN}]] for each combination")
    return tuple(_clauses(_FORBIDDEN, each) for each in given)


def _values(name: str, given: object) -> tuple[Value, ...]:
    """Return a value, or the values of a list, as values of a parameter."""
    values: list[Value] = []
    for value in given if isinstance(given, list) else [given]:
        if not isinstance(value, str | bool | int | float):
            raise InputError(f"{_shown(name)}: {short(value)} is no value; values are texts, numbers, true and false")
        if isinstance(value, int) and abs(value) > _MOST:
            number = str(value) if abs(value) < _MOST**4 else "a number of very many digits"
            raise InputError(f"{_shown(name)}: {number} is beyond 2**53, up to which floats tell whole numbers apart")
        values.append(value)
    return tuple(values)


def _check_name(group: str, key: str) -> None:
    if key in _RESERVED:
        raise InputError(f"{_shown(group)}: {_shown(key)} is a word of the file and cannot be a name")
    if not _NAME.fullmatch(key):
        raise InputError(
            f"{_shown(group)}: {_shown(key)} is no name; names have up to 64 letters, digits, dashes and underscores "
            "and begin with a letter"
        )


def _shown(text: str) -> str:
    return short(printable(text))


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
