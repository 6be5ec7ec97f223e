"""Down-sets: the table of what each of them holds."""

from small_workloads import drawn

from heterps_compile.passes.max_load.blocks import Flow, contract
from heterps_compile.passes.max_load.down_sets import tabulate
from heterps_compile.passes.partial_orders import enumerate_down_sets

DIAMOND = contract(drawn("1 1/2 out=4 -> 2 3\n2 3/4 size=7 out=1 -> 4\n3 2/2 out=1 -> 4\n4 1/-", cpus=1), Flow.AGAINST)


def test_the_table_is_sorted_by_time_and_holds_sums_and_cuts():
    table = tabulate(DIAMOND, enumerate_down_sets(DIAMOND, 100))
    # {}  {1}  {1 3}  {1 2}  {1 2 3}  {1 2 3 4}
    assert table.sets.weight.tolist() == [0, 1, 3, 4, 6, 7]
    assert table.cpu_ms.tolist() == [0, 2, 4, 6, 8, 8]
    assert table.size_bytes.tolist() == [0, 0, 0, 7, 7, 7]
    assert table.no_cpu.tolist() == [0, 0, 0, 0, 0, 1]
    assert table.cut_ms.tolist() == [0, 4, 4 + 1, 4 + 1, 1 + 1, 0]
    assert [blocks.tolist() for blocks in table.sets.edges] == [[], [0], [2], [1], [1, 2], [3]]
    assert [len(nets) for nets in table.open_nets] == [0, 1, 2, 2, 2, 0]
