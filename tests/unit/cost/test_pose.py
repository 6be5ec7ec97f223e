"""Layers, costs and a pool become the arrays a search sees; every number can be checked by hand."""

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from sketch import sketch

from heterps_compile.cluster.devices import Cluster, DeviceType, Link
from heterps_compile.cost.gradients import ring_bytes
from heterps_compile.cost.layer_cost import LayerCost, LookedUp, layer_costs
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.memory import OPTIMIZERS, SAFETY_FACTOR, USUAL_OPTIMIZER, stage_memory
from heterps_compile.cost.pose import network_of, pose_problem
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.annotate_intensity import annotate
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.request import Request

DEVICE = DeviceType(
    name="unit",
    kind="cpu",
    price_per_hour=1.0,
    price_source="test",
    max_units=10,
    memory_bytes=1e9,
    peak_flops=MappingProxyType({"float32": 1000.0}),
    memory_bytes_per_s=100.0,
    network_bytes_per_s=10.0,
    network_latency_s=0.5,
    input_bytes_per_s=20.0,
    launch_s=0.25,
    efficiency=0.5,
    compute_parallel=0.9,
    data_parallel=0.8,
)
POOL = Cluster("test", "", "USD", (DEVICE,))


def layers() -> LayerGraph:
    return group_nodes(
        sketch("""
            in ids 4x1
            par table 100x8
            par w 8x2
            par again 8x2 tied=w
            embedding emb : ids table -> e 4x8
            gemm fc : e w -> h 4x2 flops=128
            elementwise act : h -> a 4x2 flops=8
            gemm head : a again -> y 4x2 flops=64
            out y
        """)
    )


def posed(pool: Cluster = POOL, *, training: bool = False, **asked: Any) -> Problem:
    return of_layers(layers(), pool, training=training, **asked)


def of_layers(grouped: LayerGraph, pool: Cluster = POOL, *, training: bool = False, **asked: Any) -> Problem:
    costs = layer_costs(grouped)
    return pose_problem(grouped, costs, layer_times(grouped, costs, pool, training=training), Request(**asked))


def test_an_embedding_touches_its_rows_and_not_its_table() -> None:
    cost = layer_costs(layers())[0]
    rows = 4 * 8 * 4
    assert (cost.parameter_bytes, cost.touched_bytes) == (100 * 8 * 4, rows)
    assert cost.moved_bytes == 4 * 4 + rows + rows  # ids in, rows read, rows out


def test_what_fuses_is_free() -> None:
    cost = layer_costs(layers())[1]
    assert cost.flops == 128 + 8
    assert cost.moved_bytes == 4 * 8 * 4 + 8 * 2 * 4 + 4 * 2 * 4 + 2 * (4 * 2 * 4)
    assert cost.operations == 2


def test_time_is_the_roofline_plus_the_launches() -> None:
    fc = layer_costs(layers())[1]
    expected = max(136 / 500, fc.moved_bytes / 50) + 2 * 0.25
    assert posed().compute_s[1, 0] == pytest.approx(expected)
    assert posed(training=True).compute_s[1, 0] == pytest.approx(3 * expected)


def test_a_cut_moves_the_value_that_crosses_twice_in_training() -> None:
    assert posed().edge_bytes.tolist() == [4 * 8 * 4, 4 * 2 * 4]
    assert posed(training=True).edge_bytes.tolist() == [2 * 4 * 8 * 4, 2 * 4 * 2 * 4]
    assert posed().edge_producer.tolist() == [0, 1]
    assert posed().edge_readers.tolist() == [1, 2]


def test_graph_inputs_are_read_at_the_input_bandwidth() -> None:
    assert posed().data_s[:, 0].tolist() == [4 * 4 / 20.0, 0.0, 0.0]


def test_gradients_are_synchronised_in_training_only_whole_or_as_half_the_rows_that_are_gathered() -> None:
    assert not posed().sync_s.any()
    of_head = 2 * 8 * 2 * 4 / 10
    assert posed(training=True).sync_s[:, 0].tolist() == pytest.approx([2 * 100 * 8 * 4 / 10, of_head, of_head])
    whole = layers()
    nodes = tuple(replace(node, sparse=node.kind == "embedding") for node in whole.graph.nodes)
    sparse = replace(whole, graph=replace(whole.graph, nodes=nodes))
    looked_up = layer_costs(sparse)[0].looked_up
    assert [each.name for each in looked_up] == ["table"]
    rows = LayerCost(*([0] * 7), looked_up=(LookedUp("table", 4),))
    assert ring_bytes(sparse, 0, rows) == 4 / 2 * (8 * 4 + 8)


