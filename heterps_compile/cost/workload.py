"""A workload: a graph that has costs and nothing else, with the pool of devices it is to be spread over.

The problem is that of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020, arXiv
2006.16423): k equal accelerators with a memory limit, l equal CPUs without one; an accelerator's load is the time
of its nodes plus, once for every node whose output enters or leaves it, that node's transfer time; a CPU's load is
the time of its nodes alone. The largest load is the time a sample takes in a full pipeline, and is minimised.

Left out: prices, the files workloads come in (``problem_file/workload_file.py``), the search (``passes/max_load/``).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from heterps_compile.errors import InputError

from .node_order import in_order

MOST_DEVICES = 100_000
MOST = 1e30
"""Of a time or a size: beyond it sums over a workload may overflow."""


@dataclass(frozen=True, slots=True)
class WorkloadNode:
    """One operator or layer.

    Attributes:
        id: Unique in the workload; what a split names the node by.
        name: For people.
        accelerator_ms: Time on an accelerator; inf where it cannot run on one.
        cpu_ms: Time on a CPU; inf where it cannot run on one.
        size_bytes: Memory it takes on an accelerator.
        transfer_ms: Time to move its output between an accelerator and the host, whatever the number of readers.
        colour: Nodes of one colour share a device; None for a node that is free.
        is_backward: Whether it belongs to the backward pass.
    """

    id: int
    name: str
    accelerator_ms: float
    cpu_ms: float
    size_bytes: float = 0.0
    transfer_ms: float = 0.0
    colour: int | None = None
    is_backward: bool = False


@dataclass(frozen=True)
class Workload:
    """Nodes, edges, and the pool.

    Times are in milliseconds where the source says so; any unit does, so long as all times share it.

    Attributes:
        name: For people.
        nodes: In the order of the source.
        edges: (source id, target id) pairs.
        accelerators: k, how many accelerators there are.
        cpus: l, how many CPUs there are.
        memory_bytes: Memory of one accelerator.
        assumptions: What the source did not say and the reader filled in.
    """

    name: str
    nodes: tuple[WorkloadNode, ...]
    edges: tuple[tuple[int, int], ...]
    accelerators: int
    cpus: int
    memory_bytes: float
    assumptions: tuple[str, ...] = ()

    @property
    def device_count(self) -> int:
        """Return k + l; devices are numbered accelerators first."""
        return self.accelerators + self.cpus

    @cached_property
    def position(self) -> Mapping[int, int]:
        """Return the index in :attr:`nodes` of every id."""
        return {node.id: i for i, node in enumerate(self.nodes)}

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Give, per node, the indices of the nodes that read its output, ascending, each once."""
        found: list[set[int]] = [set() for _ in self.nodes]
        for source, target in self.edges:
            found[self.position[source]].add(self.position[target])
        return tuple(tuple(sorted(targets)) for targets in found)


def _has_a_node(workload: Workload) -> Iterator[str]:
    if not workload.nodes:
        yield "it has no nodes"


def _has_a_device(workload: Workload) -> Iterator[str]:
    for what, count in (("accelerators", workload.accelerators), ("CPUs", workload.cpus)):
        if count < 0:
            yield f"it has {count} {what}; give 0 or more"
    if workload.device_count < 1:
        yield "it has neither an accelerator nor a CPU to place nodes on; give at least one"
    if workload.device_count > MOST_DEVICES:
        yield (
            f"it has {workload.accelerators:,} accelerators and {workload.cpus:,} CPUs; {MOST_DEVICES:,} are the most, "
            "and those beyond the number of nodes would stay empty"
        )
    if not 0 <= workload.memory_bytes < math.inf:
        yield f"an accelerator's memory is {workload.memory_bytes} bytes; it must be a finite number, 0 or more"


def _names_each_node_once(workload: Workload) -> Iterator[str]:
    for identity, count in Counter(node.id for node in workload.nodes).items():
        if count > 1:
            yield f"{count} nodes have the id {identity}; every id must be unique"


def _has_sane_numbers(workload: Workload) -> Iterator[str]:
    for node in workload.nodes:
        for what, number, may_be_inf in (
            ("time on an accelerator", node.accelerator_ms, True),
            ("time on a CPU", node.cpu_ms, True),
            ("size", node.size_bytes, False),
            ("transfer time", node.transfer_ms, False),
        ):
            if math.isnan(number) or number < 0 or (math.isinf(number) and not may_be_inf):
                yield f"the {what} of node {node.id} ({node.name!r}) is {number}; it must be 0 or more"
            if MOST < number < math.inf:
                yield f"the {what} of node {node.id} ({node.name!r}) is {number:g}; it must be at most {MOST:g}"


def _edges_have_an_order(workload: Workload) -> Iterator[str]:
    in_order(workload.position, workload.edges, f"workload {workload.name!r}")
    return iter(())


def _forward_never_waits_for_backward(workload: Workload) -> Iterator[str]:
    for source, target in workload.edges:
        tail, head = (workload.nodes[workload.position[end]] for end in (source, target))
        if tail.is_backward and not head.is_backward:
            yield f"the edge {source} -> {target} runs from the backward into the forward pass"


LAWS: tuple[tuple[str, Callable[[Workload], Iterator[str]]], ...] = (
    ("there is a node", _has_a_node),
    ("there is a device", _has_a_device),
    ("every id names one node", _names_each_node_once),
    ("numbers are numbers, and none is negative", _has_sane_numbers),
    ("edges join nodes that exist, and none of them waits for itself", _edges_have_an_order),
    ("the forward pass never waits for the backward pass", _forward_never_waits_for_backward),
)
"""What a workload must keep, in the order it is checked: a later law may rely on an earlier one."""


def verify_workload(workload: Workload) -> None:
    """Check a workload against :data:`LAWS`.

    Raises:
        InputError: for the first fault of the first law broken.
    """
    for _, faults in LAWS:
        for fault in faults(workload):
            raise InputError(f"workload {workload.name!r}: {fault}")
