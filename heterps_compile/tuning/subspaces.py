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
from .parameters import Choice, Clause, Condition, Parameter, Value, among
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
        groups.setdefault(_effect(space, switch, value), []).append(value)
    for values in groups.values():
        words = " or ".join(_word(value) for value in values)
        part = _with(space, switch, tuple(values))
        if not _is_empty(part):
            yield from _split(part, (*chosen, f"{switch.name} = {words}"))


def _decides(space: Space, switch: Choice) -> bool:
    """Return whether the parameter's values differ in what they make active."""
    return len({_effect(space, switch, value) for value in switch.choices}) > 1


def _effect(space: Space, switch: Choice, value: Value) -> tuple[Condition | None, ...]:
    return tuple(_left(parameter.when, switch, (value,)) for parameter in space.parameters)


def _left(condition: Condition, switch: Choice, values: tuple[Value, ...]) -> Condition | None:
    """Return the rest of a condition where a parameter has one of some values; None if it cannot hold."""
    if any(c.name == switch.name and not any(among(value, c.values) for value in values) for c in condition):
        return None
    return tuple(clause for clause in condition if clause.name != switch.name)


def _with(space: Space, switch: Choice, values: tuple[Value, ...]) -> Space:
    """Return the space with one parameter held to some values, without what then is never active."""
    kept: dict[str, Parameter] = {}
    gone: set[str] = set()
    for parameter in space.parameters:
        if parameter.name == switch.name:
            kept[parameter.name] = replace(switch, choices=values)
            continue
        condition = _left(parameter.when, switch, values)
        if condition is None or any(clause.name in gone for clause in condition):
            gone.add(parameter.name)
        else:
            kept[parameter.name] = replace(parameter, when=condition)
    return make_space(kept.values(), _still_forbidden(space, kept))


def _still_forbidden(space: Space, kept: Mapping[str, Parameter]) -> Iterator[Condition]:
    """Yield the forbidden combinations of the parameters and values that are kept."""
    for condition in space.forbidden:
        if all(clause.name in kept for clause in condition):
            found = tuple(Clause(c.name, tuple(v for v in c.values if kept[c.name].accepts(v))) for c in condition)
            if all(clause.values for clause in found):
                yield found


def _is_empty(space: Space) -> bool:
    """Return whether a forbidden combination holds in every configuration."""
    return any(all(_is_certain(space.by_name[c.name], c) for c in condition) for condition in space.forbidden)


def _is_certain(parameter: Parameter, clause: Clause) -> bool:
    return (
        isinstance(parameter, Choice)
        and not parameter.when
        and all(among(choice, clause.values) for choice in parameter.choices)
    )


def _word(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else printable(str(value))
