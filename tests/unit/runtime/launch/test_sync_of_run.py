"""The rules of a run: the plan's or those that are asked for."""

from dataclasses import replace
from typing import Any

import pytest
from plans import PLAN

from heterps_compile.errors import HeterpsError
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import StageSync
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.server_options import ServerOptions
from heterps_compile.runtime.launch.sync_of_run import rule_notes, rules_of_run
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.sync.find import RULES, capabilities_of, find_runtime
from heterps_compile.sync_rules import rules as sync_rules
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule_text import rule_text

SERVED = ServerOptions(count=2, staleness=4)


def of_torch(*rules: str | None, **more: Any) -> Plan:
    """Return a plan for training whose stages have planned rules; None for the default."""
    planned = [None if rule is None else StageSync(rule, "any", 1.0, 2.0, 0.5) for rule in rules or (None, None)]
    stages = [replace(stage, backend="torch", sync=sync) for stage, sync in zip(PLAN.stages, planned, strict=True)]
    return replace(PLAN, stages=tuple(stages), replicated=(), artifacts=(), **more)


def layout_of(plan: Plan, *widths: int, training: bool = True) -> Layout:
    shape = StepShape(schedule="1f1b", micro_batches=4, batch=64)
    return make_layout(plan, training=training, replicas=widths, step=shape)


def rules_of(plan: Plan, **more: Any) -> list[str]:
    return list(map(rule_text, rules_of_run(RunOptions(directory="m", train="train.py", **more), plan)))


def test_a_run_has_the_rules_of_its_plan_and_others_where_they_are_asked_for():
    plan = of_torch("topk(density=0.05)", None)
    assert rules_of(plan) == ["topk(density=0.05)", "all-reduce"]
    assert rules_of(plan, sync="adasum") == ["adasum", "adasum"]
    assert rules_of(plan, sync="stage 1=local(steps=2)") == ["all-reduce", "local(steps=2)"]
    assert rules_of(plan, sync="stage 1=adasum, *=topk(density=0.5)") == ["topk(density=0.5)", "adasum"]
    last = plan.stages[1].layers[-1]
    assert rules_of(plan, sync=f"{last}=adasum") == ["all-reduce", "adasum"]


def test_a_stage_that_is_planned_with_one_replica_has_the_rule_that_was_asked_for_all():
    one = of_torch()
    one = replace(one, stages=tuple(replace(stage, replicas=1) for stage in one.stages))
    for_all = replace(one, request=replace(one.request, synchronisation="topk(density=0.1)"))
    assert rules_of(for_all) == ["topk(density=0.1)"] * 2
    several = replace(one, request=replace(one.request, synchronisation="stage 0=adasum, *=topk(density=0.1)"))
    assert rules_of(several) == ["all-reduce"] * 2
    layout = layout_of(several, 2, 1)
    rules = rules_of_run(RunOptions(directory="m", train="train.py"), several)
    (note,) = rule_notes(rules, several, layout)
    assert note == (
        "stage 0 is planned with one replica, which has no rule: its 2 agree by all-reduce, or by what --sync says"
    )
    assert list(rule_notes(rules, several, layout, is_asked=True)) == []


def test_an_inference_agrees_on_nothing():
    plan = of_torch("adasum", "adasum")
    options = RunOptions(directory="m", data="x.tsv")
    rules = rules_of_run(options, plan)
    assert list(map(rule_text, rules)) == ["all-reduce"] * 2
    assert list(rule_notes(rules, plan, layout_of(plan, 2, 1, training=False))) == []


def test_a_plan_that_counts_on_servers_has_those_of_the_run():
    plan = of_torch("servers(staleness=4)", None)
    assert rules_of(plan) == ["all-reduce", "all-reduce"]
    assert rules_of(plan, servers=ServerOptions(count=1)) == ["servers", "all-reduce"]
    assert rules_of(plan, servers=SERVED, sync="servers(staleness=4)") == ["servers(staleness=4)"] * 2


@pytest.mark.parametrize(("sync", "said"), [("local(steps=2, rule=mm)", "blocks"), ("stage 7=adasum", "'stage 7'")])
def test_rules_that_a_plan_cannot_have_are_refused(sync, said):
    with pytest.raises(HeterpsError, match=said):
        rules_of(of_torch(), sync=sync)


def test_a_stage_with_one_replica_says_that_it_agrees_with_nobody():
    plan = of_torch()
    options = RunOptions(directory="m", train="train.py", sync="stage 1=local(steps=2), *=adasum")
    layout = layout_of(plan, 2, 1)
    assert list(rule_notes(rules_of_run(options, plan), plan, layout)) == [
        "the 2 replicas of stage 0 agree by adasum (planned: all-reduce)",
        "stage 1 has one replica, which agrees with nobody: local(steps=2) changes nothing there",
    ]
    planned = of_torch("servers(staleness=4)", "topk(density=0.1)")
    layout = layout_of(planned, 2, 2)
    options = RunOptions(directory="m", train="train.py")
    assert list(rule_notes(rules_of_run(options, planned), planned, layout)) == [
        "the 2 replicas of stage 0 agree by all-reduce (planned: servers(staleness=4): no servers are started)",
        "the 2 replicas of stage 1 agree by topk(density=0.1)",
    ]


def test_what_is_known_of_rules_without_pytorch_is_what_they_say_with_it():
    assert set(RULES) == set(sync_rules.RULES)
    for text in [*(rule.example for rule in sync_rules.RULES.values()), "adasum(on=step)"]:
        assert find_runtime(parse_rule(text)).can == capabilities_of(parse_rule(text)), text
