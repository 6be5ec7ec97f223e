"""Workloads drawn as text, small random ones, and what brute force says about them.

One node a line: id, time on an accelerator / on a CPU (``-`` where it cannot run), then what is not 0::

    1 5/50 out=2 -> 2 3
    2 3/30 out=1 size=4 colour=7 -> 4
    3 1/10
    4 -/9 colour=7 back
"""

import math
from collections.abc import Iterator, Sequence
from itertools import permutations, product

from hypothesis import strategies as st

from heterps_compile.cost.workload import Workload, WorkloadNode


def drawn(text: str, *, accelerators: int = 2, cpus: int = 0, memory: float = 100.0) -> Workload:
    nodes: list[WorkloadNode] = []
    edges: list[tuple[int, int]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        left, _, readers = line.partition("->")
        identity, times, *rest = left.split()
        on_accelerator, on_cpu = (math.inf if t == "-" else float(t) for t in times.split("/"))
        marks = dict(word.partition("=")[::2] for word in rest)
        nodes.append(
            WorkloadNode(
                id=int(identity),
                name=f"n{identity}",
                accelerator_ms=on_accelerator,
                cpu_ms=on_cpu,
                size_bytes=float(marks.get("size", 0)),
                transfer_ms=float(marks.get("out", 0)),
                colour=int(marks["colour"]) if "colour" in marks else None,
                is_backward="back" in marks,
            )
        )
        edges += [(int(identity), int(reader)) for reader in readers.split()]
    return Workload("drawn", tuple(nodes), tuple(edges), accelerators, cpus, memory)


@st.composite
def workloads(draw: st.DrawFn, most_nodes: int = 8) -> Workload:
    """Random DAGs with zeros, ties, colours, backward nodes, scarce memory, and nodes that only one kind can run."""
    count = draw(st.integers(1, most_nodes))
    accelerators = draw(st.integers(0, 3))
    cpus = draw(st.integers(0 if accelerators else 1, 2 if accelerators < 3 else 0))
    is_training = draw(st.booleans())
    turn = draw(st.integers(count // 2, count)) if is_training else count
    time = st.one_of(st.just(0.0), st.integers(0, 9).map(float))
    rare = st.sampled_from([False] * 7 + [True])
    nodes = []
    for i in range(count):
        on_accelerator, on_cpu = draw(time), draw(time) * draw(st.sampled_from([1, 3]))
        if draw(rare):
            on_accelerator, on_cpu = draw(st.sampled_from([(math.inf, on_cpu), (on_accelerator, math.inf)]))
        nodes.append(
            WorkloadNode(
                id=10 * i + 1,
                name=f"n{i}",
                accelerator_ms=on_accelerator,
                cpu_ms=on_cpu,
                size_bytes=float(draw(st.integers(0, 4))),
                transfer_ms=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
                colour=draw(st.one_of(st.none(), st.none(), st.integers(0, 3))),
                is_backward=i >= turn,
            )
        )
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12)) if pairs else []
    edges = tuple((nodes[a].id, nodes[b].id) for a, b in chosen)
    return Workload("random", tuple(nodes), edges, accelerators, cpus, float(draw(st.sampled_from([5, 9, 100]))))


def plain_loads(workload: Workload, devices: Sequence[int]) -> list[float]:
    """The definition, device by device, edge by edge."""
    position = {node.id: i for i, node in enumerate(workload.nodes)}
    loads = []
    for d in range(workload.device_count):
        inside = {i for i, device in enumerate(devices) if device == d}
        if d >= workload.accelerators:
            loads.append(sum(workload.nodes[i].cpu_ms for i in inside))
            continue
        crossing = {
            position[source]
            for source, target in workload.edges
            if (position[source] in inside) != (position[target] in inside)
        }
        loads.append(
            sum(workload.nodes[i].accelerator_ms for i in inside) + sum(workload.nodes[i].transfer_ms for i in crossing)
        )
    return loads


def is_in_line(workload: Workload, devices: Sequence[int]) -> bool:
    """Try every order of the devices, and both ways for the backward pass."""
    position = {node.id: i for i, node in enumerate(workload.nodes)}
    forward, backward = [], []
    for source, target in workload.edges:
        a, b = position[source], position[target]
        if workload.nodes[a].is_backward and workload.nodes[b].is_backward:
            backward.append((devices[a], devices[b]))
        elif not workload.nodes[b].is_backward:
            forward.append((devices[a], devices[b]))
    return any(
        all(place[a] <= place[b] for a, b in forward)
        and (all(place[a] <= place[b] for a, b in backward) or all(place[a] >= place[b] for a, b in backward))
        for place in permutations(range(workload.device_count))
    )


def valid_splits(workload: Workload) -> Iterator[tuple[int, ...]]:
    """Every split that keeps support, colours, memory and contiguity."""
    classes: dict[object, int] = {}
    block = [classes.setdefault(("n", n.id) if n.colour is None else n.colour, len(classes)) for n in workload.nodes]
    for choice in product(range(workload.device_count), repeat=len(classes)):
        devices = tuple(choice[b] for b in block)
        if math.inf in plain_loads(workload, devices):
            continue
        held = [0.0] * workload.device_count
        for node, device in zip(workload.nodes, devices, strict=True):
            held[device] += node.size_bytes
        if max(held[: workload.accelerators], default=0.0) > workload.memory_bytes:
            continue
        if is_in_line(workload, devices):
            yield devices


def brute_force(workload: Workload) -> float:
    """The least largest load, inf where there is no valid split."""
    splits = valid_splits(workload)
    return min((max(plain_loads(workload, devices)) for devices in splits), default=math.inf)
