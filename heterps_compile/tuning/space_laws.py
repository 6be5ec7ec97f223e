"""What must hold of a space: two lists of laws, and the lists are the verifier.

The first law that is broken is told, in one sentence.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from heterps_compile.errors import InputError
from heterps_compile.escape import printable, short, shorten

from .parameters import ABOVE, BELOW, IN, NOT_IN, Choice, Clause, Parameter, Value, among
from .space import Space

MOST_PARAMETERS = 1_000
MOST_CHOICES = 10_000
MOST_ALTERNATIVES = 1_000
_LONGEST_NAME = 200


def check_parameters(parameters: Sequence[Parameter]) -> None:
    """Check each parameter by itself, and that what conditions ask about is there.

    Raises:
        InputError: with the first law that is broken.
    """
    _raise_first(law(parameters) for law in OF_PARAMETERS)


def check_space(space: Space) -> None:
    """Check what needs parameters in order: that each can be active, and that forbidden clauses mean something.

    Raises:
        InputError: with the first law that is broken.
    """
    _raise_first(law(space) for law in OF_SPACES)


def _raise_first(told: Iterator[Iterator[str]]) -> None:
    for faults in told:
        for fault in faults:
            raise InputError(fault)


def named(name: str) -> str:
    """Return a parameter with its name, as a sentence begins."""
    return f"parameter {shorten(printable(name), 80)!r}"


def _some_parameters(parameters: Sequence[Parameter]) -> Iterator[str]:
    if not parameters:
        yield "the space is empty; give it a parameter"
    if len(parameters) > MOST_PARAMETERS:
        yield f"the space has {len(parameters):,} parameters; {MOST_PARAMETERS:,} are the most"


def _names(parameters: Sequence[Parameter]) -> Iterator[str]:
    for name, count in Counter(parameter.name for parameter in parameters).items():
        if not name or len(name) > _LONGEST_NAME or not name.isprintable():
            yield f"{named(name)}: a name has 1 to {_LONGEST_NAME} printable characters"
        if count > 1:
            yield f"{named(name)} is there {count} times; names must differ"


def _ranges(parameters: Sequence[Parameter]) -> Iterator[str]:
    for parameter in parameters:
        if isinstance(parameter, Choice):
            continue
        low, high = parameter.low, parameter.high
        if not (math.isfinite(low) and math.isfinite(high)):
            yield f"{named(parameter.name)} runs from {low} to {high}; both must be finite"
        elif low >= high:
            yield f"{named(parameter.name)} runs from {low:g} to {high:g}; the first must be the smaller"
        elif parameter.log and low <= 0:
            yield f"{named(parameter.name)} runs from {low:g} on a logarithmic scale; it must begin above 0"
        elif not math.isfinite(float(high) - float(low)):
            yield f"{named(parameter.name)} runs from {low:g} to {high:g}, which is further than a number reaches"


def _choices(parameters: Sequence[Parameter]) -> Iterator[str]:
    for parameter in parameters:
        if not isinstance(parameter, Choice):
            continue
        choices = parameter.choices
        if not choices:
            yield f"{named(parameter.name)} has nothing to choose from; give it a value"
        if len(choices) > MOST_CHOICES:
            yield f"{named(parameter.name)} has {len(choices):,} choices; {MOST_CHOICES:,} are the most"
        for at, choice in enumerate(choices):
            if isinstance(choice, float) and not math.isfinite(choice):
                yield f"{named(parameter.name)} has the choice {choice}; numbers must be finite"
            if among(choice, choices[:at]):
                yield f"{named(parameter.name)} has the choice {short(choice)} twice"


def _conditions(parameters: Sequence[Parameter]) -> Iterator[str]:
    by_name = {parameter.name: parameter for parameter in parameters}
    for parameter in parameters:
        if any(not clauses for clauses in parameter.when):
            yield f"{named(parameter.name)} has a condition without a clause; leave it out"
        for clauses in parameter.when:
            for clause in clauses:
                yield from _clause(clause, by_name, f"{named(parameter.name)} is active when")


def _clause(clause: Clause, by_name: dict[str, Parameter], begins: str) -> Iterator[str]:
    asked = by_name.get(clause.name)
    if asked is None:
        yield f"{begins} {printable(clause.name)!r} has a value, and there is no such parameter"
        return
    if not clause.values:
        yield f"{begins} {printable(clause.name)!r} has a value of none; name one"
    if clause.relation in (ABOVE, BELOW) and isinstance(asked, Choice) and not asked.ordered:
        yield f"{begins} {printable(clause.name)!r} is {clause.relation} a value, and its choices have no order"
    for value in clause.values:
        if not asked.accepts(value):
            yield f"{begins} {_told(clause)}, and {short(value)} is none of its values"


def _told(clause: Clause) -> str:
    words = {IN: "", NOT_IN: "not "}.get(clause.relation, f"{clause.relation} ")
    several = "one of " if len(clause.values) > 1 else ""
    return f"{printable(clause.name)!r} is {words}{several}{_listed(clause.values)}"


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(short(value) for value in values[:4]) + (", …" if len(values) > 4 else "")


def _can_be_active(space: Space) -> Iterator[str]:
    """Follow every condition up to what is always active; each leaves a range to the parameters it asks about."""
    ways: dict[str, list[dict[str, Parameter]]] = {}
    for parameter in space.parameters:
        found: list[dict[str, Parameter]] = [] if parameter.when else [{}]
        ways[parameter.name] = found
        for clauses in parameter.when:
            for above in product(*(ways[clause.name] for clause in clauses)):
                way = _joined(space, clauses, above)
                if way is not None and way not in found:
                    found.append(way)
                if len(found) > MOST_ALTERNATIVES:
                    yield f"{named(parameter.name)} can be active in more than {MOST_ALTERNATIVES:,} ways; allow fewer"
                    return
        if not found:
            yield f"{named(parameter.name)} can never be active: what its condition asks for contradicts itself"
            return


def _joined(
    space: Space, clauses: Sequence[Clause], above: Sequence[dict[str, Parameter]]
) -> dict[str, Parameter] | None:
    """Return what clauses, and the ways in which their parameters are active, leave of every parameter asked about."""
    left: dict[str, Parameter] = {}
    for way in above:
        for name, parameter in way.items():
            narrower = _both(left.get(name), parameter)
            if narrower is None:
                return None
            left[name] = narrower
    for clause in clauses:
        restricted = left.get(clause.name, space.by_name[clause.name]).restricted(clause)
        if restricted is None:
            return None
        left[clause.name] = restricted
    return left


def _both(one: Parameter | None, other: Parameter) -> Parameter | None:
    if one is None:
        return other
    if isinstance(one, Choice) and isinstance(other, Choice):
        return one.restricted(Clause(one.name, IN, other.choices))
    assert not isinstance(one, Choice)  # noqa: S101 - a name has one kind
    assert not isinstance(other, Choice)  # noqa: S101
    above = one if one.low >= other.low else other
    low, high = max(one.low, other.low), min(one.high, other.high)
    if low > high:
        return None
    return replace(above, low=low, high=high)


def _forbidden(space: Space) -> Iterator[str]:
    for clauses in space.forbidden:
        if not clauses:
            yield "a forbidden combination without a clause forbids everything; leave it out"
        for clause in clauses:
            yield from _clause(clause, dict(space.by_name), "it is forbidden that")


OF_PARAMETERS: tuple[Callable[[Sequence[Parameter]], Iterator[str]], ...] = (
    _some_parameters,
    _names,
    _ranges,
    _choices,
    _conditions,
)
OF_SPACES: tuple[Callable[[Space], Iterator[str]], ...] = (_can_be_active, _forbidden)