def test_tied_weights_are_held_once_where_both_readers_are_in_one_stage() -> None:
    problem = posed()
    assert (problem.tied_first.tolist(), problem.tied_second.tolist()) == ([1], [2])
    assert problem.tied_bytes.tolist() == [SAFETY_FACTOR * 8 * 2 * 4]
    costs = layer_costs(layers())
    assert stage_memory(layers(), costs, 1, 3, optimizer=None).weights_bytes == 8 * 2 * 4
    assert stage_memory(layers(), costs, 1, 3, optimizer="adam").optimizer_bytes == 2 * 8 * 2 * 4


def test_the_stage_memory_of_the_search_is_that_of_the_plan() -> None:
    costs = layer_costs(layers())
    for optimizer in (None, *OPTIMIZERS):
        problem = posed(training=optimizer is not None, optimizer=optimizer or USUAL_OPTIMIZER)
        for first, end in ((0, 1), (1, 2), (2, 3)):
            parts = stage_memory(layers(), costs, first, end, optimizer=optimizer)
            searched = problem.weight_bytes[first] + problem.activation_bytes[first]
            assert parts.total_bytes == np.ceil(searched)


def test_a_pin_by_kind_or_name_leaves_one_type() -> None:
    two = Cluster("two", "", "USD", (DEVICE, DeviceType(**{**_fields(DEVICE), "name": "other"})))
    problem = posed(
        two,
        pins=(
            ("embedding", "other"),
            ("h*", "unit"),
        ),
    )
    assert problem.allowed.tolist() == [[False, True], [True, True], [True, False]]
    with pytest.raises(UnknownNameError, match=r"'othr'.*'other'"):
        posed(two, pins=(("embedding", "othr"),))
    with pytest.raises(UnknownNameError, match=r"'embeding'.*'embedding'"):
        posed(two, pins=(("embeding", "other"),))


def test_a_forbidden_pair_leaves_the_other_types() -> None:
    other = DeviceType(**{**_fields(DEVICE), "name": "other"})  # type: ignore[arg-type] # as above
    pool = Cluster("two", "", "USD", (DEVICE, other))
    problem = posed(
        pool,
        forbidden=(
            ("gemm", "unit"),
            ("emb", "other"),
        ),
    )
    assert problem.allowed.tolist() == [[True, False], [False, True], [False, True]]
    with pytest.raises(UnknownNameError, match=r"'embeding'.*'embedding'"):
        posed(pool, forbidden=(("embeding", "other"),))


def test_a_type_runs_the_kinds_of_layers_it_supports() -> None:
    npu = DeviceType(**{**_fields(DEVICE), "name": "npu", "supports": ("gemm",)})  # type: ignore[arg-type] # as above
    pool = Cluster("two", "", "USD", (DEVICE, npu))
    assert posed(pool).allowed.tolist() == [[True, False], [True, True], [True, True]]
    with pytest.raises(InputError, match=r"'npu'.*gemm"):
        posed(pool, pins=(("embedding", "npu"),))


def test_links_replace_what_two_types_pay_to_talk() -> None:
    other = DeviceType(**{**_fields(DEVICE), "name": "other"})  # type: ignore[arg-type] # as above
    pool = Cluster("two", "", "USD", (DEVICE, other), links=(Link(("unit", "other"), 40.0, 0.25),))
    problem = posed(pool)
    assert problem.link_seconds_per_byte is not None
    assert problem.link_latency_s is not None
    assert problem.link_seconds_per_byte.tolist() == [[0.1, 0.025], [0.025, 0.1]]
    assert problem.link_latency_s.tolist() == [[0.5, 0.25], [0.25, 0.5]]
    # whoever is at the other end, no transfer takes less
    assert problem.seconds_per_byte.tolist() == [0.025, 0.025]
    assert problem.latency_s.tolist() == [0.25, 0.25]
    assert problem.seconds_per_byte.tolist() == [0.025, 0.025]
    assert posed().link_seconds_per_byte is None


def test_replicas_synchronise_over_the_link_of_their_own_type() -> None:
    pool = Cluster("one", "", "USD", (DEVICE,), links=(Link(("unit", "unit"), 1000.0, 0.0),))
    linked = posed(pool, training=True)
    assert linked.sync_s.ravel().tolist() == pytest.approx((posed(training=True).sync_s / 100).ravel().tolist())


