"""A plan with tables on servers, asked again: it is posed, priced and searched with its servers."""

from dataclasses import replace

import pytest
import torch

import heterps_compile
from heterps_compile.cluster.load import load_cluster
from heterps_compile.examples import EXAMPLES
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.review.check import check_plan
from heterps_compile.review.moves import moves_of
from heterps_compile.review.pose import pose_again
from heterps_compile.review.today import plan_today

PAPER = load_cluster("heterps-paper")


@pytest.fixture(scope="module")
def served():
    with torch.device("meta"):
        model, inputs = EXAMPLES["2emb"](batch=64, rows=4 * 10**10)
    compiled = heterps_compile.compile(model, inputs, mode="training", method="exact", verify=False)
    return model, inputs, from_json(to_json(compiled.plan), "plan.json")


def test_it_holds_and_costs_what_it_did(served):
    model, inputs, plan = served
    posed = pose_again(model, plan, inputs)
    checked = check_plan(posed)
    assert checked.passes
    assert checked.value == pytest.approx(plan.value)
    assert checked.found.tables == plan.tables
    today = plan_today(posed).plan
    assert today.tables == plan.tables
    assert today.value == pytest.approx(plan.value)
    assert today.price_per_hour == pytest.approx(plan.price_per_hour)
    assert today.throughput_samples_per_s == pytest.approx(plan.throughput_samples_per_s)


def test_every_move_is_priced_with_the_servers(served):
    model, inputs, plan = served
    posed = pose_again(model, plan, inputs)
    assert posed.placement is not None
    moves = moves_of(posed.problem, posed.placement, 0, range(posed.problem.layer_count))
    priced = [move.outcome for move in moves if not move.outcome.fault]
    assert priced
    assert plan.tables is not None
    assert all(outcome.servers_price_per_hour >= plan.tables.price_per_hour * (1 - 1e-9) for outcome in priced)


def test_dearer_servers_make_it_dearer_and_a_pool_without_them_breaks_it(served):
    model, inputs, plan = served
    assert PAPER.parameter_server is not None
    server = replace(PAPER.parameter_server, price_per_hour=0.08)
    dearer = plan_today(
        pose_again(model, plan, inputs, cluster=replace(PAPER, parameter_server=server)), allow_stale=True
    )
    assert dearer.plan.tables is not None
    assert dearer.plan.tables.price_per_hour == pytest.approx(2 * plan.tables.price_per_hour)
    assert dearer.plan.price_per_hour == pytest.approx(plan.price_per_hour + plan.tables.price_per_hour)
    with pytest.raises(heterps_compile.HeterpsError, match=r"\[parameter_server\]"):
        check_plan(pose_again(model, plan, inputs, cluster=replace(PAPER, parameter_server=None)))
