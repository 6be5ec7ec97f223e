"""The rules of a run: the plan's or those that are asked for; what they cannot be combined with is refused by name."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import PLAN
from safetensors.torch import save_file
from torch import Tensor, nn

import heterps_compile
from heterps_compile.errors import HeterpsError
from heterps_compile.plan.plan import Artifact, Plan
from heterps_compile.plan.planned_stage import StageSync
from heterps_compile.plan.source import read_plan
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


def rules_of(plan: Plan, *widths: int, folder: Path = Path("m"), **more: Any) -> list[str]:
    options = RunOptions(directory="m", train="train.py", **more)
    return [rule_text(rule) for rule in rules_of_run(options, plan, layout_of(plan, *widths), folder)]


def test_a_run_has_the_rules_of_its_plan_and_others_where_they_are_asked_for():
    plan = of_torch("topk(density=0.05)", None)
    assert rules_of(plan, 2, 2) == ["topk(density=0.05)", "all-reduce"]
    assert rules_of(plan, 2, 2, sync="adasum") == ["adasum", "adasum"]
    assert rules_of(plan, 2, 2, sync="stage 1=local(steps=2)") == ["all-reduce", "local(steps=2)"]
    assert rules_of(plan, 2, 2, sync="stage 1=adasum, *=topk(density=0.5)") == ["topk(density=0.5)", "adasum"]
    last = plan.stages[1].layers[-1]
    assert rules_of(plan, 2, 2, sync=f"{last}=adasum") == ["all-reduce", "adasum"]


def test_what_goes_together_goes():
    plan = of_torch()
    assert rules_of(plan, 2, 2, sync="topk(density=0.1)", clip_norm=1.0, ema=0.9) == ["topk(density=0.1)"] * 2
    assert rules_of(plan, 2, 2, sync="adasum(on=step)", ema=0.9) == ["adasum(on=step)"] * 2


def test_a_stage_that_is_planned_with_one_replica_has_the_rule_that_was_asked_for_all():
    one = of_torch()
    one = replace(one, stages=tuple(replace(stage, replicas=1) for stage in one.stages))
    for_all = replace(one, request=replace(one.request, synchronisation="topk(density=0.1)"))
    assert rules_of(for_all, 2, 1) == ["topk(density=0.1)"] * 2
    several = replace(one, request=replace(one.request, synchronisation="stage 0=adasum, *=topk(density=0.1)"))
    assert rules_of(several, 2, 1) == ["all-reduce"] * 2
    layout = layout_of(several, 2, 1)
    rules = rules_of_run(RunOptions(directory="m", train="train.py"), several, layout, Path("m"))
    (note,) = rule_notes(rules, several, layout)
    assert note == (
        "stage 0 is planned with one replica, which has no rule: its 2 agree by all-reduce, or by what --sync says"
    )
    assert list(rule_notes(rules, several, layout, is_asked=True)) == []


def test_an_inference_agrees_on_nothing():
    plan = of_torch("adasum", "adasum")
    options = RunOptions(directory="m", data="x.tsv")
    rules = rules_of_run(options, plan, layout_of(plan, 2, 1, training=False), Path("m"))
    assert list(map(rule_text, rules)) == ["all-reduce"] * 2
    assert list(rule_notes(rules, plan, layout_of(plan, 2, 1, training=False))) == []


def test_a_plan_that_counts_on_servers_has_those_of_the_run():
    plan = of_torch("servers(staleness=4)", None)
    assert rules_of(plan, 2, 2) == ["all-reduce", "all-reduce"]
    assert rules_of(plan, 2, 2, servers=ServerOptions(count=1)) == ["servers", "all-reduce"]
    assert rules_of(plan, 2, 2, servers=SERVED, sync="servers(staleness=4)") == ["servers(staleness=4)"] * 2


@pytest.mark.parametrize(
    ("sync", "more", "words"),
    [
        ("local(steps=2)", {"clip_norm": 1.0}, "gradients of their own, and --clip-norm clips the norm"),
        ("local(steps=2)", {"ema": 0.9}, "gradients of their own, and --ema keeps an average"),
        ("adasum(on=step)", {"clip_norm": 1.0}, "by adasum(on=step), so that replicas step on gradients of their own"),
        ("servers(staleness=4)", {}, "the run has no servers; say how many hold the tables (--parameter-servers N)"),
        ("servers", {"servers": SERVED}, "the servers of the run have a staleness of 4; give both the same (--stal"),
        ("local(steps=2, rule=mm)", {}, "keeps a predictor for every block of the data, and needs to know how many"),
        ("stage 7=adasum", {}, "'stage 7'"),
    ],
)
def test_what_a_rule_cannot_be_combined_with_is_refused_before_the_run(sync, more, words):
    with pytest.raises(HeterpsError) as refused:
        rules_of(of_torch(), 2, 2, sync=sync, **more)
    assert words in str(refused.value)


def test_a_stage_with_one_replica_refuses_nothing_and_says_that_it_agrees_with_nobody():
    plan = of_torch()
    assert rules_of(plan, 2, 1, sync="stage 1=local(steps=2)", clip_norm=1.0) == ["all-reduce", "local(steps=2)"]
    options = RunOptions(directory="m", train="train.py", sync="stage 1=local(steps=2), *=adasum")
    layout = layout_of(plan, 2, 1)
    assert list(rule_notes(rules_of_run(options, plan, layout, Path("m")), plan, layout)) == [
        "the 2 replicas of stage 0 agree by adasum (planned: all-reduce)",
        "stage 1 has one replica, which agrees with nobody: local(steps=2) changes nothing there",
    ]
    planned = of_torch("servers(staleness=4)", "topk(density=0.1)")
    layout = layout_of(planned, 2, 2)
    options = RunOptions(directory="m", train="train.py")
    assert list(rule_notes(rules_of_run(options, planned, layout, Path("m")), planned, layout)) == [
        "the 2 replicas of stage 0 agree by all-reduce (planned: servers(staleness=4): no servers are started)",
        "the 2 replicas of stage 1 agree by topk(density=0.1)",
    ]


@pytest.fixture
def sharing(tmp_path: Path) -> Plan:
    """Return a plan whose stages share a weight, which goes by another name in the second one."""
    save_file({"embed.weight": torch.zeros(2), "a": torch.zeros(1)}, tmp_path / "stage_0.safetensors")
    save_file({"head.weight": torch.zeros(2)}, tmp_path / "stage_1.safetensors")
    (tmp_path / "stage_1.py").write_text('TIED_AS = {"head.weight": "embed.weight"}\n')
    files = [["stage_0.safetensors"], ["stage_1.safetensors", "stage_1.py"]]
    artifacts = tuple(tuple(Artifact(name, "0" * 64) for name in of_stage) for of_stage in files)
    return replace(of_torch(), replicated=("embed.weight",), artifacts=artifacts)


def test_stages_that_share_a_weight_agree_on_it_by_one_rule_that_sums(sharing, tmp_path):
    assert rules_of(sharing, 2, 1, sync="topk(density=0.1)", folder=tmp_path) == ["topk(density=0.1)"] * 2
    assert rules_of(sharing, 1, 1, sync="stage 0=adasum", folder=tmp_path) == ["adasum", "all-reduce"]
    both = "stages 0 and 1 share the weight 'embed.weight'"
    for sync, words in (
        ("stage 0=topk(density=0.1)", f"{both}, and are to agree on it by topk(density=0.1) and all-reduce; give them"),
        ("adasum", f"{both}, whose gradient is the sum of theirs, and adasum makes no sum"),
        ("local(steps=2)", f"{both}, whose gradient is the sum of theirs, and local(steps=2) makes no sum"),
    ):
        with pytest.raises(HeterpsError) as refused:
            rules_of(sharing, 2, 1, sync=sync, folder=tmp_path)
        assert words in str(refused.value)


class Sparse(nn.Module):
    """Two tables with sparse gradients and a dense one, of which the forward looks up those that are named."""

    def __init__(self, *looked_up: str) -> None:
        super().__init__()
        self.looked_up = looked_up
        self.table, self.dense = nn.Embedding(20, 4, sparse=True), nn.Embedding(20, 4)
        self.bag = nn.EmbeddingBag(20, 4, mode="sum", sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        parts = {"table": lambda: self.table(ids).sum(1), "dense": lambda: self.dense(ids).sum(1)}
        return sum(parts.get(name, lambda: self.bag(ids))() for name in self.looked_up)


@pytest.mark.parametrize(
    ("looked_up", "weight"), [(("dense", "table"), "table.weight"), (("bag",), "bag.weight"), (("dense",), None)]
)
def test_a_rule_that_combines_dense_gradients_refuses_sparse_ones_before_the_run(tmp_path, looked_up, weight):
    made = heterps_compile.compile(
        Sparse(*looked_up), (torch.zeros(8, 3, dtype=torch.int64),), mode="training", method="greedy", verify=False
    )
    made.save(tmp_path / "m")
    plan = read_plan(str(tmp_path / "m"))
    plan = replace(plan, request=replace(plan.request, synchronisation="all-reduce"))
    layout = make_layout(plan, training=True, replicas=[2], step=StepShape("1f1b", 2, 16))

    def rules(sync: str, **more: Any) -> list[str]:
        options = RunOptions(directory="m", train="train.py", sync=sync, **more)
        return [rule_text(rule) for rule in rules_of_run(options, plan, layout, tmp_path / "m")]

    for sync in ("all-reduce", "topk(density=0.1)", "adasum(on=step)"):
        assert rules(sync) == [sync]
    assert rules("adasum", servers=SERVED) == ["adasum"]
    if weight is None:
        assert rules("adasum") == ["adasum"]
        return
    with pytest.raises(HeterpsError) as refused:
        rules("adasum")
    assert re.search(rf"stage 0\b.*adasum.*{re.escape(weight)}.*sparse=False.*--sync", str(refused.value))


def test_what_is_known_of_rules_without_pytorch_is_what_they_say_with_it():
    assert set(RULES) == set(sync_rules.RULES)
    for text in [*(rule.example for rule in sync_rules.RULES.values()), "adasum(on=step)"]:
        assert find_runtime(parse_rule(text)).can == capabilities_of(parse_rule(text)), text
