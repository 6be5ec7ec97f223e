"""A split: the device of every node; what it loads the devices with, and whether it keeps the rules.

:func:`evaluate_split` is the single truth about loads: every search reports what it says.

Left out: how good splits are found (``solve.py``).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InputError
from heterps_compile.units import format_bytes

from .blocks import Flow, precedence

MEMORY_SLACK = 1 + 1e-12
"""Sums of sizes are floats; a device that is full to the last byte is not over-full."""


@dataclass(frozen=True, slots=True)
class MaxLoadResult:
    """What a search for the least largest load gives back.

    Attributes:
        assignment: Device of every node, in the workload's order; accelerators first, then CPUs, each numbered along
            the pipeline.
        loads_ms: Load of every device, by :func:`evaluate_split`.
        bound_ms: No contiguous split has a largest load below this.
        seed: What it ran with.
        evaluations: How many loads or moves it weighed.
        search_s: Seconds it took, the bound included.
        notes: What the user should know: limits reached, assumptions made.
    """

    assignment: tuple[int, ...]
    loads_ms: tuple[float, ...]
    bound_ms: float
    seed: int
    evaluations: int
    search_s: float
    notes: tuple[str, ...] = ()

    @property
    def value_ms(self) -> float:
        """Return the largest load."""
        return max(self.loads_ms)

    @property
    def gap(self) -> float:
        """Return (value - bound) / value, 0 where both are 0."""
        return 0.0 if self.value_ms <= 0 else max(0.0, (self.value_ms - self.bound_ms) / self.value_ms)


def evaluate_split(workload: Workload, assignment: Sequence[int]) -> tuple[float, ...]:
    """Return the load of every device in ms, accelerators first.

    An accelerator's load is the time of its nodes plus, for every node whose output enters or leaves it, that node's
    transfer time, once; a CPU's load is the time of its nodes.

    Args:
        workload: With k accelerators and l CPUs.
        assignment: Device of every node, in the workload's order: 0..k-1 accelerators, k..k+l-1 CPUs.

    Raises:
        InputError: where the assignment has another length or names a device that does not exist.
    """
    if len(assignment) != len(workload.nodes):
        raise InputError(f"a split of {len(assignment)} nodes does not fit a workload of {len(workload.nodes)}")
    for node, device in zip(workload.nodes, assignment, strict=True):
        if not 0 <= device < workload.device_count:
            raise InputError(f"node {node.id} is on device {device}; devices are 0 to {workload.device_count - 1}")
    loads_ms = [0.0] * workload.device_count
    for i, (node, device) in enumerate(zip(workload.nodes, assignment, strict=True)):
        loads_ms[device] += node.accelerator_ms if device < workload.accelerators else node.cpu_ms
        touched = {device, *(assignment[reader] for reader in workload.readers[i])}
        if len(touched) > 1:
            for other in touched:
                if other < workload.accelerators:
                    loads_ms[other] += node.transfer_ms
    return tuple(loads_ms)


def faults(workload: Workload, assignment: Sequence[int]) -> Iterator[str]:
    """Yield every rule that a split breaks: support, memory, colours, contiguity."""
    nodes, k = workload.nodes, workload.accelerators
    sizes_bytes = [0.0] * workload.device_count
    device_of_colour: dict[int, int] = {}
    for node, device in zip(nodes, assignment, strict=True):
        sizes_bytes[device] += node.size_bytes
        if (node.accelerator_ms if device < k else node.cpu_ms) == float("inf"):
            yield f"node {node.id} cannot run on {'an accelerator' if device < k else 'a CPU'}"
        if node.colour is not None and device_of_colour.setdefault(node.colour, device) != device:
            yield f"colour class {node.colour} is on devices {device_of_colour[node.colour]} and {device}"
    for device, size_bytes in enumerate(sizes_bytes[:k]):
        if size_bytes > workload.memory_bytes * MEMORY_SLACK:
            room = format_bytes(workload.memory_bytes)
            yield f"accelerator {device} needs {format_bytes(size_bytes)} and has {room}"
    if not any(is_contiguous(workload, assignment, flow) for flow in Flow):
        yield "the devices cannot stand in one line: the split is not contiguous"


def is_contiguous(workload: Workload, assignment: Sequence[int], flow: Flow) -> bool:
    """Check if the devices have an order in which the split is contiguous."""
    return bool(in_line(assignment, {(assignment[a], assignment[b]) for a, b in precedence(workload, flow)}))


def in_line(devices: Iterable[int], pairs: Iterable[tuple[int, int]]) -> list[int]:
    """Return devices in an order in which all pairs run forward; none if there is no such order."""
    left, order = set(devices), list[int]()
    ends = [(earlier, later) for earlier, later in pairs if earlier != later]
    while left:
        free = left - {later for earlier, later in ends if earlier in left}
        if not free:
            return []
        order += sorted(free)
        left -= free
    return order


def to_split_json(workload: Workload, assignment: Sequence[int]) -> dict[str, Any]:
    """Return a split in the form of the NeurIPS 2020 authors' programs; every node id stands in it once.

    Returns:
        ``{"maxLoad": x, "fpgas": [{"load": x, "nodes": [ids]}, ...], "cpus": [...]}``, one entry per device.
    """
    loads_ms = evaluate_split(workload, assignment)
    entries: list[dict[str, Any]] = [{"load": load_ms, "nodes": []} for load_ms in loads_ms]
    for node, device in zip(workload.nodes, assignment, strict=True):
        entries[device]["nodes"].append(node.id)
    k = workload.accelerators
    return {"maxLoad": max(loads_ms), "fpgas": entries[:k], "cpus": entries[k:]}
