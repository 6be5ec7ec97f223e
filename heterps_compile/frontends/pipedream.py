"""Reads PipeDream's profile graphs as workloads.

A node is a line, an edge a line that begins with a tab::

    node7 -- LSTM(2048, 1024) -- forward_compute_time=3.190, backward_compute_time=5.348, \
activation_size=[6291456.0; 131072.0], parameter_size=50364416.000
    <TAB>node6 -- node7

Times are milliseconds, sizes bytes. The file says nothing of devices: their number is the caller's, their memory and
the bandwidth between them are the caller's or the defaults below, which the workload then lists as assumptions.

A node becomes one workload node. In inference it takes its forward time, its output crosses a cut once, and it holds
its parameters and activations. In training it takes forward and backward time, the gradient of its output crosses
the same cut in the other direction, and gradients double what it holds.

As in PipeDream's optimizer, sources named ``Input`` are left out, for their time is that of loading data, and sinks
named ``__getitem__``, outputs that no layer reads. The assumptions name them.

Left out: CPUs (PipeDream measured none: every node is given to accelerators alone).
"""

import math
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from heterps_compile.cost.workload import Workload, WorkloadNode
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.escape import printable

DEFAULT_BANDWIDTH_BYTES_PER_S = 12e9
DEFAULT_MEMORY_BYTES = 16 * 2.0**30

_NAMED = 3  # nodes in a note

