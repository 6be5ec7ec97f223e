"""A topological order of nodes that a file lists in any order."""

from collections import deque
from collections.abc import Collection, Iterable

from heterps_compile.errors import InputError


def in_order(nodes: Collection[int], edges: Iterable[tuple[int, int]], where: str) -> list[int]:
    """Sort nodes topologically; of those that are ready, the one that was ready first comes first.

    Args:
        nodes: Ids.
        edges: Pairs of ids, each from a producer to a reader.
        where: Name of the file in messages.

    Raises:
        InputError: if an edge names an unknown node, or edges form a cycle.
    """
    readers: dict[int, set[int]] = {}
    for source, target in edges:
        for end in (source, target):
            if end not in nodes:
                raise InputError(f"{where}: an edge names node{end}, which does not exist")
        readers.setdefault(source, set()).add(target)
    waiting = dict.fromkeys(nodes, 0)
    for targets in readers.values():
        for target in targets:
            waiting[target] += 1
    ready = deque(sorted(identity for identity, count in waiting.items() if count == 0))
    ordered = []
    while ready:
        identity = ready.popleft()
        ordered.append(identity)
        for target in sorted(readers.get(identity, ())):
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    if len(ordered) != len(nodes):
        raise InputError(f"{where}: its edges form a cycle")
    return ordered
