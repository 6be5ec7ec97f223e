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
        ({"nodes": ()}, "nodes"),
        ({"cpus": -1}, "-1 CPUs"),
        ({"memory_bytes": math.inf}, "memory.*inf"),
        ({"nodes": (WorkloadNode(1, "a", math.nan, 1),)}, r"accelerator.*node 1\b.*'a'.*nan"),
        ({"nodes": (WorkloadNode(1, "a", 1, -1),)}, r"CPU.*node 1\b.*-1"),
        ({"nodes": (WorkloadNode(1, "\x1b", 1, 1, math.inf),)}, r"size.*node 1\b.*'\\x1b'.*inf"),
        ({"nodes": (WorkloadNode(1, "a", 1, 1, 1, math.inf),)}, "transfer.*node 1"),
        ({"nodes": (WorkloadNode(1, "a", 1e31, 1),)}, r"1e\+31.*1e\+30"),
        ({"accelerators": 10**9}, "1,000,000,000.*100,000"),
        ({"edges": ((1, 2), (2, 3), (3, 2))}, "2 -> 3 -> 2"),
        ({"edges": ((1, 4),)}, "node 4"),
    ],
)
def test_a_broken_law_is_named_with_the_node(changes, message):
    with pytest.raises(InputError, match=rf"'drawn'.*{message}"):
        verify_workload(replace(GOOD, **changes))


def test_a_long_cycle_is_shortened():
    ring = drawn("\n".join(f"{i} 1/1 -> {i % 40 + 1}" for i in range(1, 41)))
    with pytest.raises(InputError) as caught:
        verify_workload(ring)
    assert "..." in str(caught.value)
    assert len(str(caught.value)) < 200
