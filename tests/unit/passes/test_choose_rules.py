"""Which stage has which rule: asked for, or the one with which the step is the shortest."""

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from agreeing import BATCH, GRADIENT_BYTES, agreeing, pool

import heterps_compile
from heterps_compile.cluster.devices import Cluster
from heterps_compile.errors import InfeasibleError, InputError, PlanError, PlugInError, UnknownNameError
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.provenance import make_hashes
from heterps_compile.plan.request import Request, make_request
from heterps_compile.plan_diff.fail_on import met, parse_criteria
from heterps_compile.plan_diff.sentences import sentences
from heterps_compile.sync_rules import rules
from heterps_compile.sync_rules.topk import TopK


@cache
def plan(sync: str = "all-reduce", allow: str = "exact") -> Plan:
    return agreeing(synchronisation=sync, allow=allow)


def rule(made: Plan) -> str:
    [stage] = made.stages
    return "all-reduce" if stage.sync is None else stage.sync.rule


def test_a_rule_that_is_asked_for_takes_the_place_of_the_all_reduce():
    """4 replicas: 3 x 8 bytes a pair, of 20,972 pairs; an all-reduce sends 2 x 3/4 of 8 MiB."""
    plain, made = plan(), plan("topk(density=0.01)")
    [stage], [before] = made.stages, plain.stages
    assert (stage.replicas, before.replicas, before.sync) == (4, 4, None)
    kept = round(0.01 * 2 * 1024 * 1024)
    assert stage.sync is not None
    assert (stage.sync.rule, stage.sync.exactness) == ("topk(density=0.01)", "bounded")
    assert stage.sync.step_bytes == 3 * 8 * kept
    assert stage.sync.all_reduce_bytes == 2 * 3 / 4 * GRADIENT_BYTES
    assert stage.sync.all_reduce_s == before.all_reduce_s
    assert stage.sync_s == pytest.approx(3 * 8 * 0.01 * 2 * 1024 * 1024 / 4e9)  # not rounded
    assert stage.sync_hops_s == pytest.approx(3 * 2e-5)
    assert stage.data_s == pytest.approx(before.data_s - before.sync_s + stage.sync_s)
    assert stage.memory is not None
    assert stage.memory.sync_bytes == GRADIENT_BYTES + 4 * 8 * kept  # what was not sent, and what all have sent
    saved_s = before.all_reduce_s - stage.all_reduce_s
    assert made.schedule.step_s == pytest.approx(plain.schedule.step_s - saved_s)


def test_an_all_reduce_everywhere_changes_nothing_by_a_bit():
    for same in ("all-reduce", "*=all-reduce", "auto"):
        made = replace(plan(same), request=plan().request, notes=plan().notes, hashes=plan().hashes, other=plan().other)
        assert replace(made, search_s=0.0, evaluations=0) == replace(plan(), search_s=0.0, evaluations=0)


def test_the_hash_of_the_options_is_that_of_plans_before_rules():
    usual = Request(mode="training")
    assert "allow" in usual.asked()
    assert '"allow"' not in to_json(plan())
    bounded = make_request("USD", mode="training", synchronisation="auto", allow="bounded")
    import agreeing as made  # noqa: PLC0415 - the graph alone

    hashes = [make_hashes(made.graph(), pool(), each)["options"] for each in (usual, bounded)]
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("allow", "chosen"), [("exact", "all-reduce"), ("bounded", "topk(density=0.01)"), ("any", "shadow(every=5)")]
)
def test_the_planner_takes_the_allowed_rule_with_the_shortest_step(allow, chosen):
    made = plan("auto", allow)
    assert rule(made) == chosen
    assert made.schedule.step_s <= plan().schedule.step_s


def of_units(cluster: Cluster, count: int) -> Cluster:
    return replace(cluster, device_types=tuple(replace(each, max_units=count) for each in cluster.device_types))


@pytest.mark.parametrize(
    ("density", "chosen"), [(0.24, "topk(density=0.24)"), (0.25, "all-reduce"), (0.26, "all-reduce")]
)
def test_the_planner_switches_where_the_density_is_one_over_the_machines(density, chosen):
    """4 replicas, each a machine; fewer messages alone are no reason for topk."""
    cluster = of_units(pool(network_latency_s=2e-5), 4)
    asked = {"objective": "throughput", "min_throughput": 0.0, "budget": 1e6, "max_stages": 1}
    made = agreeing(cluster, synchronisation=f"auto(topk(density={density}))", allow="bounded", **asked)
    assert made.stages[0].replicas == 4
    assert rule(made) == chosen


@pytest.mark.slow  # searches thrice
def test_the_planner_counts_machines_and_not_replicas():
    """8 replicas in 2 machines of 4: topk goes between machines alone, so that 1 / density is held against 2."""
    cluster = pool(units_per_machine=4, inner_bytes_per_s=4e10)
    asked = {"objective": "throughput", "min_throughput": 0.0, "budget": 1e6, "max_stages": 1}
    for density, replicas, chosen in ((0.4, 8, "topk(density=0.4)"), (0.5, 4, "all-reduce")):
        made = agreeing(cluster, synchronisation=f"auto(topk(density={density}))", allow="bounded", **asked)
        assert (made.stages[0].replicas, rule(made)) == (replicas, chosen)


