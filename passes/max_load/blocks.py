"""Contracts a workload into blocks: the smallest pieces a search may place, and the nets between them.

1. Nodes of one colour share a device, so a colour class is one block.
2. A *net* is a node's output together with its readers. An accelerator pays a net's time once when the net lies
   partly on it and partly elsewhere, whoever of its members is the producer. So a load depends on nets as plain sets
   of blocks, and nets over the same blocks add up.
3. In a contiguous split the devices stand in one line. Forward edges never run to an earlier device; backward edges
   either never run to a later one or never to an earlier one, the same for all of them (:class:`Flow`). Blocks that
   precede each other both ways are one block.
4. A *loose* block takes no time and shares all of its nets with one neighbour: on the neighbour's device it costs
   nobody anything, so it joins it. Its memory is the one thing that can speak against it; see :class:`Loose`.

Rule 3 gives a backward node without a forward partner every place between its backward neighbours, as the artificial
forward twins of the NeurIPS paper do.

Times are rounded to multiples of a power of two, 2^-50 of the total: sums of them are exact in any order, so a
larger set never looks faster than a smaller one, and bounds need no tolerance.

Left out: which sets of blocks a device may hold (``down_sets.py``, ``device_loads.py``).
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.node_order import in_order
from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InfeasibleError
from heterps_compile.units import format_bytes

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Flow(Enum):
    """Which way the backward pass runs through the line of devices of a contiguous split."""

    AGAINST = "against the forward pass"
    ALONG = "along the forward pass"


class Loose(Enum):
    """What becomes of loose blocks that take memory where memory is scarce."""

    STAY = "blocks of their own: exact"
    JOIN = "join the neighbour with their memory: a valid split, perhaps not the best"
    FLOAT = "join the neighbour without their memory: a lower bound, perhaps not a valid split"


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A contracted workload of n blocks, in a topological order.

    Attributes:
        members: [n], indices of the nodes in each block.
        accelerator_ms: [n], 0 where the block cannot run on an accelerator.
        cpu_ms: [n], 0 where the block cannot run on a CPU.
        on_accelerator: [n], whether the block may be on an accelerator.
        on_cpu: [n], whether the block may be on a CPU.
        size_bytes: [n].
        before: [n], the blocks that must not be on a later device.
        after: [n], the same relation the other way.
        nets: Ascending blocks of each net, two or more.
        net_ms: Time of each net, above 0.
        accelerators, cpus, memory_bytes: The pool.
        dropped_bytes: Memory that floating blocks took out of account.
    """

    members: tuple[tuple[int, ...], ...]
    accelerator_ms: Floats
    cpu_ms: Floats
    on_accelerator: Bools
    on_cpu: Bools
    size_bytes: Floats
    before: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    nets: tuple[tuple[int, ...], ...]
    net_ms: Floats
    accelerators: int
    cpus: int
    memory_bytes: float
    dropped_bytes: float = 0.0

    @property
    def count(self) -> int:
        """Return n."""
        return len(self.members)

    def spread(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Return the device of every node from the device of every block."""
        assignment = [0] * sum(len(members) for members in self.members)
        for members, device in zip(self.members, devices, strict=True):
            for node in members:
                assignment[node] = int(device)
        return tuple(assignment)

    def gather(self, assignment: Sequence[int]) -> list[int]:
        """Return the device of every block from the device of every node."""
        return [assignment[members[0]] for members in self.members]


def has_backward_edges(workload: Workload) -> bool:
    """Tell whether any edge joins two backward nodes, so that the flow matters."""
    nodes, position = workload.nodes, workload.position
    return any(
        nodes[position[source]].is_backward and nodes[position[target]].is_backward for source, target in workload.edges
    )


def precedence(workload: Workload, flow: Flow) -> list[tuple[int, int]]:
    """Return the pairs of node indices (earlier, later) of rule 3."""
    pairs = []
    for source, target in workload.edges:
        tail, head = workload.position[source], workload.position[target]
        backward = workload.nodes[tail].is_backward, workload.nodes[head].is_backward
        if backward == (False, False) or (backward == (True, True) and flow is Flow.ALONG):
            pairs.append((tail, head))
        elif backward == (True, True):
            pairs.append((head, tail))
    return pairs


def contract(workload: Workload, flow: Flow, loose: Loose = Loose.STAY) -> Blocks:
    """Contract a workload by the four rules.

    Args:
        workload: It keeps its laws.
        flow: Of the backward pass.
        loose: What becomes of loose blocks where memory is scarce.

    Raises:
        InfeasibleError: where nodes that must share a device fit on none.
    """
    block_of = _colour_classes(workload)
    _check_fit(workload, block_of, "colour class")
    order = precedence(workload, flow)
    block_of = _fuse_cycles(block_of, {(block_of[a], block_of[b]) for a, b in order})
    _check_fit(workload, block_of, f"colour classes and contiguity, with the backward pass {flow.value}")
    pairs = {(block_of[a], block_of[b]) for a, b in order if block_of[a] != block_of[b]}
    draft = _Draft(workload, block_of, pairs)
    dropped_bytes = draft.join_loose(loose)
    return draft.finish(dropped_bytes)


def _colour_classes(workload: Workload) -> list[int]:
    """Return the block of every node by rule 1, numbered in the order of the nodes."""
    first: dict[tuple[str, int], int] = {}
    return [
        first.setdefault(("node", i) if node.colour is None else ("colour", node.colour), len(first))
        for i, node in enumerate(workload.nodes)
    ]


def _fuse_cycles(block_of: list[int], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return the block of every node after blocks that precede each other became one."""
    import networkx as nx  # noqa: PLC0415 - 0.3 s

    graph = nx.DiGraph()
    graph.add_nodes_from(range(max(block_of) + 1))
    graph.add_edges_from(sorted(pairs))
    fused: dict[int, int] = {}
    for number, component in enumerate(nx.strongly_connected_components(graph)):
        fused.update((block, number) for block in component)
    return [fused[block] for block in block_of]


def _check_fit(workload: Workload, block_of: Sequence[int], tie: str) -> None:
    """Raise where the nodes of a block, together, fit on no device; the message names them and every reason."""
    groups: dict[int, list[int]] = {}
    for i, block in enumerate(block_of):
        groups.setdefault(block, []).append(i)
    for members in groups.values():
        nodes = [workload.nodes[i] for i in members]
        size_bytes = sum(node.size_bytes for node in nodes)
        stuck = [node.id for node in nodes if math.isinf(node.accelerator_ms)]
        reasons = []
        if workload.accelerators == 0:
            reasons.append("there is no accelerator")
        elif stuck:
            reasons.append(f"node {stuck[0]} cannot run on an accelerator")
        elif size_bytes > workload.memory_bytes:
            reasons.append(
                f"an accelerator would need {format_bytes(size_bytes)} and has {format_bytes(workload.memory_bytes)}"
            )
        if not reasons:
            continue
        stuck = [node.id for node in nodes if math.isinf(node.cpu_ms)]
        if workload.cpus == 0:
            reasons.append("there is no CPU")
        elif stuck:
            reasons.append(f"node {stuck[0]} cannot run on a CPU")
        else:
            continue
        ids = [node.id for node in nodes]
        shown = ", ".join(map(str, ids if len(ids) <= 8 else [*ids[:7], "..."]))
        if len(ids) > 1:
            who = f"{len(ids)} nodes ({shown}) must share a device by {tie}, but no device takes them"
            colours = sorted({node.colour for node in nodes if node.colour is not None})
            if len(colours) == 1 and tie == "colour class":
                who = f"the {len(ids)} nodes of colour class {colours[0]} ({shown}) contradict each other"
        else:
            who = f"no device takes node {ids[0]}"
        raise InfeasibleError(
            f"workload {workload.name!r}: {who}: {' and '.join(reasons)}; "
            "give the pool such a device or more memory, or take the nodes apart"
        )


class _Draft:
    """Blocks while loose ones still join others."""

    def __init__(self, workload: Workload, block_of: Sequence[int], pairs: Iterable[tuple[int, int]]) -> None:
        self.workload = workload
        count = max(block_of) + 1
        self.members: list[list[int]] = [[] for _ in range(count)]
        for node, block in enumerate(block_of):
            self.members[block].append(node)
        self.before: list[set[int]] = [set() for _ in range(count)]
        self.after: list[set[int]] = [set() for _ in range(count)]
        for earlier, later in pairs:
            self.after[earlier].add(later)
            self.before[later].add(earlier)
        self.pins: list[set[int]] = []
        self.pin_ms: list[float] = []
        self.nets_of: list[set[int]] = [set() for _ in range(count)]
        for node, readers in enumerate(workload.readers):
            pins = {block_of[node], *(block_of[reader] for reader in readers)}
            if len(pins) > 1 and workload.nodes[node].transfer_ms > 0:
                for block in pins:
                    self.nets_of[block].add(len(self.pins))
                self.pins.append(pins)
                self.pin_ms.append(workload.nodes[node].transfer_ms)
        self.size_bytes = [sum(workload.nodes[i].size_bytes for i in members) for members in self.members]

    def join_loose(self, loose: Loose) -> float:
        """Let loose blocks join their neighbours by rule 4; give the memory that was dropped."""
        memory_is_scarce = sum(self.size_bytes) > self.workload.memory_bytes
        dropped_bytes = 0.0
        waiting = deque(range(len(self.members)))
        while waiting:
            block = waiting.popleft()
            host = self._host(block)
            if host is None:
                continue
            if memory_is_scarce and self.size_bytes[block] > 0:
                together = self.size_bytes[host] + self.size_bytes[block]
                if loose is Loose.STAY or (loose is Loose.JOIN and together > self.workload.memory_bytes):
                    continue
            waiting.extend(self.before[host] | self.after[host] | {host})
            for net in self.nets_of[block]:
                self.pins[net].discard(block)
                if len(self.pins[net]) == 1:
                    self.nets_of[host].discard(net)
                else:
                    waiting.extend(self.pins[net])
            for around in (self.before, self.after):
                around[host].discard(block)
                around[block].clear()
            self.nets_of[block].clear()
            self.members[host] += self.members[block]
            self.members[block] = []
            if memory_is_scarce and loose is Loose.FLOAT:
                dropped_bytes += self.size_bytes[block]
            else:
                self.size_bytes[host] += self.size_bytes[block]
        return dropped_bytes

    def _host(self, block: int) -> int | None:
        """Return the block that a loose block may join, None where it is not loose."""
        nodes = [self.workload.nodes[i] for i in self.members[block]]
        pool = self.workload
        if not nodes or any(
            (pool.accelerators and node.accelerator_ms) or (pool.cpus and node.cpu_ms) for node in nodes
        ):
            return None
        around = self.before[block] | self.after[block]
        nets = [self.pins[net] for net in self.nets_of[block]]
        hosts = set.intersection(*nets) - {block} if nets else set(around)
        if around:
            hosts = hosts & around if len(around) == 1 else set()
        elif not nets:  # nothing ties it to anything: any block will do
            hosts = {next((b for b, members in enumerate(self.members) if members and b != block), block)} - {block}
        return min(hosts, default=None)

    def finish(self, dropped_bytes: float) -> Blocks:
        """Number the blocks that are left and give them as arrays."""
        order = self._order()
        number = {block: i for i, block in enumerate(order)}
        nodes = self.workload.nodes
        nets: dict[tuple[int, ...], float] = {}
        for pins, time_ms in zip(self.pins, self.pin_ms, strict=True):
            if len(pins) > 1:
                net = tuple(sorted(number[block] for block in pins))
                nets[net] = nets.get(net, 0.0) + time_ms
        accelerator_ms = np.array([sum(nodes[i].accelerator_ms for i in self.members[b]) for b in order])
        cpu_ms = np.array([sum(nodes[i].cpu_ms for i in self.members[b]) for b in order])
        size_bytes = np.array([self.size_bytes[b] for b in order])
        pool = self.workload
        on_accelerator = np.isfinite(accelerator_ms) & (size_bytes <= pool.memory_bytes) & (pool.accelerators > 0)
        on_cpu = np.isfinite(cpu_ms) & (pool.cpus > 0)
        accelerator_ms, cpu_ms = np.where(on_accelerator, accelerator_ms, 0.0), np.where(on_cpu, cpu_ms, 0.0)
        net_ms = np.array(list(nets.values()), dtype=np.float64)
        total_ms = float(accelerator_ms.sum() + cpu_ms.sum() + net_ms.sum())
        tick_ms = math.ldexp(1.0, math.frexp(total_ms)[1] - 50) if total_ms > 0 else 1.0
        return Blocks(
            members=tuple(tuple(sorted(self.members[b])) for b in order),
            accelerator_ms=np.round(accelerator_ms / tick_ms) * tick_ms,
            cpu_ms=np.round(cpu_ms / tick_ms) * tick_ms,
            on_accelerator=on_accelerator,
            on_cpu=on_cpu,
            size_bytes=size_bytes,
            before=tuple(tuple(sorted(number[a] for a in self.before[b])) for b in order),
            after=tuple(tuple(sorted(number[a] for a in self.after[b])) for b in order),
            nets=tuple(nets),
            net_ms=np.round(net_ms / tick_ms) * tick_ms,
            accelerators=pool.accelerators,
            cpus=pool.cpus,
            memory_bytes=pool.memory_bytes,
            dropped_bytes=dropped_bytes,
        )

    def _order(self) -> list[int]:
        """Return the blocks that are left in a topological order that only the workload decides."""
        first = {block: min(members) for block, members in enumerate(self.members) if members}
        block_of = {node: block for block, node in first.items()}
        edges = ((first[block], first[later]) for block in first for later in self.after[block])
        return [block_of[node] for node in in_order(block_of, edges, f"workload {self.workload.name!r}")]
