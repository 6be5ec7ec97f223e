"""A process that is a rank of many worlds, one after the other."""

import os

import torch
import torch.distributed as dist
from ranks import run_ranks

from heterps_compile.runtime.pipeline.world import join_world, leave_world, make_group


def _descriptors_after_worlds(rank: int) -> list[int]:
    leave_world()
    counts = []
    for number in range(3):
        store = dist.PrefixStore(f"world {number}", dist.distributed_c10d._get_default_store())
        join_world(store, rank, 2)
        tensor = torch.ones(1000)
        make_group(range(2)).sum(tensor).wait()
        assert tensor.eq(2).all()
        leave_world()
        counts.append(len(os.listdir("/proc/self/fd")))
    return counts


def test_a_world_that_was_left_holds_no_descriptor():
    for counts in run_ranks(_descriptors_after_worlds, 2):
        assert len(set(counts)) == 1
