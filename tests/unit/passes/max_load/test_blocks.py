"""What a workload is contracted to, and which workloads cannot be."""

import pytest
from small_workloads import drawn

from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.max_load.blocks import Blocks, Flow, Loose, contract


def ids(workload: Workload, blocks: Blocks) -> list[list[int]]:
    return [[workload.nodes[i].id for i in members] for members in blocks.members]


def test_a_colour_is_one_block_with_the_sum_of_its_costs():
    workload = drawn(
        """
        1 5/50 colour=1 size=2 out=3 -> 2
        2 3/30 out=1 -> 3
        3 1/10 colour=2
        4 1/20 colour=2 size=1
        """,
        cpus=1,
    )
    blocks = contract(workload, Flow.AGAINST)
    assert ids(workload, blocks) == [[1], [2], [3, 4]]
    assert blocks.accelerator_ms.tolist() == [5, 3, 2]
    assert blocks.cpu_ms.tolist() == [50, 30, 30]
    assert blocks.size_bytes.tolist() == [2, 0, 1]
    assert (blocks.before, blocks.after) == (((), (0,), (1,)), ((1,), (2,), ()))
    assert dict(zip(blocks.nets, blocks.net_ms.tolist(), strict=True)) == {(0, 1): 3, (1, 2): 1}


def test_blocks_that_precede_each_other_both_ways_are_one():
    workload = drawn("1 1/1 colour=1 -> 2\n2 1/1 -> 3\n3 1/1 colour=1 -> 4\n4 1/1")
    assert ids(workload, contract(workload, Flow.AGAINST)) == [[1, 2, 3], [4]]


def test_nets_over_the_same_blocks_add_up():
    workload = drawn("1 1/1 colour=1 out=2 -> 2\n2 1/1 colour=2\n3 1/1 back colour=2 out=5 -> 4\n4 1/1 back colour=1")
    blocks = contract(workload, Flow.AGAINST)
    assert (blocks.nets, blocks.net_ms.tolist()) == (((0, 1),), [7])


def test_a_backward_node_without_a_partner_goes_between_its_backward_neighbours():
    workload = drawn(
        """
        1 1/1 colour=1 -> 2
        2 1/1 colour=2 -> 3
        3 1/1 back colour=2 -> 4
        4 9/9 back -> 5
        5 1/1 back colour=1
        """
    )
    blocks = contract(workload, Flow.AGAINST)
    assert ids(workload, blocks) == [[1, 5], [4], [2, 3]]
    assert ids(workload, contract(workload, Flow.ALONG)) == [[1, 2, 3, 4, 5]]


LEAF = "1 0/0 size=8 out=2 -> 2\n2 5/5 size=95 -> 3\n3 1/1"


def test_a_loose_block_joins_its_neighbour_where_memory_is_plenty():
    workload = drawn(LEAF, memory=200)
    blocks = contract(workload, Flow.AGAINST)
    assert ids(workload, blocks) == [[1, 2], [3]]
    assert blocks.nets == ()


@pytest.mark.parametrize(
    ("loose", "memory", "blocks", "sizes"),
    [
        (Loose.STAY, 100, [[1], [2], [3]], [8, 95, 0]),
        (Loose.JOIN, 100, [[1], [2], [3]], [8, 95, 0]),
        (Loose.FLOAT, 100, [[1, 2], [3]], [95, 0]),
    ],
)
def test_memory_may_keep_a_loose_block_apart(loose, memory, blocks, sizes):
    workload = drawn(LEAF, memory=memory)
    found = contract(workload, Flow.AGAINST, loose)
    assert (ids(workload, found), found.size_bytes.tolist()) == (blocks, sizes)


def test_a_block_with_two_neighbours_is_not_loose():
    workload = drawn("1 5/5 -> 2\n2 0/0 -> 3\n3 5/5")
    assert contract(workload, Flow.AGAINST).count == 3


@pytest.mark.parametrize(
    ("text", "pool", "message"),
    [
        (
            "1 -/9 colour=7\n2 9/- colour=7",
            {"cpus": 1},
            r"\b2\b.*colour.*\b7\b.*\b1\b.*\b2\b.*\b1\b.*\b2\b.*CPU",
        ),
        (
            "1 1/9 colour=7 size=60\n2 1/9 colour=7 size=60",
            {},
            r"colour.*\b7\b.*120.*100.*CPU",
        ),
        ("1 -/9", {}, r"device.*\b1\b.*\b1\b.*accelerator.*CPU"),
        ("1 9/-", {"accelerators": 0, "cpus": 1}, r"accelerator.*\b1\b.*CPU"),
        (
            "1 1/- colour=1 size=60 -> 2\n2 1/- size=60 -> 3\n3 1/- colour=1",
            {},
            r"\b3\b.*\b1\b.*\b2\b.*\b3\b.*colour.*120",
        ),
    ],
)
def test_what_must_share_a_device_but_cannot_is_named_with_every_reason(text, pool, message):
    with pytest.raises(InfeasibleError, match=message):
        contract(drawn(text, **pool), Flow.AGAINST)