def test_a_rule_that_does_not_shorten_the_step_leaves_the_all_reduce(monkeypatch):
    monkeypatch.setattr("heterps_compile.passes.searched_rules.COMPARED", (TopK(1.0), rules.USUAL))
    assert rule(agreeing(synchronisation="auto", allow="any")) == "all-reduce"


def test_a_plan_with_rules_has_a_bound_of_plans_with_rules():
    made = plan("topk(density=0.01)")
    assert 0 < made.steady_bound <= made.bound <= made.value
    assert made.bound == pytest.approx(made.value, rel=1e-6)
    assert made.value < plan().bound  # so that the bound with all-reduce would have been wrong
    assert not any("rule" in note for note in made.notes)


def test_a_rule_that_does_not_say_what_adds_up_has_no_bound(monkeypatch):
    @dataclass(frozen=True)
    class Other(TopK):
        name = "other"

    entry = EntryPoint("other", "somewhere:Other", rules.ENTRY_POINT_GROUP)
    monkeypatch.setattr(rules, "entry_points", lambda *, group: [entry] if group == rules.ENTRY_POINT_GROUP else [])
    monkeypatch.setattr(rules, "load_plug_in", lambda _: Other)
    made = agreeing(synchronisation="other(density=0.01)")
    assert (made.bound, made.bound_of_all_orders, made.steady_bound) == (0.0, 0.0, 0.0)
    [note] = [note for note in made.notes if "no bound is proven with these rules" in note]
    assert "with an all-reduce in every stage none is better than" in note


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"synchronisation": "topk(density=2)"}, InputError, r"density.*topk.*\b2\b"),
        ({"synchronisation": "fc3=adasum"}, UnknownNameError, "mean 'fc[12]'"),
        ({"synchronisation": "stage 4=adasum"}, InputError, r"stage 4\b.*'fc.=adasum'"),
        ({"synchronisation": "adasum", "mode": "inference"}, InputError, "--sync.*training"),
        ({"synchronisation": "adasum", "allow": "any"}, InputError, "--allow.*--sync"),
        ({"synchronisation": "auto", "allow": "all"}, UnknownNameError, "'all'"),
        ({"synchronisation": "servers", "mixed_stages": True}, InputError, "planned"),
        ({"synchronisation": 7}, InputError, r"\b7\b"),
        ({"synchronisation": "topk(density=0.9)"}, InfeasibleError, "reachable"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(asked: dict[str, Any], error, message):
    with pytest.raises(error, match=message):
        agreeing(pool(1e9) if "reach" in message else None, **{"min_throughput": 2.8e5, **asked})


@pytest.mark.slow  # searches twice
def test_a_rule_whose_memory_has_no_room_is_not_chosen_and_parts_stages():
    """Besides, topk holds 8.64 MiB and local 8 MiB, 1.2 times which is 10.4 and 9.6; there are 10 MiB."""
    [stage] = plan().stages
    assert stage.memory is not None
    small = pool(memory_bytes=float(stage.memory.total_bytes + 10 * 2**20))
    assert rule(agreeing(small)) == "all-reduce"
    assert rule(agreeing(small, synchronisation="auto", allow="bounded")) == "local(steps=4)"
    asked = agreeing(small, synchronisation="topk(density=0.01)")
    assert [len(each.layers) for each in asked.stages] == [1, 1]  # which have less to hold, each
    for each in asked.stages:
        assert each.memory is not None
        assert each.memory.total_bytes <= small.device_types[0].memory_bytes
    assert asked.bound < asked.value
    alone = agreeing(small, synchronisation="topk(density=0.01)", max_stages=1, min_throughput=0.0)
    assert alone.stages[0].replicas == 1  # which agrees with nobody, and holds nothing for it
    with pytest.raises(InfeasibleError, match="reached"):
        agreeing(small, synchronisation="shadow(every=4)", max_stages=1)
    with pytest.raises(InfeasibleError, match=r"50 MiB.*8.64 MiB.*topk\(density=0.01.*'gpu'"):
        agreeing(small, synchronisation="topk(density=0.01)", max_stages=1)


@dataclass(frozen=True)
class Failing(TopK):
    """A third party's, which fails where it is asked what it moves."""

    name = "failing"

    def exchange(self, group):
        raise ZeroDivisionError("no such group")


def test_a_third_partys_rule_that_fails_is_told_as_theirs(monkeypatch):
    entry = EntryPoint("failing", f"{__name__}:Failing", rules.ENTRY_POINT_GROUP)
    monkeypatch.setattr(rules, "entry_points", lambda *, group: [entry] if group == rules.ENTRY_POINT_GROUP else [])
    with pytest.raises(PlugInError, match=r"'failing'.*ZeroDivisionError"):
        agreeing(synchronisation="failing(density=0.1)")


def test_servers_are_paid_and_their_old_name_goes_on_to_work():
    steady = {"reading": "steady-state"}
    new, old = agreeing(synchronisation="servers", **steady), agreeing(synchronisation="parameter-server", **steady)
    assert old.request.synchronisation == "parameter-server"
    assert (new.value, new.bound, new.parameter_servers) == (old.value, old.bound, old.parameter_servers)
    assert new.parameter_servers.count > 0
    assert (rule(new), rule(old)) == ("servers", "all-reduce")  # as plans of before have it
    assert agreeing(synchronisation="fc1=servers, *=adasum", **steady).parameter_servers.count > 0


def test_a_plan_with_rules_is_written_and_read_back():
    made = plan("topk(density=0.01)")
    text = to_json(made)
    assert to_json(from_json(text, "plan.json")) == text
    document = json.loads(text)
    assert document["decisions"]["stages"][0]["sync"] == "topk(density=0.01)"
    assert document["request"]["synchronisation"] == "topk(density=0.01)"
    assert '"sync"' not in to_json(plan())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["decisions"]["stages"][0].update(sync="tokp(density=0.1)"), "'topk'"),
        (lambda d: d["decisions"]["stages"][0].update(sync="__import__('os')"), "'os'"),
        (lambda d: d["decisions"]["stages"][0].pop("sync"), "decisions.*estimates"),
        (lambda d: d["estimates"]["stages"][0].pop("sync"), "estimates.*decisions"),
        (lambda d: d["estimates"]["stages"][0]["sync"].update(exactness="exact"), "'exact'.*topk"),
        (lambda d: d["request"].update(synchronisation="*=topk(density=7)"), r"\b7\b"),
        (lambda d: d["request"].update(allow="some"), "allow"),
    ],
)
def test_a_plan_whose_rules_make_no_sense_is_refused(change, message):
    document = json.loads(to_json(plan("topk(density=0.01)")))
    change(document)
    with pytest.raises(PlanError, match=message):
        from_json(json.dumps(document), "plan.json")


