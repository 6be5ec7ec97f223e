"""Which tables lie on servers: held against every set of them."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from sketch import sketch

from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.served_tables import Table, fewest_servers, tables_of
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.drafts import Annotated, Draft, Placed, Posed, Provisioned
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.proof.prove import prove
from heterps_compile.passes.pose_problem import pose
from heterps_compile.passes.served_sets import relaxed_problem, sets_by_size
from heterps_compile.plan.request import Request

PAPER = load_cluster("heterps-paper")
SERVER = ParameterServer(0.04, "the paper's pool", "2021-11", 2.5e9 / 8)
TRAINING = Request(mode="training", method="exact", tables="cheapest", reading="steady-state")


def tables(*rows: int) -> Graph:
    """Draw a model that looks 256 ids up in each of some tables, 64 numbers wide, and multiplies what it finds."""
    lines = [f"in ids{i} 256\npar table{i} {n}x64\nembedding e{i} : ids{i} table{i} -> r{i} 256x64" for i, n in
             enumerate(rows)]  # fmt: skip
    joined = " ".join(f"r{i}" for i in range(len(rows)))
    lines.append(f"move join : {joined} -> x 256x{64 * len(rows)}\npar w {64 * len(rows)}x32")
    lines.append("gemm fc : x w -> y 256x32 flops=100000000\nout y")
    return sketch("\n".join(lines), batch=256)


def with_memory(gigabytes: float) -> Cluster:
    """Return the paper's pool with another memory of CPU cores and V100s."""
    return replace(PAPER, device_types=tuple(replace(d, memory_bytes=gigabytes * 1e9) for d in PAPER.device_types))


def reached(graph: Graph, pool: Cluster, request: Request = TRAINING, step: type = Placed) -> Placed:
    found = run_to(Draft(graph=graph, cluster=pool, request=request), step)
    assert isinstance(found, Placed)
    return found


def served(draft: Posed) -> list[str]:
    return [name for cost in draft.costs for name in cost.served]


def test_tables_are_matrices_of_float32_that_are_looked_up_and_not_read_otherwise():
    graph = sketch("""
        in ids 8
        in more 8
        par alone 100x4
        par shared 100x4
        par both 4x100
        embedding a : ids alone -> x 8x4
        embedding b : ids shared -> y 8x4
        embedding c : more shared -> z 8x4
        embedding d : ids both -> v 8x100
        gemm fc : x both -> w 8x100
        elementwise sum : y z w v -> out 8x100
        out out
    """)
    draft = run_to(Draft(graph=graph, cluster=PAPER, request=TRAINING), Annotated)
    found = {table.name: table for table in tables_of(draft.layers, draft.costs)}
    assert found == {"alone": Table("alone", 1600, {"a": 128}), "shared": Table("shared", 1600, {"b": 128, "c": 128})}


def test_a_table_that_no_unit_holds_lies_on_as_many_servers_as_hold_it():
    draft = reached(tables(10**10), PAPER, step=Provisioned)
    assert isinstance(draft, Provisioned)
    assert draft.tables is not None
    size_bytes = 3 * 64 * 4 * 10**10  # with both states of adam
    assert draft.tables.names == ("table0",)
    assert draft.tables.size_bytes == size_bytes
    assert draft.tables.servers == fewest_servers(size_bytes, SERVER) == 1073
    assert draft.tables.moved_bytes == 2 * 256 * 64 * 4
    assert draft.parameter_servers.count == 1073
    assert draft.tables.price_per_hour == pytest.approx(1073 * 0.04)
    assert draft.search.bound == pytest.approx(draft.search.value)  # proven, with the servers
    held = max(stage.memory.total_bytes for stage in draft.stages if stage.memory is not None)
    assert held < 1e8  # no stage holds the table


@pytest.mark.parametrize(("rows", "gigabytes"), [((10**6, 10**7), 2.0), ((10**5, 10**6, 4 * 10**6), 4.0)])
def test_the_plan_is_the_best_of_all_sets_by_size_and_the_bound_holds(rows, gigabytes):
    graph, pool = tables(*rows), with_memory(gigabytes)
    found = reached(graph, pool)
    base = run_to(Draft(graph=graph, cluster=pool, request=TRAINING), Posed)
    every = tables_of(base.layers, base.costs)
    must = served(base)
    values = {}
    for count in range(len(every) + 1):
        for chosen in combinations(every, count):
            value = prove(pose(base, chosen).problem, NO_DEADLINE).best
            values[tuple(sorted([*must, *(table.name for table in chosen)]))] = value
    assert found.search.value == pytest.approx(values[tuple(sorted(served(found)))], rel=1e-7)
    by_size = [(), *sets_by_size(base.open_tables)]
    names = [tuple(sorted([*must, *(table.name for table in chosen)])) for chosen in by_size]
    assert found.search.value <= min(values[each] for each in names) * (1 + 1e-7)
    assert found.search.bound_of_all_orders <= min(values[each] for each in names) * (1 + 1e-7)
    if base.open_tables:
        relaxed = prove(relaxed_problem(base.problem, pose(base, base.open_tables).problem), NO_DEADLINE).bound
        without = tuple(sorted(must))
        assert relaxed <= min(value for each, value in values.items() if each != without) * (1 + 1e-7)


