"""A workload's laws hold for workloads made in Python too."""

import math
from dataclasses import replace

import pytest
from small_workloads import drawn

from heterps_compile.cost.workload import WorkloadNode, verify_workload
from heterps_compile.errors import InputError

GOOD = drawn("1 1/- -> 2\n2 -/1 -> 3\n3 1/1")


def test_a_time_of_inf_means_that_a_node_cannot_run_there():
    verify_workload(GOOD)


def test_readers_are_indices_each_once():
    assert replace(GOOD, edges=((1, 3), (1, 2), (1, 3))).readers == ((1, 2), (), ())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": ()}, "it has no nodes"),
        ({"cpus": -1}, "it has -1 CPUs"),
        ({"memory_bytes": math.inf}, "memory is inf bytes"),
        ({"nodes": (WorkloadNode(1, "a", math.nan, 1),)}, r"time on an accelerator of node 1 \('a'\) is nan"),
        ({"nodes": (WorkloadNode(1, "a", 1, -1),)}, "time on a CPU of node 1 .* is -1"),
        ({"nodes": (WorkloadNode(1, "\x1b", 1, 1, math.inf),)}, r"size of node 1 \('\\x1b'\) is inf"),
        ({"nodes": (WorkloadNode(1, "a", 1, 1, 1, math.inf),)}, "transfer time of node 1"),
        ({"nodes": (WorkloadNode(1, "a", 1e31, 1),)}, "is 1e\\+31; it must be at most 1e\\+30"),
        ({"accelerators": 10**9}, "it has 1,000,000,000 accelerators and . CPUs; 100,000 are the most"),
        ({"edges": ((1, 2), (2, 3), (3, 2))}, "form a cycle, 2 -> 3 -> 2"),
        ({"edges": ((1, 4),)}, "names node 4"),
    ],
)
def test_a_broken_law_is_named_with_the_node(changes, message):
    with pytest.raises(InputError, match=f"workload 'drawn': .*{message}"):
        verify_workload(replace(GOOD, **changes))


def test_a_long_cycle_is_shortened():
    ring = drawn("\n".join(f"{i} 1/1 -> {i % 40 + 1}" for i in range(1, 41)))
    with pytest.raises(InputError) as caught:
        verify_workload(ring)
    assert "..." in str(caught.value)
    assert len(str(caught.value)) < 200