def test_another_rule_is_a_decision_that_a_diff_tells_and_can_fail_on():
    changes = heterps_compile.diff(plan(), plan("topk(density=0.01)"))
    told = [sentence.text for sentence in sentences(changes, str) if sentence.kind == "rules"]
    assert told == ["stage 0 agrees by topk(density=0.01), agreed by all-reduce"]
    assert met(parse_criteria("rules,replicas"), changes) == ["rules"]
    same = heterps_compile.diff(plan("topk(density=0.01)"), plan("topk(density=0.01)"))
    assert same.is_empty


def test_the_batch_of_the_model_is_the_one_that_was_meant():
    assert plan().batch == BATCH


def said_of(cluster: Cluster | None = None, **asked: Any) -> str:
    with pytest.raises(InfeasibleError) as raised:
        agreeing(cluster, **asked)
    return str(raised.value)


def test_a_floor_that_an_all_reduce_is_too_slow_for_names_the_rule_that_meets_it():
    """Two replicas sum 8 MiB in 10.5 ms at 800 MB/s, and the floor leaves 6.83 ms a batch."""
    slow = pool(8e8)
    said = said_of(slow, min_throughput=6e5)
    assert "; --sync auto --allow bounded meets it by topk(density=0.01), for " in said
    cheap = re.search(r"for ([\d.]+) USD an hour", said)
    assert cheap is not None
    met = agreeing(slow, synchronisation="auto", allow="bounded", min_throughput=6e5)
    assert rule(met) == "topk(density=0.01)"
    assert float(cheap[1]) == pytest.approx(met.price_per_hour, rel=0.01)


@pytest.mark.slow  # searches twice
def test_a_floor_that_a_rule_is_too_slow_for_names_its_time_and_what_helps():
    said = said_of(pool(8e8), synchronisation="adasum", min_throughput=6e5)
    assert "; what rules it out is the time until replicas agree by adasum, " in said
    assert "where the floor leaves 6.83 ms a batch" in said
    assert "--sync auto --allow bounded meets it by topk(density=0.01)" in said
    bounded = said_of(pool(4e7), synchronisation="auto", allow="bounded", min_throughput=1e6)
    assert "--sync auto --allow any meets it by shadow(every=5)" in bounded


def test_memory_that_a_rule_has_no_room_for_names_what_it_holds_and_what_helps():
    [stage] = plan().stages
    assert stage.memory is not None
    small = pool(memory_bytes=float(stage.memory.total_bytes + 2 * 2**20))
    said = said_of(small, synchronisation="topk(density=0.01)", max_stages=1)
    assert "; what rules it out is what a replica holds for topk(density=0.01), 9.9" in said
    assert "; --sync all-reduce meets it, for " in said


def test_a_floor_that_no_rule_meets_says_nothing_of_rules():
    said = said_of(synchronisation="topk(density=0.01)", min_throughput=1e9)
    assert "what rules it out" not in said
    assert "meets it" not in said
