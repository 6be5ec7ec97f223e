"""A topological order of nodes that a file lists in any order."""

from collections import Counter, deque
from collections.abc import Collection, Iterable
from graphlib import CycleError, TopologicalSorter

from heterps_compile.errors import InputError

_MOST_SHOWN = 12


def in_order(nodes: Collection[int], edges: Iterable[tuple[int, int]], where: str) -> list[int]:
    """Sort nodes topologically; of those that are ready, the one that was ready first comes first.

    Args:
        nodes: Ids.
        edges: Pairs of ids, each from a producer to a reader.
        where: Name of the graph in messages.

    Raises:
        InputError: if an edge names an unknown node, or edges form a cycle.
    """
    readers: dict[int, set[int]] = {}
    for source, target in edges:
        for end in (source, target):
            if end not in nodes:
                raise InputError(f"{where}: the edge {source} -> {target} names node {end}, which does not exist")
        readers.setdefault(source, set()).add(target)
    try:
        TopologicalSorter(readers).prepare()
    except CycleError as error:
        cycle = [str(node) for node in reversed(error.args[1])]
        shown = cycle if len(cycle) <= _MOST_SHOWN else [*cycle[:6], "...", *cycle[-5:]]
        raise InputError(f"{where}: its edges form a cycle, {' -> '.join(shown)}") from error
    waiting = Counter(target for targets in readers.values() for target in targets)
    ready = deque(sorted(node for node in nodes if node not in waiting))
    ordered: list[int] = []
    while ready:
        ordered.append(ready.popleft())
        for target in sorted(readers.get(ordered[-1], ())):
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return ordered
