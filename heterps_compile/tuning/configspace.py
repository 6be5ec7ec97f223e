"""Spaces in the JSON of ConfigSpace 1.x (``format_version`` 0.4), read and written without the package.

Of a file that is read, default values and meta data are passed over: no method here begins with a default. Written
defaults are the ones ConfigSpace itself would choose.

Left out, and refused by name: normal and beta distributions, weights, bounds on what is forbidden.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain, product
from types import MappingProxyType

from heterps_compile.errors import InputError
from heterps_compile.escape import short

from .make_space import make_space
from .parameters import ABOVE, BELOW, IN, NOT_IN, Choice, Clause, Condition, Float, Integer, Parameter, Value, as_value
from .space import Space

FORMAT_VERSION = 0.4
WRITTEN_FOR = "1.2.0"
"""The ``python_module_version`` of ConfigSpace 1.2.2, which reads what is written here."""

_RELATIONS = MappingProxyType({"EQ": IN, "IN": IN, "NEQ": NOT_IN, "GT": ABOVE, "LT": BELOW})

Json = Mapping[str, object]


def from_configspace(given: object) -> Space:
    """Return the space that a file of ConfigSpace describes.

    Raises:
        InputError: naming what is missing, unknown or has no counterpart here.
    """
    if not isinstance(given, dict) or not isinstance(given.get("hyperparameters"), list):
        raise InputError("this is no space of ConfigSpace: it has no list of hyperparameters")
    if given.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"the format_version is {short(given.get('format_version'))}; {FORMAT_VERSION} is read, which "
            "ConfigSpace 1.x writes"
        )
    when: dict[str, Condition] = {}
    for condition in _tables(given, "conditions"):
        child = str(condition.get("child"))
        if child in when:
            raise InputError(f"parameter {short(child)} has two conditions; join them with AND or OR")
        when[child] = _condition(condition)
    parameters = [_parameter(each, when) for each in _tables(given, "hyperparameters")]
    for name in when.keys() - {parameter.name for parameter in parameters}:
        raise InputError(f"a condition is on parameter {short(name)}, which is not there")
    return make_space(parameters, [_forbidden(each) for each in _tables(given, "forbiddens")])


def to_configspace(space: Space) -> dict[str, object]:
    """Return the space as ConfigSpace's JSON.

    Raises:
        InputError: where something forbidden is a bound, which ConfigSpace's file has no words for.
    """
    return {
        "name": None,
        "hyperparameters": [_written(parameter) for parameter in space.parameters],
        "conditions": [_written_condition(parameter) for parameter in space.parameters if parameter.when],
        "forbiddens": [_written_forbidden(clauses) for clauses in space.forbidden],
        "python_module_version": WRITTEN_FOR,
        "format_version": FORMAT_VERSION,
    }


def _tables(given: Json, key: str) -> Sequence[Json]:
    found = given.get(key, [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise InputError(f"{key} is {short(found)}; it must be a list of objects")
    return found


def _parameter(given: Json, when: Mapping[str, Condition]) -> Parameter:
    name, kind = given.get("name"), given.get("type")
    if not isinstance(name, str):
        raise InputError(f"a hyperparameter is called {short(name)}; names are texts")
    condition = when.get(name, ())
    if kind in ("uniform_float", "uniform_int"):
        low, high, log = _value(name, given.get("lower")), _value(name, given.get("upper")), given.get("log", False)
        if not _is_number(low) or not _is_number(high) or not isinstance(log, bool):
            raise InputError(f"parameter {short(name)}: lower and upper must be numbers, log true or false")
        if kind == "uniform_float":
            return Float(name, float(low), float(high), log, condition)
        if not isinstance(low, int) or not isinstance(high, int):
            raise InputError(f"parameter {short(name)} runs from {low} to {high}; both must be whole numbers")
        return Integer(name, low, high, log, condition)
    if kind == "constant":
        return Choice(name, (_value(name, given.get("value")),), when=condition)
    if kind == "ordinal":
        return Choice(name, _values(name, given.get("sequence")), ordered=True, when=condition)
    if kind == "categorical":
        if given.get("weights") is not None:
            raise InputError(f"parameter {short(name)} has weights, which no method here heeds; take them out")
        return Choice(name, _values(name, given.get("choices")), when=condition)
    raise InputError(
        f"parameter {short(name)} is of the type {short(kind)}; read are uniform_float, uniform_int, categorical, "
        "ordinal and constant"
    )


def _condition(given: Json) -> Condition:
    kind = given.get("type")
    if kind == "OR":
        return tuple(chain.from_iterable(_condition(each) for each in _tables(given, "conditions")))
    if kind == "AND":
        ways = product(*(_condition(each) for each in _tables(given, "conditions")))
        return tuple(tuple(chain.from_iterable(way)) for way in ways)
    if not isinstance(kind, str) or kind not in _RELATIONS:
        raise InputError(f"a condition is of the type {short(kind)}; read are AND, OR, {', '.join(_RELATIONS)}")
    parent = str(given.get("parent"))
    values = _values(parent, given.get("values")) if kind == "IN" else (_value(parent, given.get("value")),)
    return ((Clause(parent, _RELATIONS[kind], values),),)


def _forbidden(given: Json) -> tuple[Clause, ...]:
    kind, name = given.get("type"), str(given.get("name"))
    if kind == "AND":
        return tuple(chain.from_iterable(_forbidden(each) for each in _tables(given, "clauses")))
    if kind == "EQUALS":
        return (Clause(name, IN, (_value(name, given.get("value")),)),)
    if kind == "IN":
        return (Clause(name, IN, _values(name, given.get("values"))),)
    raise InputError(f"something forbidden is of the type {short(kind)}; read are AND, EQUALS and IN")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(name: str, value: object) -> Value:
    return as_value(f"parameter {short(name)}", value)


def _values(name: str, given: object) -> tuple[Value, ...]:
    if not isinstance(given, list):
        raise InputError(f"parameter {short(name)}: {short(given)} must be a list of values")
    return tuple(_value(name, value) for value in given)


def _written(parameter: Parameter) -> dict[str, object]:
    if isinstance(parameter, Choice):
        first, *_ = parameter.choices
        if len(parameter.choices) == 1:
            return {"type": "constant", "name": parameter.name, "value": first, "meta": None}
        values = list(parameter.choices)
        found: dict[str, object] = {"type": "ordinal", "name": parameter.name, "sequence": values}
        if not parameter.ordered:
            found = {"type": "categorical", "name": parameter.name, "choices": values, "weights": None}
        return {**found, "default_value": first, "meta": None}
    middle = parameter.at(0.5)
    if isinstance(parameter, Integer) and parameter.log:
        middle = round(math.sqrt(parameter.low * parameter.high))
    return {
        "type": "uniform_int" if isinstance(parameter, Integer) else "uniform_float",
        "name": parameter.name,
        "lower": parameter.low,
        "upper": parameter.high,
        "default_value": middle,
        "log": parameter.log,
        "meta": None,
    }


def _written_condition(parameter: Parameter) -> dict[str, object]:
    ways = [
        _joined("AND", parameter.name, [_written_clause(parameter.name, c) for c in clauses])
        for clauses in parameter.when
    ]
    return _joined("OR", parameter.name, ways)


def _joined(kind: str, child: str, parts: list[dict[str, object]]) -> dict[str, object]:
    return parts[0] if len(parts) == 1 else {"type": kind, "child": child, "conditions": parts}


def _written_clause(child: str, clause: Clause) -> dict[str, object]:
    about: dict[str, object] = {"child": child, "parent": clause.name}
    first = clause.values[0]
    if clause.relation == IN and len(clause.values) > 1:
        return {"type": "IN", **about, "values": list(clause.values)}
    if clause.relation == NOT_IN and len(clause.values) > 1:
        apart = [_written_clause(child, Clause(clause.name, NOT_IN, (value,))) for value in clause.values]
        return _joined("AND", child, apart)
    kind = {IN: "EQ", NOT_IN: "NEQ", ABOVE: "GT", BELOW: "LT"}[clause.relation]
    return {"type": kind, **about, "value": first}


def _written_forbidden(clauses: Sequence[Clause]) -> dict[str, object]:
    found: list[dict[str, object]] = []
    for clause in clauses:
        if clause.relation != IN:
            raise InputError(
                f"it is forbidden that {short(clause.name)} is {clause.relation} {clause.values[0]}, which a file of "
                "ConfigSpace cannot say; name the values"
            )
        first, *others = clause.values
        one = not others
        value = {"value": first} if one else {"values": [first, *others]}
        found.append({"type": "EQUALS" if one else "IN", "name": clause.name, **value})
    return found[0] if len(found) == 1 else {"type": "AND", "clauses": found}
