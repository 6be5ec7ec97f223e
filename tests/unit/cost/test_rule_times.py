"""Replicas of stages with rules: found in closed form, against trying every number."""

from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.replicas import StageWork
from heterps_compile.cost.rule_times import RuleForm, RuleWork
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, SyncRule
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

MOST = 400
FORMS = MappingProxyType({
    "ring": (True, True, True),
    "topk": (True, False, True),
    "adasum": (False, False, False),
})  # fmt: skip


def drawn(seed: int) -> StageWork:
    """Draw stages, each with one to three rules, in machines or not."""
    rng = np.random.default_rng(seed)
    count = 40
    compute_s, data_s = rng.uniform(0.1, 10, (2, count))
    machines = None
    if rng.random() < 0.5:
        machines = Machines(rng.choice([1.0, 2.0, 4.0], count), rng.uniform(0.05, 1.0, count))
    rules = []
    for name in rng.choice(list(FORMS), rng.integers(1, 4)):
        inside, between, knows = FORMS[name]
        form = RuleForm(AllReduce(), inside, between, knows, False)
        most = np.where(rng.random(count) < 0.5, np.inf, rng.integers(1, 40, count))
        ring_s = rng.uniform(0, 5, count) * (name != "adasum")
        rules.append(RuleWork(form, ring_s, 10 ** rng.uniform(-4, 0, count) * (name != "ring"), most))
    shared_s = rng.uniform(0, 1.0, count) if rng.random() < 0.3 else None
    serial = compute_s * rng.choice([0, 0.1], count), data_s * rng.choice([0, 0.2], count)
    return StageWork(compute_s, data_s, None, *serial, shared_s, machines, tuple(rules))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_fewest_replicas_for_a_time_are_those_that_trying_every_number_finds(seed):
    work = drawn(seed)
    demand, tried = work.demand(), np.arange(1, MOST + 1.0)
    whole = np.stack([work.time_s(np.full(len(work.compute_s), k)) for k in tried])
    inverse = np.stack([demand.time_s(np.full(len(work.compute_s), k)) for k in tried])
    assert np.allclose(whole, inverse, rtol=1e-12)
    for share in (0.05, 0.2, 0.5, 0.8, 0.99, 1.0):
        time_s = demand.once_s * share
        units, bound = demand.units_and_bound(time_s)
        assert np.array_equal(units, demand.units(time_s))
        reaches = whole <= time_s * (1 + 1e-12)
        first = np.where(reaches.any(axis=0), tried[np.argmax(reaches, axis=0)], np.inf)
        inside = np.minimum(units, first) < MOST
        assert np.array_equal(units[inside], first[inside])
        paid = np.where(whole <= time_s, tried[:, None] * np.maximum(whole, 0.0), np.inf).min(axis=0)
        assert np.all(bound <= paid * (1 + 1e-9))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_no_number_of_replicas_is_faster_than_the_fastest(seed):
    work = drawn(seed)
    demand, tried = work.demand(), np.arange(1, MOST + 1.0)
    whole = np.stack([work.time_s(np.full(len(work.compute_s), k)) for k in tried])
    assert np.all(demand.least_time_s() <= whole.min(axis=0) * (1 + 1e-12))
    fastest = demand.fastest_units()
    known = fastest <= MOST
    assert np.allclose(demand.time_s(np.where(known, fastest, 1.0))[known], whole.min(axis=0)[known], rtol=1e-12)


RULES = (AllReduce(), TopK(0.01), TopK(0.3), LocalSteps(3), Shadow(2), Servers(4))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("units", [1, 4])
def test_what_adds_up_over_layers_is_what_a_step_waits_for(rule: SyncRule, units: int):
    """Two layers, so that their sums are those of the stage; 2 to 9 replicas in machines of 1 or of 4."""
    network = Network(1e-9, 1e-5, units, 2e-10, 1e-6)
    layers = [(FlatBuffer(30_001),), (FlatBuffer(1_777_777),)]
    machines = None if units == 1 else Machines(np.array([4.0]), np.array([0.2]))
    for replicas in range(1, 10):
        group = SyncGroup(replicas, (FlatBuffer(1_807_778),), (FlatBuffer(1_807_778),), network=network)
        found = [rule.amounts(SyncGroup(2, each, each)) for each in layers]
        amounts = [each for each in found if each is not None]
        assert len(amounts) == len(layers)
        form = RuleForm(rule, amounts[0].sums_inside, amounts[0].sums_between, amounts[0].knows_machines, False)
        work = RuleWork(
            form,
            np.array([2e-9 * sum(each.ring_bytes for each in amounts)]),
            np.array([1e-9 * sum(each.gather_bytes for each in amounts)]),
            np.array([np.inf]),
        )
        exposed = rule.exposed(group)
        assert work.time_s(np.array([float(replicas)]), machines)[0] == pytest.approx(exposed.bytes_s, rel=1e-12)
        assert (form.hops_s(network, replicas) if replicas > 1 else 0.0) == pytest.approx(exposed.hops_s)
        held = sum(each.held_bytes + each.replica_bytes * replicas for each in amounts) * (replicas > 1)
        assert rule.extra_bytes(group) - 16 * replicas <= held <= rule.extra_bytes(group)
