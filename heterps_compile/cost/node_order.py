"""A topological order of nodes that a file lists in any order."""

from collections import deque
from collections.abc import Collection, Iterable, Mapping

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
        raise InputError(f"{where}: its edges form a cycle, {_cycle(readers, set(nodes).difference(ordered))}")
    return ordered


def _cycle(readers: Mapping[int, Collection[int]], stuck: Collection[int]) -> str:
    """Name a cycle of nodes each of which has a predecessor among them."""
    before = {target: source for source in sorted(stuck) for target in readers.get(source, ()) if target in stuck}
    node, place = min(stuck), dict[int, int]()
    while node not in place:
        place[node] = len(place)
        node = before[node]
    cycle = [node, *reversed(list(place)[place[node] :])]
    shown = map(str, cycle if len(cycle) <= _MOST_SHOWN else [*cycle[:6], "...", *cycle[-5:]])
    return " -> ".join(shown)
