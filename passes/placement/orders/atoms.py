"""Atoms: layers that no stage may part, as one; and which atoms come before which.

Two kinds of orders need not be told apart:

1. Makers and readers of values that are no tensors share a stage, and with them all that lies between them.
2. Interchangeable layers (``cost/interchangeable.py``) stand in one order: where a plan has them in another, swapping
   them gives a plan of the same worth. Memory tells layers apart only where some type cannot hold the whole model.

Left out: symmetries of whole branches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from heterps_compile.cost.interchangeable import interchangeable_layers
from heterps_compile.cost.layer_orders import LayerOrders
from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import problem_tables


@dataclass(frozen=True, slots=True)
class Atoms:
    """A partial order of n atoms.

    Attributes:
        members: [n], the layers of each, in their order; atoms stand in an order that keeps to ``before``.
        before: [n], the atoms that come before each.
        after: [n], the same relation the other way.
    """

    members: tuple[tuple[int, ...], ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def atoms_of(problem: Problem, orders: LayerOrders) -> Atoms:
    """Return the atoms of a problem; O(layers + edges) but for what must stay together."""
    needs = [set(before) for before in orders.before]
    for layers in _alike(problem, orders):
        for first, second in pairwise(layers):
            needs[second].add(first)
    home = _together(needs, orders.together)
    before = [set[int]() for _ in range(max(home) + 1)]
    members: list[list[int]] = [[] for _ in before]
    for layer, atom in enumerate(home):
        members[atom].append(layer)
        before[atom].update(home[other] for other in needs[layer])
    return _sorted(members, [needed - {atom} for atom, needed in enumerate(before)])


def _alike(problem: Problem, orders: LayerOrders) -> list[list[int]]:
    """Return the classes of interchangeable layers that wait for the same layers, and are waited for by the same."""
    count = problem.layer_count
    plain = replace(problem, layer_kinds=("",) * count)
    if not problem_tables(problem).memory_binds:
        plain = replace(plain, weight_bytes=np.zeros(count), activation_bytes=np.zeros(count))
    after = [set[int]() for _ in range(count)]
    for layer, before in enumerate(orders.before):
        for other in before:
            after[other].add(layer)
    tied = {layer for layers, _ in orders.ties for layer in layers}
    classes: dict[tuple[int, tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for layer, first in enumerate(interchangeable_layers(plain)):
        if layer not in tied:
            sign = (first, orders.before[layer], tuple(sorted(after[layer])))
            classes.setdefault(sign, []).append(layer)
    return [layers for layers in classes.values() if len(layers) > 1]


def _together(needs: Sequence[set[int]], together: Sequence[Sequence[int]]) -> list[int]:
    """Return the atom of every layer: the layers that wait for each other, if what must share a stage does."""
    if not together:
        return list(range(len(needs)))
    reached = [sum(1 << other for other in before) | 1 << layer for layer, before in enumerate(needs)]
    for layers in together:
        for layer in layers:
            reached[layer] |= sum(1 << other for other in layers)
    grows = True
    while grows:
        grows = False
        for layer, mask in enumerate(reached):
            larger, rest = mask, mask
            while rest:
                bit = rest & -rest
                rest ^= bit
                larger |= reached[bit.bit_length() - 1]
            grows |= larger != mask
            reached[layer] = larger
    number: dict[int, int] = {}
    # layers that reach one another reach the same ones
    return [number.setdefault(mask, len(number)) for mask in reached]


def _sorted(members: Sequence[Sequence[int]], before: Sequence[set[int]]) -> Atoms:
    """Return atoms in an order that keeps to what comes before what, the earliest layer first."""
    order: list[int] = []
    place: dict[int, int] = {}
    waiting = sorted(range(len(members)), key=lambda atom: members[atom][0])
    while waiting:
        atom = next(atom for atom in waiting if all(other in place for other in before[atom]))
        place[atom] = len(order)
        order.append(atom)
        waiting.remove(atom)
    needed = tuple(tuple(sorted(place[other] for other in before[atom])) for atom in order)
    after: list[list[int]] = [[] for _ in order]
    for atom, others in enumerate(needed):
        for other in others:
            after[other].append(atom)
    return Atoms(tuple(tuple(members[atom]) for atom in order), needed, tuple(map(tuple, after)))