def test_a_table_that_two_layers_look_up_lies_on_servers_once_and_is_held_by_no_stage():
    graph = sketch("""
        in ids 256
        in more 256
        par words 20000000000x64
        embedding a : ids words -> x 256x64
        embedding b : more words -> y 256x64
        elementwise sum : x y -> out 256x64
        out out
    """, batch=256)  # fmt: skip
    draft = reached(graph, PAPER, step=Provisioned)
    assert isinstance(draft, Provisioned)
    assert draft.tables is not None
    assert draft.tables.names == ("words",)
    assert draft.tables.layers == ("a", "b")
    assert draft.tables.size_bytes == 3 * 64 * 4 * 20 * 10**9
    assert draft.tables.moved_bytes == 2 * 2 * 256 * 64 * 4
    assert draft.problem.weight_bytes.min() > 0 == draft.problem.tied_bytes.sum()
    held = np.array([stage.memory.total_bytes for stage in draft.stages if stage.memory is not None])
    assert (held > 0).all()


def test_sets_by_size_are_all_tables_and_then_the_largest():
    small, middle, large = (Table(name, size, {name: 1}) for name, size in (("s", 1), ("m", 2), ("l", 3)))
    assert sets_by_size([small, large, middle]) == [[small, large, middle], [large], [large, middle]]


def test_tables_that_fit_stay_in_their_stages_where_that_is_cheaper_and_the_proof_is_of_all_sets():
    found = reached(tables(10, 20), PAPER)
    assert served(found) == []
    assert found.search.bound == pytest.approx(found.search.value)
    assert not found.search.notes


def test_by_default_only_what_no_unit_holds_is_served_and_servers_are_in_the_other_price_too():
    draft = reached(tables(10**10, 1000), PAPER, replace(TRAINING, tables="auto", min_throughput=1000.0))
    assert served(draft) == ["table0"]
    assert not draft.open_tables
    assert draft.other is not None
    assert draft.other.servers_price_per_hour == pytest.approx(1073 * 0.04)
    assert draft.other.price_per_hour > draft.other.servers_price_per_hour


def test_what_is_asked_for_decides():
    assert served(reached(tables(1000, 2000), PAPER, replace(TRAINING, tables="served"))) == ["table0", "table1"]
    with pytest.raises(InputError, match="'sketch'"):
        reached(sketch("in x 4x8\npar w 8x8\ngemm fc : x w -> y 4x8\nout y"), PAPER, Request(tables="served"))


@pytest.mark.parametrize(
    ("pool", "request_", "way_out"),
    [
        (replace(PAPER, parameter_server=None), TRAINING, r"\[parameter_server\].*'heterps-paper'"),
        (PAPER, replace(TRAINING, tables="held"), "--tables held"),
        (PAPER, replace(TRAINING, synchronisation="parameter-server"), "--sync parameter-server"),
        (PAPER, replace(TRAINING, provisioner="newton", min_throughput=1.0), "--provisioner"),
    ],
)
def test_a_table_that_no_unit_holds_and_no_server_may_is_refused_by_name(pool, request_, way_out):
    with pytest.raises(InfeasibleError, match=rf"'table0'.*2.33 TiB.*{way_out}"):
        reached(tables(10**10), pool, request_)


def test_inference_serves_what_it_must_and_only_pulls():
    draft = reached(tables(1000, 10**10), PAPER, Request(method="exact"), step=Provisioned)
    assert isinstance(draft, Provisioned)
    assert draft.tables is not None
    assert draft.tables.names == ("table1",)
    assert draft.tables.moved_bytes == 256 * 64 * 4
    assert draft.tables.size_bytes == 64 * 4 * 10**10  # no states
    assert not draft.open_tables


def test_a_layer_with_served_tables_holds_and_moves_the_rows_of_a_batch():
    base = run_to(Draft(graph=tables(10**5, 10**5), cluster=PAPER, request=TRAINING), Posed)
    every = tables_of(base.layers, base.costs)
    problem = pose(base, every[:1]).problem
    assert problem.served_s is not None
    assert problem.shared_s is not None
    rows_bytes, layer = 256 * 64 * 4, problem.layer_names.index("e0")
    other = problem.layer_names.index("e1")
    assert problem.served_s[layer] == pytest.approx(2 * rows_bytes / SERVER.bytes_per_s)
    assert problem.served_s[other] == 0
    assert problem.weight_bytes[layer] == pytest.approx(1.2 * 2 * rows_bytes)
    assert problem.sync_s[layer].max() == 0 < base.problem.sync_s[layer].max()
    added_s = problem.data_s[layer] - base.problem.data_s[layer]
    own = np.array([device.network_bytes_per_s for device in PAPER.device_types])
    assert added_s == pytest.approx(2 * rows_bytes / own + 2 * 108e-6)
    assert problem.shared_s[layer] == pytest.approx(2 * 108e-6)
