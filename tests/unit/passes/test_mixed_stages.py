"""Stages of several device types in compiled models: plans, their steps, and what is not planned with them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from drafts import device
from torch import nn

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.cluster.devices import Cluster, DeviceType, Link
from heterps_compile.cost.mixed_units import MixedPlacement
from heterps_compile.cost.pose import network_of_types
from heterps_compile.cost.problem import Problem
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.make_plan import _refuse_kinds
from heterps_compile.passes.drafts import Draft, Posed
from heterps_compile.passes.mixed_stages import _candidates
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_layers import PlaceLayers
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.request import make_request
from heterps_compile.review.pose import pose_again
from heterps_compile.review.shared_inputs import SharedInputs
from heterps_compile.schedule.mixed_stage import BY_SPEED, share_out
from heterps_compile.simulation.plan_steps import plan_loads, simulate_plan
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule_text import rule_text


def core(name: str, gflops: float, units: int, **changes: Any) -> DeviceType:
    peak = MappingProxyType({"float32": gflops * 1e9})
    return replace(
        device(name, "cpu", 0.05 * gflops), peak_flops=peak, max_units=units, compute_parallel=1.0, data_parallel=1.0,
        network_bytes_per_s=1e10, input_bytes_per_s=1e10, memory_bytes_per_s=1e12, **changes,
    )  # fmt: skip


POOL = Cluster("two", "two kinds of core", "USD", (core("fast", 60, 1), core("slow", 20, 2)))
SLOW_POOL = replace(POOL, links=(Link(("fast", "slow"), 1e9, 1e-6),))
MODEL = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3)))


def planned(pool: Cluster = POOL, **asked: Any) -> Plan:
    asked = {"objective": "throughput", "max_stages": 1, "method": "exact", "batch": 960, "verify": False} | asked
    return heterps_compile.compile(MODEL, (torch.ones(4, 64),), cluster=pool, mixed_stages=True, **asked).plan


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_all_units_of_a_pool_work_on_one_stage_each_at_its_speed(mode: str) -> None:
    plan = planned(mode=mode)
    [stage] = plan.stages
    assert stage.units == (("fast", 1), ("slow", 2))
    fast, slow = stage.mixed
    assert fast.share == pytest.approx(0.6, abs=0.01)  # 60 of 60 + 2 * 20
    assert fast.compute_s == pytest.approx(slow.compute_s, rel=0.01)
    assert plan.price_per_hour == pytest.approx(0.05 * 100)
    assert plan.bound <= plan.value
    assert plan.found_by == "mixed stages"
    assert plan.unused_devices == ()
    count = plan.schedule.micro_batches
    taken = share_out([each.micro_batch(count).whole_s for each in stage.of_replicas], count, BY_SPEED)
    given = f"gives {taken.count(0)} to 1 x fast and {len(taken) - taken.count(0)} to 2 x slow"
    assert any(given in note for note in plan.notes), plan.notes
    assert any("than the best plan found whose stages have one type each" in note for note in plan.notes)


@pytest.mark.parametrize("rule", ["topk(density=0.01)", "local(steps=4)", "adasum", "powersgd(rank=2)"])
def test_replicas_of_several_types_agree_by_rules(rule: str) -> None:
    plan = planned(SLOW_POOL, mode="training", synchronisation=rule)
    [stage] = plan.stages
    assert len(stage.units) == 2
    assert stage.sync is not None
    assert stage.sync.rule == rule_text(parse_rule(rule))
    assert 0 < plan.bound <= plan.value
    assert plan.value == pytest.approx(plan.schedule.step_s)
    slow = network_of_types(SLOW_POOL, stage.units)
    assert slow.seconds_per_byte == 1 / 1e9
    times = [parameter.numel() * 4 for parameter in MODEL.parameters()]
    if rule.startswith("topk"):
        assert stage.sync_s == pytest.approx((stage.replicas - 1) * 2 * 0.01 * sum(times) / 1e9)
    again = simulate_plan(plan, plan_loads(plan), plan.schedule.name, plan.schedule.micro_batches)
    assert again.step_s == pytest.approx(plan.schedule.step_s)


def test_the_step_is_that_of_the_busiest_replica_with_what_it_is_dealt() -> None:
    plan = planned(mode="training")
    [stage], count = plan.stages, plan.schedule.micro_batches
    times_s = [each.micro_batch(count).whole_s for each in stage.of_replicas]
    taken = share_out(times_s, count, BY_SPEED)
    busiest_s = max(taken.count(replica) * time_s for replica, time_s in enumerate(times_s))
    assert plan.schedule.step_s == pytest.approx(busiest_s + stage.all_reduce_s + stage.own_s)
    assert plan.value == pytest.approx(plan.schedule.step_s)
    again = simulate_plan(plan, plan_loads(plan), plan.schedule.name, count)
    assert again.step_s == pytest.approx(plan.schedule.step_s)
    assert plan.valued.bubble == pytest.approx(again.timeline.bubble)


def test_a_floor_that_no_type_reaches_alone_is_reached_together() -> None:
    alone = heterps_compile.compile(
        MODEL, (torch.ones(4, 64),), cluster=POOL, objective="throughput", max_stages=1, method="exact", batch=960,
        verify=False,
    ).plan  # fmt: skip
    floor = 1.2 * alone.throughput_samples_per_s
    with pytest.raises(InfeasibleError):
        heterps_compile.compile(
            MODEL, (torch.ones(4, 64),), cluster=POOL, objective="price", min_throughput=floor, max_stages=1,
            batch=960, verify=False,
        )  # fmt: skip
    plan = planned(objective="price", min_throughput=floor)
    assert plan.throughput_samples_per_s >= floor * (1 - 1e-9)
    assert "no plan was found whose stages have one type each" in " ".join(plan.notes)
    with pytest.raises(InfeasibleError, match="stages"):
        planned(objective="price", min_throughput=100 * floor)


def test_where_one_type_is_as_good_the_plan_says_so() -> None:
    plan = planned(replace(POOL, device_types=(core("fast", 60, 1), core("slow", 1e-3, 1))))
    assert [stage.units for stage in plan.stages] == [(("fast", 1),)]
    assert "stages of several device types were searched too, and none is better" in plan.notes


@pytest.mark.parametrize(
    ("asked", "fault"),
    [
        ({"batch": 4}, r"\b4\b"),
        ({"objective": "latency"}, "'latency'"),
        ({"provisioner": "newton", "objective": "cost", "min_throughput": 1.0}, "provisioner"),
        ({"mode": "training", "synchronisation": "parameter-server"}, "planned"),
        ({"tables": "served"}, "--tables"),
    ],
)
def test_what_is_not_planned_with_them_is_refused_by_name(asked: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        planned(**asked)


def test_backends_that_cannot_run_such_a_stage_are_refused_by_name() -> None:
    gpu = replace(POOL, device_types=(replace(core("fast", 60, 1), kind="gpu"), core("slow", 20, 2)))
    stages = planned(gpu).stages
    assert stages[0].of_replica(1) == ("slow", "cpu")
    with pytest.raises(InputError, match="--backend"):
        _refuse_kinds(stages, find_backend("jax"))
    with pytest.raises(InputError, match="'fast'"):
        find_backend("gpu=torch,cpu=jax").on(stages)


def test_a_plan_with_such_stages_is_not_priced_with_its_model_again() -> None:
    with pytest.raises(InputError, match=r"\b1\b.*\b2\b"):
        pose_again(MODEL, planned(), (torch.ones(4, 64),), cluster=POOL)


def every_mixed(problem: Problem) -> Iterator[MixedPlacement]:
    """Yield all plans of a problem: all stages, all units."""
    of_a_stage = [units for units in product(*(range(int(most) + 1) for most in problem.max_units)) if any(units)]
    for count in range(problem.layer_count):
        for cuts in combinations(range(1, problem.layer_count), count):
            for units in product(of_a_stage, repeat=1 + count):
                if np.all(np.sum(units, axis=0) <= problem.max_units):
                    yield MixedPlacement((0, *cuts), units)


@pytest.mark.slow  # simulates the steps of every plan
@pytest.mark.parametrize(("objective", "alpha"), [("throughput", 1.0), ("throughput", 0.8), ("cost", 0.8)])
def test_no_step_of_any_plan_is_below_the_bound(objective: str, alpha: float) -> None:
    types = tuple(replace(each, compute_parallel=alpha, data_parallel=alpha, max_units=2) for each in POOL.device_types)
    asked = make_request("USD", mode="training", objective=objective, mixed_stages=True)
    graph = SharedInputs().graph(MODEL[:2], (torch.ones(4, 64),), batch=120)
    draft = run_to(Draft(graph=graph, cluster=replace(POOL, device_types=types), request=asked), Posed)
    placed = PlaceLayers()(draft)
    steps = [each.value for one in every_mixed(placed.problem) for each in _candidates(placed, [one])]
    assert len(steps) > 10
    assert placed.search.bound <= min(steps) * (1 + 1e-9)
    assert placed.search.value <= min(steps) * 1.1  # those that the search comes upon are some, and good ones
