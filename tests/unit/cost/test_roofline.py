"""What a part of a batch takes by a data sheet: launches and weights are all there, the rest is in proportion."""

from dataclasses import replace

import pytest
from sketch import sketch

from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import LayerCost, layer_costs
from heterps_compile.cost.roofline import layer_phases
from heterps_compile.passes.group_layers import group_nodes

CORE = replace(
    load_cluster("local").device_types[0],
    peak_flops={"float32": 1e9},
    memory_bytes_per_s=1e8,
    launch_s=20e-6,
    efficiency=1.0,
)
COST = LayerCost(
    flops=8_000_000, parameter_bytes=400_000, touched_bytes=400_000, input_bytes=300_000, output_bytes=100_000,
    moved_bytes=800_000, operations=3, fixed_bytes=400_000,
)  # fmt: skip


def forward_s(cost: LayerCost, part: float) -> float:
    return layer_phases(cost, CORE, "float32", part, training=False).forward_s


@pytest.mark.parametrize(
    ("part", "time_s"),
    [
        (1.0, 60e-6 + 8e-3),  # arithmetic: 8 ms, memory: 4 + 4 ms
        (0.5, 60e-6 + 4e-3 + 2e-3),  # memory now: the weights again, half of the rest
        (0.125, 60e-6 + 4e-3 + 0.5e-3),
    ],
)
def test_a_part_reads_all_weights_and_starts_all_operations(part, time_s):
    assert forward_s(COST, part) == pytest.approx(time_s)


def test_backward_is_twice_that():
    phases = layer_phases(COST, CORE, "float32", 0.125, training=True)
    assert phases.backward_s == phases.accumulate_s == pytest.approx(2 * phases.forward_s)


def test_a_layer_without_weights_that_memory_binds_is_a_line():
    plain = replace(COST, flops=0, fixed_bytes=0)
    assert forward_s(plain, 0.25) == pytest.approx(60e-6 + 2e-3)


def test_parts_of_a_batch_are_between_the_proportion_and_the_whole():
    whole_s = forward_s(COST, 1.0)
    times_s = [forward_s(COST, 1 / count) for count in range(1, 65)]
    assert times_s == sorted(times_s, reverse=True)
    assert all(whole_s / count <= time_s <= whole_s for count, time_s in enumerate(times_s, 1))


def test_weights_are_fixed_and_gathered_rows_are_not():
    graph = sketch("""
        in ids 4x2
        par table 1000x16
        par w 32x8
        embedding rows : ids table -> h 4x32
        gemm product : h w -> y 4x8 flops=2048
        out y
    """)
    rows, product = layer_costs(group_nodes(graph))
    assert (rows.fixed_bytes, rows.touched_bytes) == (0, 4 * 32 * 4)
    assert product.fixed_bytes == product.parameter_bytes == 32 * 8 * 4