_NUMBER = r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf)"
_COSTS = re.compile(
    rf"forward_compute_time=({_NUMBER}), backward_compute_time=({_NUMBER}), "
    rf"activation_size=({_NUMBER}|\[[^\]]*\]), parameter_size=({_NUMBER})(?:, stage_id=[0-9]+)?"
)
_NODE_NAME = re.compile(r"node([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class ProfiledNode:
    """A node as its line has it.

    Attributes:
        id: Unique in a sound graph.
        name: Its description.
        forward_ms, backward_ms: Of one mini-batch.
        activation_bytes: Of its outputs, of one mini-batch.
        parameter_bytes: Of its parameters.
    """

    id: int
    name: str
    forward_ms: float
    backward_ms: float
    activation_bytes: float
    parameter_bytes: float


def parse_profile(text: str, path: Path) -> tuple[list[ProfiledNode], list[tuple[int, int]], list[str]]:
    """Parse the text of a profile graph: its layers, its edges as pairs of their ids, and assumptions.

    Args:
        text: What the file holds.
        path: Where it came from, for messages.

    Raises:
        InputError: where a line is neither a node nor an edge, or a number is missing or none, two nodes have one id,
            or several nodes have no edge.
    """
    nodes: dict[int, ProfiledNode] = {}
    edges: list[tuple[int, int]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"workload file {str(path)!r}, line {number}"
        parts = line.split(" -- ")
        if line.startswith("\t"):
            if len(parts) != 2:
                raise InputError(f"{where}: expected an edge, <TAB>nodeA -- nodeB, not {printable(line.strip())!r}")
            edges.append((_identity(parts[0], where), _identity(parts[1], where)))
        elif line.strip():
            costs = _COSTS.fullmatch(parts[-1].strip()) if len(parts) >= 3 else None
            if costs is None:
                raise InputError(
                    f"{where}: expected nodeN -- description -- forward_compute_time=ms, backward_compute_time=ms, "
                    f"activation_size=bytes, parameter_size=bytes, not {printable(line)[:120]!r}"
                )
            forward_ms, backward_ms, parameter_bytes = (_number(costs[i], where) for i in (1, 2, 4))
            outputs = costs[3].strip("[]").split(";") if costs[3].startswith("[") else [costs[3]]
            activation_bytes = sum(_number(output.strip(), where) for output in outputs if output.strip())
            identity, name = _identity(parts[0], where), " -- ".join(parts[1:-1])
            if identity in nodes:
                raise InputError(f"{where}: two nodes are node{identity}; expected one. Fix: number every node anew")
            nodes[identity] = ProfiledNode(identity, name, forward_ms, backward_ms, activation_bytes, parameter_bytes)
    if len(nodes) > 1 and not edges:
        raise InputError(
            f"workload file {str(path)!r} has {len(nodes)} nodes and no edge between any of them; edges follow the "
            "nodes, one a line (<TAB>nodeA -- nodeB): it was cut off, so copy it again"
        )
    layers, between, left_out = _as_optimized(nodes, edges)
    return layers, between, [*_told_parts(nodes, edges), *left_out]


def _as_optimized(
    nodes: dict[int, ProfiledNode], edges: list[tuple[int, int]]
) -> tuple[list[ProfiledNode], list[tuple[int, int]], list[str]]:
    """Leave out the nodes that PipeDream's optimizer removes: its main() takes the sources first, then the sinks."""
    notes = []
    for name, meaning, end in (("Input", "data loading", 1), ("__getitem__", "outputs that no layer reads", 0)):
        joined = {edge[end] for edge in edges}
        out = {i: node for i, node in nodes.items() if node.name.startswith(name) and i not in joined}
        nodes = {i: node for i, node in nodes.items() if i not in out}
        edges = [edge for edge in edges if out.keys().isdisjoint(edge)]
        if out:
            named = [*(f"node{i}" for i in list(out)[:_NAMED]), *([f"{len(out) - _NAMED} more"] * (len(out) > _NAMED))]
            spent_ms = sum(node.forward_ms + node.backward_ms for node in out.values())
            notes.append(f"{meaning} left out, as PipeDream's optimizer does: {', '.join(named)} ({spent_ms:g} ms)")
    return list(nodes.values()), edges, notes


def _told_parts(nodes: Collection[int], edges: list[tuple[int, int]]) -> list[str]:
    """Report the number of parts that no edge joins, more than one in a file that was cut off among its edges."""
    joined_to = {node: node for node in nodes}  # a forest; its roots are the parts

    def root(identity: int) -> int:
        while joined_to[identity] != identity:
            joined_to[identity] = identity = joined_to[joined_to[identity]]
        return identity

    for ends in edges:
        if joined_to.keys() >= set(ends):
            joined_to[root(ends[0])] = root(ends[1])
    parts = sum(identity == above for identity, above in joined_to.items())
    return [f"{parts} parts that no edge joins (was the file cut off?)"] if parts > 1 else []


def parse_pipedream(
    text: str,
    path: Path,
    accelerators: int | None,
    memory_bytes: float | None,
    *,
    bandwidth_bytes_per_s: float = DEFAULT_BANDWIDTH_BYTES_PER_S,
    mode: str = "training",
) -> Workload:
    """Return the workload that the text of a profile graph describes.

    Args:
        text: What the file holds.
        path: Where it came from, for messages.
        accelerators: How many there are.
        memory_bytes: Of an accelerator; None for :data:`DEFAULT_MEMORY_BYTES`.
        bandwidth_bytes_per_s: Between an accelerator and the host.
        mode: ``"inference"`` or ``"training"``.

    Raises:
        InputError: where a line is neither a node nor an edge, or a number is missing or none.
        UnknownNameError: for another mode.
    """
    if mode not in ("inference", "training"):
        raise UnknownNameError("mode", mode, ("inference", "training"))
    if accelerators is None:
        raise InputError(
            f"workload file {str(path)!r} is a PipeDream profile, which does not say how many accelerators there are; "
            "give their number (--accelerators N)"
        )
    if not 0 < bandwidth_bytes_per_s < math.inf:
        raise InputError(f"a bandwidth of {bandwidth_bytes_per_s} bytes per second must be positive and finite")
    directions = 2 if mode == "training" else 1
    profiled, edges, read = parse_profile(text, path)
    assumptions = [
        *read,
        f"transfers at {bandwidth_bytes_per_s / 1e9:g} GB/s",
        f"read as {mode}",
        "no times on CPUs",
    ]
    if memory_bytes is None:
        memory_bytes = DEFAULT_MEMORY_BYTES
        assumptions.append(f"{memory_bytes / 2**30:g} GiB of memory per accelerator")
    return Workload(
        name=path.name.split(".")[0],
        nodes=tuple(
            WorkloadNode(
                id=node.id,
                name=node.name,
                accelerator_ms=node.forward_ms + (node.backward_ms if mode == "training" else 0.0),
                cpu_ms=math.inf,
                size_bytes=directions * (node.parameter_bytes + node.activation_bytes),
                transfer_ms=directions * node.activation_bytes / bandwidth_bytes_per_s * 1e3,
            )
            for node in profiled
        ),
        edges=tuple(edges),
        accelerators=accelerators,
        cpus=0,
        memory_bytes=memory_bytes,
        assumptions=tuple(assumptions),
    )


def _identity(text: str, where: str) -> int:
    match = _NODE_NAME.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{where}: {printable(text.strip())[:40]!r} names no node; expected nodeN")
    return int(match[1])


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError as e:
        raise InputError(f"{where}: {printable(text)[:40]!r} is no number") from e
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{where}: {text} must be a finite number, 0 or more")
    return number
