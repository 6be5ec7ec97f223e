"""``space.toml``: a space as its user writes it, read strictly.

A table is a group, or a parameter where it has one of the keys ``float``, ``integer``, ``choice`` and ``ordered``; a
plain value is a constant. Groups nest, and their names begin those of their parameters. Of an ``exclusive`` group one
member is chosen; an ``optional`` group is there or not; what is chosen is a parameter with the group's name.

Left out: what must hold of a space (``space_laws.py``).
"""

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short
from heterps_compile.plain_file import open_plain
from heterps_compile.units import in_words

from .make_space import make_space
from .parameters import (
    ABOVE,
    ALWAYS,
    BELOW,
    IN,
    NOT_IN,
    Choice,
    Clause,
    Condition,
    Float,
    Integer,
    Parameter,
    Value,
    as_value,
)
from .space import PARTS, Space

PLAN_PARAMETERS = ("micro_batches", "precision", "replicas", "schedule")
"""What can be tuned of the plan that a trial runs by."""

_FORBIDDEN = "forbidden"
_KINDS = ("float", "integer", "choice", "ordered")
_OF_PARAMETERS = ("log", "when")
_OF_GROUPS = ("exclusive", "optional", "when")
_RESERVED = {*_KINDS, *_OF_PARAMETERS, *_OF_GROUPS, _FORBIDDEN}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_TESTS = {"above": ABOVE, "below": BELOW, "not": NOT_IN}
_DEEPEST = 16
_LARGEST_BYTES = 4 * 2**20


def read_space(path: Path) -> Space:
    """Read a space from a ``.toml`` file.

    Raises:
        InputError: naming the file, the place and the fault.
    """
    return space_of_text(str(path), read_space_text(path))


def read_space_text(path: Path) -> str:
    """Return the text of the file of a space.

    Raises:
        InputError: naming the file and the fault.
    """
    where = printable(str(path))
    _check_ending(str(path))
    try:
        with open_plain(path) as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"{where} cannot be read: {error.strerror}") from error
    if len(data) > _LARGEST_BYTES:
        raise InputError(f"{where} has more than {_LARGEST_BYTES:,} bytes, which are the most of a space")
    try:
        return data.decode("utf-8")
    except ValueError as error:
        raise InputError(f"{where} is no TOML: {printable(str(error))}") from error


def space_of_text(name: str, text: str) -> Space:
    """Return the space in the text of a file.

    Args:
        name: The file's name.
        text: Its text.

    Raises:
        InputError: naming the file, the place and the fault.
    """
    _check_ending(name)
    try:
        return parse_space(tomllib.loads(text))
    except InputError as error:
        raise InputError(f"{printable(name)}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{printable(name)} is no TOML: {printable(str(error))}") from error


