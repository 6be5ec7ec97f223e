"""Down-sets: how many, which, and the table of what each of them holds."""

import numpy as np
import pytest
from small_workloads import drawn

from heterps_compile.passes.max_load.blocks import Flow, contract
from heterps_compile.passes.max_load.down_sets import enumerate_down_sets, sample_down_sets, tabulate

DIAMOND = contract(drawn("1 1/2 out=4 -> 2 3\n2 3/4 size=7 out=1 -> 4\n3 2/2 out=1 -> 4\n4 1/-", cpus=1), Flow.AGAINST)


def test_a_diamond_has_six_down_sets():
    assert enumerate_down_sets(DIAMOND, 100) == {0b0000, 0b0001, 0b0011, 0b0101, 0b0111, 0b1111}


def test_a_chain_has_one_more_than_blocks_and_loose_blocks_two_to_their_number():
    chain = contract(drawn("1 1/1 -> 2\n2 1/1 -> 3\n3 1/1"), Flow.AGAINST)
    free = contract(drawn("1 1/1\n2 1/1\n3 1/1"), Flow.AGAINST)
    assert len(enumerate_down_sets(chain, 100)) == 4
    assert len(enumerate_down_sets(free, 100)) == 8


@pytest.mark.parametrize(("limit", "is_within"), [(6, True), (5, False)])
def test_enumeration_stops_at_its_limit(limit, is_within):
    assert (enumerate_down_sets(DIAMOND, limit) is not None) is is_within


def test_a_sample_holds_chains_of_down_sets_and_what_it_passes_through():
    everything = enumerate_down_sets(DIAMOND, 100)
    sample = sample_down_sets(DIAMOND, 1, np.random.default_rng(0), through=(0b0101,))
    assert sample <= everything
    assert {0b0000, 0b0101, 0b1111} <= sample
    assert len(sample_down_sets(DIAMOND, 1, np.random.default_rng(0))) == 5


def test_the_table_is_sorted_by_time_and_holds_sums_and_cuts():
    table = tabulate(DIAMOND, enumerate_down_sets(DIAMOND, 100))
    # {}  {1}  {1 3}  {1 2}  {1 2 3}  {1 2 3 4}
    assert table.accelerator_ms.tolist() == [0, 1, 3, 4, 6, 7]
    assert table.cpu_ms.tolist() == [0, 2, 4, 6, 8, 8]
    assert table.size_bytes.tolist() == [0, 0, 0, 7, 7, 7]
    assert table.no_cpu.tolist() == [0, 0, 0, 0, 0, 1]
    assert table.cut_ms.tolist() == [0, 4, 4 + 1, 4 + 1, 1 + 1, 0]
    assert [blocks.tolist() for blocks in table.edge_blocks] == [[], [0], [2], [1], [1, 2], [3]]
    assert [len(nets) for nets in table.open_nets] == [0, 1, 2, 2, 2, 0]
