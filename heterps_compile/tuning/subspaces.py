"""Disjoint parts of a space, one for every outcome of the choices that decide what is active.

They are the trees of SHADHO (Kinnison et al., WACV 2018): each can be searched by itself, and each configuration of the
space lies in one of them.

Left out: numbers that decide what is active; they stay conditions inside a part.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from heterps_compile.errors import InputError
from heterps_compile.escape import printable

from .make_space import make_space
from .parameters import IN, Choice, Clause, Condition, Parameter, Value, holder
from .space import Space

MOST = 256


@dataclass(frozen=True, slots=True)
class Subspace:
    """A part of a space.

    Attributes:
        name: What was chosen: ``train.optimizer = sgd``; "all" where nothing was to choose.
        space: Its parameters; those that were chosen are constants, or keep the values that lead here.
    """

    name: str
    space: Space


def split_space(space: Space) -> tuple[Subspace, ...]:
    """Return the disjoint parts of a space, in the order of the choices.

    Values of a choice that make the same parameters active stay together.

    Raises:
        InputError: where there are more than 256, or none, since all is forbidden.
    """
    found = []
    for name, part in _split(space, ()):
        found.append(Subspace(name or "all", part))
        if len(found) > MOST:
            raise InputError(
                f"the space has more than {MOST} disjoint parts, one for every way to choose what is active; make "
                "fewer groups exclusive or optional, or search it as a whole"
            )
    if not found:
        raise InputError("the space is empty: everything in it is forbidden")
    return tuple(found)


def _split(space: Space, chosen: tuple[str, ...]) -> Iterator[tuple[str, Space]]:
    switch = next((p for p in space.parameters if isinstance(p, Choice) and not p.when and _decides(space, p)), None)
    if switch is None:
        yield ", ".join(chosen), space
        return
    groups: dict[tuple[object, ...], list[Value]] = {}
    for value in switch.choices:
        effect = tuple(_left(p.when, switch, (value,)) for p in space.parameters)
        groups.setdefault(effect, []).append(value)
    for values in groups.values():
        words = " or ".join(_word(value) for value in values)
        part = _with(space, switch, tuple(values))
        if not _is_empty(part):
            yield from _split(part, (*chosen, f"{switch.name} = {words}"))


def _decides(space: Space, switch: Choice) -> bool:
    """Whether the parameter's values differ in what they make active."""
    effects = {tuple(_left(p.when, switch, (value,)) for p in space.parameters) for value in switch.choices}
    return len(effects) > 1


def _left(condition: Condition, switch: Choice, values: tuple[Value, ...]) -> Condition | None:
    """Return what is left of a condition where a parameter has one of some values; None where it cannot hold."""
    if not condition:
        return condition
    narrowed = replace(switch, choices=values)
    ways = []
    for clauses in condition:
        own = [clause for clause in clauses if clause.name == switch.name]
        if all(narrowed.restricted(clause) is not None for clause in own):
            ways.append(tuple(clause for clause in clauses if clause.name != switch.name))
    if not ways:
        return None
    return () if () in ways else tuple(dict.fromkeys(ways))


def _with(space: Space, switch: Choice, values: tuple[Value, ...]) -> Space:
    """Return the space with one parameter held to some values, without what then is never active."""
    kept: dict[str, Parameter] = {}
    gone: set[str] = set()
    for parameter in space.parameters:
        if parameter.name == switch.name:
            kept[parameter.name] = replace(switch, choices=values)
            continue
        condition = _left(parameter.when, switch, values)
        if condition:
            condition = tuple(clauses for clauses in condition if not any(c.name in gone for c in clauses)) or None
        if condition is None:
            gone.add(parameter.name)
        else:
            kept[parameter.name] = replace(parameter, when=condition)
    return make_space(kept.values(), _still_forbidden(space, kept))


def _still_forbidden(space: Space, kept: Mapping[str, Parameter]) -> Iterator[tuple[Clause, ...]]:
    """Yield what is forbidden of what is kept, in the values that are kept."""
    for clauses in space.forbidden:
        if all(clause.name in kept for clause in clauses):
            found = [_in_values(clause, space.by_name[clause.name], kept[clause.name]) for clause in clauses]
            if all(clause.values for clause in found):
                yield tuple(found)


def _in_values(clause: Clause, parameter: Parameter, kept: Parameter) -> Clause:
    if not isinstance(kept, Choice):
        return clause
    holds = holder(clause, parameter)
    return Clause(clause.name, IN, tuple(value for value in kept.choices if holds(value)))


def _is_empty(space: Space) -> bool:
    """Whether something forbidden holds whatever is drawn."""
    return any(all(_is_certain(space.by_name[c.name], c) for c in clauses) for clauses in space.forbidden)


def _is_certain(parameter: Parameter, clause: Clause) -> bool:
    return (
        isinstance(parameter, Choice) and not parameter.when and all(map(holder(clause, parameter), parameter.choices))
    )


def _word(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else printable(str(value))
