"""A model whose best step takes its branches one after another: every command finds that plan."""

import datetime as dt
import sys
from pathlib import Path

import pytest

import heterps_compile
from heterps_compile.api import read_model
from heterps_compile.ir.graph import Graph
from heterps_compile.machines.machine_set import MachineSet
from heterps_compile.machines.step_times import StepTimes
from heterps_compile.offers import Offer, Rental
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.drafts import Draft, Posed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.steps.minimise_step import search_steps
from heterps_compile.passes.step_orders import BRANCH_NOTE, steps_of
from heterps_compile.plan.plan import Plan
from heterps_compile.review.check import check_plan
from heterps_compile.review.infeasible import why_infeasible
from heterps_compile.review.pin_cost import pin_cost
from heterps_compile.review.pose import pose_again

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from bench_orders import towers

BATCH = 512
CORES = Offer("aws", "here", "c", "", 0, 4, 2**33, 0, 1e9, 0.0, 0.17, None, dt.date(2026, 11, 1), "made up")
MACHINES = MachineSet(((Rental(CORES), 2),))
WANTED = {"mode": "training", "objective": "throughput"}
ASKED = {"cluster": MACHINES.pool(), "batch": BATCH, **WANTED}


def graph(batch: int = BATCH) -> Graph:
    return read_model(towers(3), (), None, batch=batch, shapes={}, dynamic_shapes=None)


def compiled(**more: object) -> Plan:
    return heterps_compile.compile(towers(3), verify=False, **ASKED, **more).plan  # type: ignore[arg-type]


def test_every_command_searches_the_order_of_whole_branches() -> None:
    plan = compiled()
    posed = run_to(Draft(graph=graph(), cluster=MACHINES.pool(), request=plan.request), Posed)
    own = search_steps(steps_of(posed), [], NO_DEADLINE).plan
    assert own is not None
    assert plan.value < 0.95 * own.value
    assert BRANCH_NOTE in plan.notes

    again = pose_again(towers(3), plan, cluster=MACHINES.pool())
    checked = check_plan(again, tolerance=1e-9)
    assert checked.passes
    assert [checked.value, checked.found.value] == pytest.approx([plan.value] * 2)

    # one stage keeps the layers in their own order
    one = pose_again(towers(3), compiled(max_stages=1), cluster=MACHINES.pool(), asked=WANTED)
    pinned = pin_cost(one, [("*", plan.stages[0].device)], allow_stale=True)
    assert pinned.pinned.value == pytest.approx(own.value)
    assert pinned.in_any_order == pytest.approx(plan.value)

    floor = 0.999 * BATCH / plan.value
    assert floor > BATCH / own.value
    assert why_infeasible(towers(3), min_throughput=floor, **ASKED).is_feasible

    found = StepTimes(graph, plan.request).searched(MACHINES, BATCH)
    assert not isinstance(found, str)
    assert found.step_s == pytest.approx(plan.value)
    assert 0 < found.least_s <= found.step_s