def test_replicas_that_share_a_machine_synchronise_inside_and_machines_through_their_cards() -> None:
    changes = {"units_per_machine": 4, "inner_bytes_per_s": 40.0, "inner_latency_s": 0.125}
    pool = Cluster("one", "", "USD", (DeviceType(**{**_fields(DEVICE), **changes}),))  # type: ignore[arg-type] # as above
    problem, network = posed(pool, training=True), network_of(pool, "unit")
    assert problem.machines is not None
    for count in (1, 3, 4, 5, 8, 9):
        bytes_s = float(problem.machines.share(np.array([float(count)]))[0] * problem.sync_s.sum())
        gradients = problem.sync_s.sum() / 2 * 10.0  # 2 S / 10 B/s
        assert bytes_s + network.hops_s(count) == pytest.approx(network.all_reduce_s(gradients, count))
    assert network.hops_s(9) == 2 * 3 * 0.125 + 2 * 2 * 0.5
    assert posed(pool).machines is None  # in inference nothing synchronises


def test_stages_of_a_type_that_has_one_machine_talk_inside_of_it() -> None:
    inside = {"units_per_machine": 4, "inner_bytes_per_s": 40.0, "inner_latency_s": 0.125, "name": "inside"}
    one = DeviceType(**{**_fields(DEVICE), **inside, "max_units": 4})  # type: ignore[arg-type] # as above
    two = DeviceType(**{**_fields(DEVICE), **inside, "name": "two", "max_units": 5})  # type: ignore[arg-type] # as above
    pool = Cluster("three", "", "USD", (one, two, DEVICE))
    problem = posed(pool, training=True)
    assert problem.link_seconds_per_byte is not None
    assert problem.link_latency_s is not None
    assert problem.link_seconds_per_byte.tolist() == [[1 / 40, 0.1, 0.1], [0.1] * 3, [0.1] * 3]
    assert problem.link_latency_s.tolist() == [[0.125, 0.5, 0.5], [0.5] * 3, [0.5] * 3]
    assert problem.seconds_per_byte.tolist() == [1 / 40, 0.1, 0.1]
    assert problem.sync_s[:, 0].tolist() == problem.sync_s[:, 2].tolist()  # machines sum through the card
    assert posed(Cluster("two", "", "USD", (two, DEVICE))).link_seconds_per_byte is None


def test_units_of_whole_machines_are_rented_together() -> None:
    machine = {"units_per_machine": 4, "inner_bytes_per_s": 40.0, "inner_latency_s": 0.125}
    whole = DeviceType(**{**_fields(DEVICE), **machine, "whole_machines": True, "name": "whole"})  # type: ignore[arg-type]
    apart = DeviceType(**{**_fields(DEVICE), **machine})  # type: ignore[arg-type] # as above
    problem = posed(Cluster("two", "", "USD", (apart, whole)))
    assert problem.rented_together is not None
    assert problem.rented_together.tolist() == [1, 4]
    assert posed(Cluster("one", "", "USD", (apart,))).rented_together is None


def test_shared_storage_is_read_for_inputs_and_the_rows_of_embeddings() -> None:
    slow = DeviceType(**{**_fields(DEVICE), "shared_input_bytes_per_s": 4.0})  # type: ignore[arg-type] # as above
    problem = posed(Cluster("one", "", "USD", (slow,)))
    assert problem.shared_s is not None
    assert problem.shared_s[:, 0].tolist() == [(4 * 4 + 4 * 8 * 4) / 4, 0.0, 0.0]


def test_what_is_no_tensor_forbids_a_cut() -> None:
    graph = sketch("""
        in x 4x8
        par w 8x8
        recurrent lstm : x w -> t opaque
        gemm fc : x w -> h 4x8
        recurrent second : t h -> y 4x8
        out y
    """)
    problem = of_layers(group_nodes(graph))
    assert problem.uncuttable.tolist() == [False, True, True, False]


def test_intensity_is_labelled_against_the_ridge() -> None:
    costs = layer_costs(layers())
    ridge = 1000.0 / 100.0
    low = annotate(costs[0], "float32", POOL)
    assert low.label == "data"
    assert f"< {ridge:.3g} (ridge of unit)" in low.reason


def _fields(device: DeviceType) -> dict[str, object]:
    return {name: getattr(device, name) for name in DeviceType.__dataclass_fields__}
