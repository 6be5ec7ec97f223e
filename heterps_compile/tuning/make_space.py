"""Make a space of parameters: in order, and checked.

The first fault is reported in one sentence.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short, shorten

from .parameters import Choice, Clause, Condition, Parameter, among
from .space import Space

MOST_PARAMETERS = 1_000
MOST_CHOICES = 10_000


def make_space(parameters: Iterable[Parameter], forbidden: Iterable[Condition] = ()) -> Space:
    """Make a space of parameters in any order.

    Raises:
        InputError: for the first parameter, condition or forbidden combination that has a fault.
    """
    given = tuple(parameters)
    if not given:
        raise InputError("the space is empty; give it a parameter")
    if len(given) > MOST_PARAMETERS:
        raise InputError(f"the space has {len(given):,} parameters; {MOST_PARAMETERS:,} are the most")
    by_name = {parameter.name: parameter for parameter in given}
    space = Space(given, tuple(forbidden))
    for fault in _faults(space, by_name):
        raise InputError(fault)
    return Space(_parents_first(by_name), space.forbidden)


def _named(name: str) -> str:
    return f"parameter {shorten(printable(name), 80)!r}"


def _faults(space: Space, by_name: Mapping[str, Parameter]) -> Iterator[str]:
    if len(by_name) < len(space.parameters):
        yield "two parameters have one name; names must differ"
    for parameter in space.parameters:
        name = _named(parameter.name)
        yield from (f"{name} {fault}" for fault in _own_faults(parameter))
        for clause in parameter.when:
            yield from _clause_faults(clause, by_name, f"{name} is active when")
    for condition in space.forbidden:
        for clause in condition:
            yield from _clause_faults(clause, by_name, "it is forbidden that")


def _own_faults(parameter: Parameter) -> Iterator[str]:
    if isinstance(parameter, Choice):
        choices = parameter.choices
        if not 1 <= len(choices) <= MOST_CHOICES:
            yield f"has {len(choices):,} choices; expected 1 to {MOST_CHOICES:,}"
        for at, choice in enumerate(choices):
            if isinstance(choice, float) and not math.isfinite(choice):
                yield f"has the choice {choice}; numbers must be finite"
            if among(choice, choices[:at]):
                yield f"has the choice {short(choice)} twice"
        return
    low, high = parameter.low, parameter.high
    if not math.isfinite(float(high) - float(low)):
        yield f"runs from {low:g} to {high:g}; both must be finite, and so must their distance"
    elif low >= high:
        yield f"runs from {low:g} to {high:g}; the first must be the smaller"
    elif parameter.log and low <= 0:
        yield f"runs from {low:g} on a logarithmic scale; it must begin above 0"


def _clause_faults(clause: Clause, by_name: Mapping[str, Parameter], begins: str) -> Iterator[str]:
    name, of = printable(clause.name), by_name.get(clause.name)
    if of is None or not clause.values:
        yield f"{begins} {name!r} has a value, and there is no such {'value' if of else 'parameter'}"
        return
    for value in clause.values:
        if not of.accepts(value):
            several = "one of " if len(clause.values) > 1 else ""
            listed = ", ".join(map(short, clause.values[:4])) + (", …" if len(clause.values) > 4 else "")
            yield f"{begins} {name!r} is {several}{listed}, and {short(value)} is none of its values"


def _parents_first(by_name: Mapping[str, Parameter]) -> tuple[Parameter, ...]:
    """Sort parameters, each after those in its condition, and check that each can be active.

    Raises:
        InputError: if a condition depends on itself, or contradicts those that it depends on.
    """
    needs: dict[str, dict[str, Clause]] = {}  # all that must hold where a parameter is active, by name, parents first
    open_: set[str] = set()

    def visit(parameter: Parameter) -> None:
        if parameter.name in needs:
            return
        if parameter.name in open_:
            raise InputError(f"{_named(parameter.name)} is active depending on itself; break the circle")
        open_.add(parameter.name)
        found: dict[str, Clause] = {}
        for own in parameter.when:
            visit(by_name[own.name])
            for clause in (own, *needs[own.name].values()):
                before = found.get(clause.name, clause).values
                found[clause.name] = Clause(clause.name, tuple(v for v in before if among(v, clause.values)))
                if not found[clause.name].values:
                    raise InputError(
                        f"{_named(parameter.name)} can never be active: what its condition asks for contradicts itself"
                    )
        needs[parameter.name] = found

    for parameter in by_name.values():
        visit(parameter)
    return tuple(by_name[name] for name in needs)
