"""Replicas, and the parameter servers behind them."""

import math
from dataclasses import replace

import pytest
from drafts import DRAFT

from heterps_compile.api import compile as compile_model
from heterps_compile.bench.compare_methods import compare_methods
from heterps_compile.cluster.devices import ParameterServer
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.evaluate import Fault, PlacementDetail, StageDetail
from heterps_compile.cost.server_cost import server_cost
from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.examples import EXAMPLES
from heterps_compile.plan.plan import Plan
from heterps_compile.review.moves import fault_of

FLOOR = 2_000_000.0


def plan(**options: object) -> Plan:
    model, inputs = EXAMPLES["ctrdnn"](batch=4096)
    options = {"mode": "training", "min_throughput": FLOOR, "min_stages": 2, "method": "exact", **options}
    if options["mode"] == "training":
        options.setdefault("reading", "steady-state")  # which servers and rules are known in
    return compile_model(model, inputs, verify=False, **options).plan


def test_parameter_servers_carry_twice_the_parameters_of_every_replica_in_the_time_of_a_batch() -> None:
    pool = load_cluster("heterps-paper")
    assert pool.parameter_server is not None
    planned = plan(synchronisation="parameter-server")
    [stage] = [stage for stage in planned.stages if stage.replicas > 1]
    assert stage.memory is not None
    batch_s = planned.batch / planned.throughput_samples_per_s
    moved = 2 * stage.replicas * stage.memory.gradients_bytes
    needed = math.ceil(moved / (pool.parameter_server.bytes_per_s * batch_s))
    assert planned.parameter_servers.count == needed > 0
    assert planned.parameter_servers.price_per_hour == pytest.approx(0.04 * needed)
    units = sum(stage.price_per_hour for stage in planned.stages)
    assert planned.price_per_hour == pytest.approx(units + 0.04 * needed)
    assert planned.value == pytest.approx(planned.price_per_hour / 3600 / planned.throughput_samples_per_s * 1e6)
    assert planned.bound < planned.value
    assert any("parameter servers" in note for note in planned.notes)


def test_two_replicas_need_servers_and_one_needs_none() -> None:
    cost = server_cost(DRAFT.layers, DRAFT.costs, ParameterServer(0.5, "the vendor", "2026-01-01", 1.0))
    whole = StageDetail(0, len(DRAFT.layers.layers), 0, 1, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0)
    assert cost.cores([whole]) == 0
    two = replace(whole, replicas=2)
    assert cost.cores([two]) == 2 * 2 * sum(cost.gradient_bytes) > 0  # both push and pull; a byte a second


def test_servers_count_for_price_value_and_budget() -> None:
    cost = server_cost(DRAFT.layers, DRAFT.costs, ParameterServer(0.5, "the vendor", "2026-01-01", 1.0))
    whole = StageDetail(0, len(DRAFT.layers.layers), 0, 1, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 2.0)
    found = PlacementDetail((whole,), 2.0 / 3600 / 100 * 1e6, 100.0, 2.0, Fault(0))
    with_ten = cost.added_to(replace(DRAFT.problem, budget_per_hour=math.inf), found, 10)
    assert with_ten.price_per_hour == found.price_per_hour + 5.0
    assert with_ten.value == pytest.approx(found.value * 3.5)
    tight = replace(DRAFT.problem, budget_per_hour=found.price_per_hour + 4.0)
    assert cost.added_to(tight, found, 10).faults == Fault.BUDGET
    assert f"{found.price_per_hour + 5:.2f} " in fault_of(tight, cost.added_to(tight, found, 10))


def test_without_servers_there_are_none_to_pay() -> None:
    assert plan().parameter_servers.count == 0


def test_a_pool_without_parameter_servers_says_so() -> None:
    pool = replace(load_cluster("heterps-paper"), parameter_server=None)
    with pytest.raises(InputError, match=r"\[parameter_server\]"):
        plan(cluster=pool, synchronisation="parameter-server")


@pytest.mark.parametrize("rule", ["closed-form", "newton"])
def test_the_rules_of_the_paper_meet_the_floor_at_no_lower_cost(rule: str) -> None:
    exact, ruled = plan(), plan(provisioner=rule)
    assert ruled.throughput_samples_per_s >= FLOOR * (1 - 1e-9)
    assert ruled.value >= exact.value * (1 - 1e-9)
    assert ruled.bound == exact.bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"provisioner": "newton", "min_throughput": None}, "floor"),
        ({"provisioner": "newton", "objective": "throughput"}, "'throughput'"),
        ({"synchronisation": "parameter-server", "mode": "inference"}, "--mode"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        plan(**options)


def test_an_unknown_rule_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="'newton'"):
        plan(provisioner="newtn")


def test_a_comparison_shows_every_rule_on_the_best_placement() -> None:
    model, inputs = EXAMPLES["ctrdnn"](batch=4096)
    found = compare_methods(model, inputs, mode="training", min_throughput=FLOOR, methods=["exact"]).provisionings
    ratios = [f"{rule} 1:{ratio}" for rule in ("StaRatio", "StaPSRatio") for ratio in (2, 8, 32)]
    assert [row.rule for row in found] == ["exact", "closed form", "newton", *ratios]
    assert all(row.value >= found[0].value * (1 - 1e-9) for row in found)
    assert found[1] == replace(found[2], rule="closed form")
