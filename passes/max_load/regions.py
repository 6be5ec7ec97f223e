"""Improves a non-contiguous split region by region: the most loaded device and two others, solved to the optimum.

What lies on the other devices stays. A net that reaches them is cut wherever it lies inside the region, and costs them
the same whatever happens inside, so the region is a problem of its own, small enough for HiGHS where the whole is not.

Left out: a bound on the whole (``split_programme.py``).
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from heterps_compile.passes.deadline import Deadline

from .annealing import Ints
from .blocks import Blocks, Floats
from .split_programme import solve_milp

_OTHERS = 2
_REGION_S = 4.0
"""A region that takes longer is left with the best split found in it."""


def improve_regions(
    blocks: Blocks, devices: Sequence[int], loads_ms: Sequence[float], deadline: Deadline
) -> tuple[int, ...]:
    """Move blocks within regions until no region with the most loaded device improves, or the time is up.

    Args:
        blocks: n blocks with their pool.
        devices: Device of every block.
        loads_ms: Load of every device.
        deadline: Stop then.
    """
    current = np.array(devices)
    loads = np.array(loads_ms)
    is_improved = True
    while is_improved:
        is_improved = False
        top = int(loads.argmax())
        others = sorted((d for d in range(len(loads)) if d != top), key=lambda d: loads[d])
        for chosen in combinations(others, min(_OTHERS, len(others))):
            if deadline.is_over:
                return tuple(map(int, current))
            region = sorted([top, *chosen])
            found = _solve_region(blocks, current, region, float(loads[top]), deadline)
            if found is None:
                continue
            changed = _loads(blocks, found)
            if changed[region].max() < loads[top] * (1 - 1e-9):
                current, loads, is_improved = found, changed, True
                break
    return tuple(map(int, current))


def _solve_region(
    blocks: Blocks, current: Ints, region: Sequence[int], value_ms: float, deadline: Deadline
) -> Ints | None:
    """Place the blocks of some devices anew on those devices; None where that gives nothing."""
    inside = np.flatnonzero(np.isin(current, region))
    number = {int(block): i for i, block in enumerate(inside)}
    nets: list[tuple[int, ...]] = []
    net_ms: list[float] = []
    anchored: list[int] = []
    for net, time_ms in zip(blocks.nets, blocks.net_ms, strict=True):
        pins = tuple(number[block] for block in net if block in number)
        is_anchored = len(pins) < len(net)
        if len(pins) > 1 or (pins and is_anchored):
            if is_anchored:
                anchored.append(len(nets))
            nets.append(pins)
            net_ms.append(float(time_ms))
    accelerators = sum(d < blocks.accelerators for d in region)
    part = replace(
        blocks,
        members=tuple(blocks.members[block] for block in inside),
        accelerator_ms=blocks.accelerator_ms[inside],
        cpu_ms=blocks.cpu_ms[inside],
        on_accelerator=blocks.on_accelerator[inside] & (accelerators > 0),
        on_cpu=blocks.on_cpu[inside] & (accelerators < len(region)),
        size_bytes=blocks.size_bytes[inside],
        before=((),) * len(inside),
        after=((),) * len(inside),
        nets=tuple(nets),
        net_ms=np.array(net_ms),
        accelerators=accelerators,
        cpus=len(region) - accelerators,
    )
    known = np.searchsorted(region, current[inside])
    result = solve_milp(part, known.tolist(), (0.0, value_ms), deadline, anchored, most_s=_REGION_S)
    if result.devices is None:
        return None
    found = current.copy()
    found[inside] = np.array(region)[list(result.devices)]
    return found


def _loads(blocks: Blocks, devices: Ints) -> Floats:
    """Return the load of every device."""
    loads = np.zeros(blocks.accelerators + blocks.cpus)
    is_accelerator = devices < blocks.accelerators
    np.add.at(loads, devices, np.where(is_accelerator, blocks.accelerator_ms, blocks.cpu_ms))
    for net, time_ms in zip(blocks.nets, blocks.net_ms, strict=True):
        touched = np.unique(devices[list(net)])
        if len(touched) > 1:
            loads[touched[touched < blocks.accelerators]] += time_ms
    return loads
