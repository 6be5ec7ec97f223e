"""Regions: what is outside stays, what is inside becomes the best there is."""

from itertools import product

import numpy as np
from small_workloads import drawn, plain_loads

from heterps_compile.passes.deadline import NO_DEADLINE, Deadline
from heterps_compile.passes.max_load.blocks import contract
from heterps_compile.passes.max_load.regions import improve_regions

WORKLOAD = drawn(
    """
    1 4/40 out=1 -> 2 5
    2 3/30 out=1 -> 3
    3 3/30 out=2 -> 4 6
    4 5/50 out=1 -> 7
    5 2/20 out=1 -> 6
    6 2/5 out=1 -> 7
    7 3/30
    """,
    accelerators=4,
    cpus=1,
)


def test_no_move_among_three_devices_is_left_that_lowers_the_largest_load():
    blocks = contract(WORKLOAD, None)
    start = [0, 0, 1, 1, 2, 2, 3]
    devices = improve_regions(blocks, start, plain_loads(WORKLOAD, blocks.spread(start)), NO_DEADLINE)
    loads = plain_loads(WORKLOAD, blocks.spread(devices))
    assert max(loads) < max(plain_loads(WORKLOAD, blocks.spread(start)))
    top = loads.index(max(loads))
    for others in product(range(5), repeat=2):
        region = {top, *others}
        inside = [b for b, device in enumerate(devices) if device in region]
        for choice in product(sorted(region), repeat=len(inside)):
            moved = list(devices)
            for block, device in zip(inside, choice, strict=True):
                moved[block] = device
            assert max(plain_loads(WORKLOAD, blocks.spread(moved))) >= max(loads) - 1e-6


def test_without_time_nothing_moves():
    blocks = contract(WORKLOAD, None)
    start = [0, 0, 1, 1, 2, 2, 3]
    assert improve_regions(blocks, start, plain_loads(WORKLOAD, start), Deadline(-np.inf)) == tuple(start)
