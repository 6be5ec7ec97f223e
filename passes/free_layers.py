"""Layers that cost nothing join others, so that fewer down-sets are left; no best time is lost.

A layer is *idle* where it takes no time on the type and has no parameters.

1. An idle layer without inputs, or whose inputs are all such, that makes a value of 0 bytes belongs to the first stage:
   nobody pays for it there, whatever reads it.
2. An idle layer that nobody reads, with one producer, joins it: it would only make the producer's value cross.
3. An idle layer that is its producer's only reader, and whose value is no larger, joins it: a cut before it costs no
   less than one behind it.

Memory is not looked at: the rules hold where the whole model fits a unit.

Left out: layers that cost little.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.problem_file.given_problem import GivenProblem


@dataclass(frozen=True, slots=True)
class JoinedLayers:
    """Groups of layers that stay together.

    Attributes:
        groups: [G], layers of each, in an order in which every edge runs forward.
        first: Layers of the first stage, by rule 1.
        before, after: [G], groups that come before and after each.
    """

    groups: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]


def join_layers(problem: GivenProblem, device: str, *, joins: bool) -> JoinedLayers:
    """Return the groups; O(layers + edges).

    Args:
        problem: The layers.
        device: Name of the type whose times count.
        joins: Whether layers may join others at all.
    """
    count = len(problem.layers)
    readers: list[set[int]] = [set() for _ in range(count)]
    producers: list[set[int]] = [set() for _ in range(count)]
    made_bytes = [0.0] * count
    for edge in problem.edges:
        made = problem.position[edge.producer]
        made_bytes[made] += edge.bytes_per_sample
        for reader in edge.readers:
            readers[made].add(problem.position[reader])
            producers[problem.position[reader]].add(made)
    idle = [joins and _is_idle(problem, i, device) for i in range(count)]
    first: set[int] = set()
    for i in range(count):
        if idle[i] and made_bytes[i] == 0 and readers[i] and producers[i] <= first:
            first.add(i)
    home = list(range(count))
    for i in reversed(range(count)):  # rule 2, the last ones first, as a reader that joined is one no more
        left = [reader for reader in readers[i] if home[reader] != i]
        if idle[i] and i not in first and not left and len(producers[i] - first) == 1 and home[i] == i:
            [home[i]] = producers[i] - first
    for i in range(count):  # rule 3
        before = producers[i] - first
        if idle[i] and i not in first and home[i] == i and len(before) == 1:
            [made] = before
            others = [reader for reader in readers[made] if home[reader] != made and reader != i]
            if not others and made_bytes[i] <= made_bytes[made]:
                home[i] = made
    return _grouped(home, first, readers)


def _is_idle(problem: GivenProblem, layer: int, device: str) -> bool:
    times = [each for each in problem.layers[layer].times if each.device == device]
    works = any(problem.batch * max((*each.forward_s, *each.backward_s)) > 0 for each in times)
    return not works and not any(each.parameter_bytes for each in times)


def _grouped(home: list[int], first: set[int], readers: Sequence[set[int]]) -> JoinedLayers:
    def root(layer: int) -> int:
        while home[layer] != layer:
            layer = home[layer]
        return layer

    members: dict[int, list[int]] = {}
    for layer in range(len(home)):
        if layer not in first:
            members.setdefault(root(layer), []).append(layer)
    number = {top: i for i, top in enumerate(members)}
    before: list[set[int]] = [set() for _ in members]
    after: list[set[int]] = [set() for _ in members]
    for layer in range(len(home)):
        for reader in readers[layer]:
            if layer in first or reader in first:
                continue
            here, there = number[root(layer)], number[root(reader)]
            if here != there:
                after[here].add(there)
                before[there].add(here)
    return JoinedLayers(
        tuple(map(tuple, members.values())),
        tuple(sorted(first)),
        tuple(tuple(sorted(each)) for each in before),
        tuple(tuple(sorted(each)) for each in after),
    )