def _check_ending(name: str) -> None:
    if not name.endswith(".toml"):
        raise InputError(f"{printable(name)} is no .toml file. Fix: begin a search with the space as TOML")


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
        parameters += _group(_Place(part), table)
    for parameter in parameters:
        part, _, rest = parameter.name.partition(".")
        if part == "plan" and rest not in PLAN_PARAMETERS:
            raise InputError(
                f"{_shown(parameter.name)}: of the plan only {in_words(PLAN_PARAMETERS)} can be tuned"
                f"{_nearest(rest, PLAN_PARAMETERS)}"
            )
    return make_space(parameters, _forbidden(given.get(_FORBIDDEN, [])))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where in the file: the name so far, and when what stands there is active."""

    name: str
    when: Condition = ALWAYS
    depth: int = 0

    def member(self, key: str, when: Condition | None = None) -> "_Place":
        return _Place(f"{self.name}.{key}", self.when if when is None else when, self.depth + 1)


def _group(place: _Place, table: Mapping[str, object]) -> Iterator[Parameter]:
    if place.depth > _DEEPEST:
        raise InputError(f"{_shown(place.name)}: groups lie {_DEEPEST} deep at most")
    members = {key: value for key, value in table.items() if key not in _OF_GROUPS}
    if not members:
        raise InputError(f"{_shown(place.name)} is an empty group; put parameters into it")
    exclusive, optional = _switch(place, table, "exclusive"), _switch(place, table, "optional")
    if exclusive and optional:
        raise InputError(
            f"{_shown(place.name)} is exclusive and optional; put the exclusive group into an optional one"
        )
    when = _and(place.when, _when(place.name, table.get("when")))
    inner = when
    if optional:
        yield Choice(place.name, (False, True), when=when)
        inner = ((Clause(place.name, IN, (True,)),),)
    if exclusive:
        yield Choice(place.name, tuple(members), when=when)
    for key, value in members.items():
        _check_name(place.name, key)
        member = place.member(key, ((Clause(place.name, IN, (key,)),),) if exclusive else inner)
        if exclusive and value == {}:
            continue  # a member without parameters
        yield from _member(member, value)


def _member(place: _Place, value: object) -> Iterator[Parameter]:
    if isinstance(value, dict):
        kinds = [kind for kind in _KINDS if kind in value]
        if kinds:
            yield _parameter(place, value, kinds)
        else:
            yield from _group(place, value)
    elif isinstance(value, list):
        raise InputError(f"{_shown(place.name)} is a list; write {{ choice = {short(value)} }}")
    else:
        yield Choice(place.name, (_value(place.name, value),), when=place.when)


def _parameter(place: _Place, table: Mapping[str, object], kinds: Sequence[str]) -> Parameter:
    name = place.name
    if len(kinds) > 1:
        raise InputError(f"{_shown(name)} has both {kinds[0]} and {kinds[1]}; it can be one of them")
    known = (*kinds, *(_OF_PARAMETERS if kinds[0] in ("float", "integer") else ("when",)))
    for key in table:
        if key not in known:
            raise InputError(
                f"{_shown(name)} has the key {_shown(key)}; with {kinds[0]} go {in_words(known[1:])}"
                f"{_nearest(key, known)}"
            )
    given = table[kinds[0]]
    when = _and(place.when, _when(name, table.get("when")))
    if not isinstance(given, list):
        raise InputError(f"{_shown(name)}: {kinds[0]} is {short(given)}; it must be a list")
    values = tuple(_value(name, value) for value in given)
    if kinds[0] in ("choice", "ordered"):
        return Choice(name, values, ordered=kinds[0] == "ordered", when=when)
    log = _switch(place, table, "log")
    wanted = (int,) if kinds[0] == "integer" else (int, float)
    if len(values) != 2 or any(type(value) not in wanted for value in values):
        raise InputError(
            f"{_shown(name)}: {kinds[0]} is {short(given)}; it must be "
            f"{'two whole numbers' if kinds[0] == 'integer' else 'two numbers'}, the least and the most"
        )
    low, high = values
    if kinds[0] == "integer":
        return Integer(name, int(low), int(high), log, when)
    return Float(name, float(low), float(high), log, when)


def _switch(place: _Place, table: Mapping[str, object], key: str) -> bool:
    value = table.get(key, False)
    if not isinstance(value, bool):
        raise InputError(f"{_shown(place.name)}: {key} is {short(value)}; it must be true or false")
    return value


def _when(name: str, given: object) -> Condition:
    """Return the condition of a table (all of it holds), or of a list of tables (one of them holds)."""
    if given is None:
        return ALWAYS
    alternatives = given if isinstance(given, list) else [given]
    if not alternatives:
        raise InputError(f"{_shown(name)}: when is an empty list; leave it out")
    return tuple(_clauses(f"{_shown(name)}: when", each) for each in alternatives)


def _clauses(begins: str, given: object) -> tuple[Clause, ...]:
    if not isinstance(given, dict) or not given:
        raise InputError(f'{begins} is {short(given)}; write {{ "train.optimizer" = "sgd" }}')
    return tuple(clause for name, test in given.items() for clause in _tests(begins, name, test))


def _tests(begins: str, name: str, test: object) -> Iterator[Clause]:
    if isinstance(test, dict):
        if not test:
            raise InputError(f"{begins} tests {_shown(name)} with an empty table; write {{ above = 3 }}")
        for word, value in test.items():
            if word not in _TESTS:
                raise InputError(
                    f"{begins} tests {_shown(name)} with {_shown(word)}; known are {in_words(tuple(_TESTS))}"
                    f"{_nearest(word, tuple(_TESTS))}"
                )
            values = value if isinstance(value, list) and _TESTS[word] == NOT_IN else [value]
            yield Clause(name, _TESTS[word], tuple(_value(name, each) for each in values))
    else:
        values = test if isinstance(test, list) else [test]
        yield Clause(name, IN, tuple(_value(name, each) for each in values))


def _forbidden(given: object) -> tuple[tuple[Clause, ...], ...]:
    if not isinstance(given, list):
        raise InputError(f"{_FORBIDDEN} is {short(given)}; write a table under [[{_FORBIDDEN}]] for each combination")
    return tuple(_clauses(_FORBIDDEN, each) for each in given)


def _and(one: Condition, other: Condition) -> Condition:
    if not one or not other:
        return one or other
    return tuple((*first, *second) for first in one for second in other)


def _value(name: str, value: object) -> Value:
    return as_value(_shown(name), value)


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
