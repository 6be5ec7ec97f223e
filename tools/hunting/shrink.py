"""Make a module that shows a fault smaller as long as it shows the same one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from .description import Description, Output, leaves, with_leaves

Shows = Callable[[Description], bool]


def shrink(description: Description, shows: Shows, tries: int = 80) -> Description:
    """Return the smallest module that was found to show the fault still, in so many tries."""
    left, found = tries, True
    while found and left > 0:
        found = False
        for smaller in _smaller(description):
            left -= 1
            if left < 0:
                break
            if shows(smaller):
                description, found = smaller, True
                break
    return description


def _smaller(description: Description) -> Iterator[Description]:
    """Yield variants, the boldest first."""
    parts = list(leaves(description.output))
    if description.output.parts:
        for leaf in parts:
            if leaf.kind == "value":
                yield pruned(replace(description, output=leaf))
    for index in reversed(range(len(description.steps))):
        yield from _without(description, index)
    if len(parts) > 2:
        for dropped in parts:
            kept = with_leaves(description.output, lambda leaf, dropped=dropped: None if leaf is dropped else leaf)
            if kept is not None and not any(p.kind in {"pair", "triple", "record"} for p in _inner(kept)):
                yield replace(description, output=kept)
    if pruned(description) != description:
        yield pruned(description)
    if description.unused:
        yield replace(description, unused=False)
    if description.tied_weight is not None:
        yield replace(description, tied_weight=None)
    if description.stages > 1:
        yield replace(description, stages=description.stages - 1)
    for index, step in enumerate(description.steps):
        if step.hook or step.frozen:
            plainer = replace(step, hook="", frozen=False)
            yield replace(description, steps=(*description.steps[:index], plainer, *description.steps[index + 1 :]))
    if description.training:
        yield replace(description, training=False)


def _inner(output: Output) -> Iterator[Output]:
    yield output
    for part in output.parts:
        yield from _inner(part)


def _places(description: Description) -> list[range]:
    """Return the places of what each step makes."""
    found, place = [], len(description.inputs)
    for step in description.steps:
        found.append(range(place, place + step.count))
        place += step.count
    return found


def _without(description: Description, index: int) -> Iterator[Description]:
    """Leave out a step: whoever reads what it made reads one of its arguments instead."""
    step, places = description.steps[index], _places(description)[index]
    if any(other.shares == index for other in description.steps):
        return
    if description.tied_weight is not None and index in description.tied_weight:
        return
    for arg in dict.fromkeys(step.args):
        yield _renumbered(description, index, lambda place, arg=arg: arg if place in places else place)


def _renumbered(description: Description, index: int, instead: Callable[[int], int]) -> Description:
    step, places = description.steps[index], _places(description)[index]

    def moved(place: int) -> int:
        place = instead(place)
        return place - step.count if place >= places.stop else place

    def step_at(place: int | None) -> int | None:
        return place if place is None or place < index else place - 1

    steps = tuple(
        replace(other, args=tuple(map(moved, other.args)), shares=step_at(other.shares))
        for i, other in enumerate(description.steps)
        if i != index
    )
    tied: Any = description.tied_weight
    if tied is not None:
        tied = (step_at(tied[0]), step_at(tied[1]))
    output = with_leaves(description.output, lambda o: replace(o, at=moved(o.at)) if o.kind == "value" else o)
    assert output is not None  # noqa: S101 - no leaf is left out; this tells the type checker
    return replace(description, steps=steps, output=output, tied_weight=tied)


def pruned(description: Description) -> Description:
    """Leave out the last steps that nothing reads."""
    while description.steps:
        index = len(description.steps) - 1
        places = _places(description)[index]
        read = {leaf.at for leaf in leaves(description.output) if leaf.kind == "value"}
        tied = description.tied_weight is not None and index in description.tied_weight
        if tied or read & set(places):
            return description
        description = _renumbered(description, index, lambda place: place)
    return description
