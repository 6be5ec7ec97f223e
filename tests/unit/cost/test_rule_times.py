"""Replicas of stages with rules: found in closed form, against trying every number."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruled_problems import plain_halving

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.halving import halving_shares, least_of_ring
from heterps_compile.cost.replicas import StageWork
from heterps_compile.cost.rule_times import RuleForm, RuleSums, RuleWork, rule_works
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.powersgd import PowerSGD
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, SyncRule, TensorShape
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

MOST = 400
FORMS = MappingProxyType({
    "ring": (True, True, False),
    "topk": (True, False, False),
    "adasum": (False, False, True),
})  # fmt: skip


def drawn(seed: int) -> StageWork:
    """Draw stages, each with one to three rules, in machines or not."""
    rng = np.random.default_rng(seed)
    count = 40
    compute_s, data_s = rng.uniform(0.1, 10, (2, count))
    machines = None
    if rng.random() < 0.5:
        machines = Machines(rng.choice([1.0, 2.0, 3.0, 4.0, 6.0], count), rng.uniform(0.05, 1.5, count))
    rules = []
    for name in rng.choice(list(FORMS), rng.integers(1, 4)):
        inside, between, halves = FORMS[name]
        form = RuleForm(AllReduce(), inside, between, halves, False)
        most = np.where(rng.random(count) < 0.5, np.inf, rng.integers(1, 40, count))
        uneven = np.where(rng.random(count) < 0.5, most, 1.0) if halves else most
        ring_s = rng.uniform(0, 5, count)
        gather_s = 10 ** rng.uniform(-4, 0, count) * (name != "ring")
        rules.append(RuleWork(form, ring_s, gather_s, most, uneven, np.ones(count)))
    shared_s = rng.uniform(0, 1.0, count) if rng.random() < 0.3 else None
    serial = compute_s * rng.choice([0, 0.1], count), data_s * rng.choice([0, 0.2], count)
    return StageWork(compute_s, data_s, None, *serial, shared_s, machines, tuple(rules))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_the_fewest_replicas_for_a_time_are_those_that_trying_every_number_finds(seed):
    work = drawn(seed)
    demand, tried = work.demand(), np.arange(1, MOST + 1.0)
    replicas = np.broadcast_to(tried[:, None], (MOST, len(work.compute_s)))
    whole, inverse = work.time_s(replicas), demand.time_s(replicas)
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


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1))
def test_no_number_of_replicas_is_faster_than_the_fastest(seed):
    work = drawn(seed)
    demand, tried = work.demand(), np.arange(1, MOST + 1.0)
    whole = work.time_s(np.broadcast_to(tried[:, None], (MOST, len(work.compute_s))))
    assert np.all(demand.least_time_s() <= whole.min(axis=0) * (1 + 1e-12))
    fastest = demand.fastest_units()
    known = fastest <= MOST
    assert np.allclose(demand.time_s(np.where(known, fastest, 1.0))[known], whole.min(axis=0)[known], rtol=1e-12)


RULES = (
    AllReduce(), TopK(0.01), TopK(0.3), LocalSteps(3), Shadow(2), Servers(4), Adasum(), Adasum("step"), PowerSGD(),
    PowerSGD(4, False),
)  # fmt: skip
SHAPES = ((TensorShape((100, 300)), TensorShape((1,))), (TensorShape((1333, 1333)), TensorShape((888,))), ())
"""Of the tensors of layers; the last one has none."""
NETWORKS = (
    Network(1e-9, 1e-5),
    Network(1e-9, 1e-5, 4, 2e-10, 1e-6),
    Network(1e-9, 1e-5, 3, 2e-10, 1e-6),
    Network(1e-9, 1e-5, 2, 4e-9, 1e-4),
)


def group_of(shapes: Sequence[TensorShape], replicas: int, network: Network = NETWORKS[0]) -> SyncGroup:
    buffers = (FlatBuffer(sum(prod(each.shape) for each in shapes)),) if shapes else ()
    return SyncGroup(replicas, buffers, buffers, len(shapes), network, tuple(shapes))


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("network", NETWORKS, ids=["alone", "fours", "threes", "slower-inside"])
@pytest.mark.parametrize("layers", [SHAPES, SHAPES[1:], ((TensorShape((7,)),),), ((TensorShape((90, 90)),),)])
def test_what_adds_up_over_layers_is_what_a_step_waits_for(rule: SyncRule, network: Network, layers: Any):
    """Sums over layers are those of the stage; 1 to 37 replicas, machines of 1 to 4."""
    units = network.units_per_machine
    inner = network.inner_seconds_per_byte / network.seconds_per_byte
    machines = None if units == 1 else Machines(np.array([float(units)]), np.array([inner]))
    found = [rule.amounts(group_of(each, 2)) for each in layers]
    amounts = [each for each in found if each is not None]
    assert len(amounts) == len(layers)

    def total(name: str) -> Any:
        return np.array([[sum(float(getattr(each, name)) for each in amounts)]])

    form = RuleForm(rule, amounts[0].sums_inside, amounts[0].sums_between, amounts[0].halves, False)
    whole = np.array([[sum(each.is_whole and each.ring_bytes > 0 for each in amounts)]], float)
    sums = RuleSums(
        form,
        2 * network.seconds_per_byte * total("ring_bytes"),
        network.seconds_per_byte * total("gather_bytes"),
        total("held_bytes"),
        total("replica_bytes"),
        np.ones((1, 1)),
        whole,
        total("is_factored"),
        np.array([np.inf]),
        np.array([np.inf]),
    )
    work = rule_works([sums], np.array([0]))[0]
    for replicas in range(1, 38):
        group = group_of([each for shapes in layers for each in shapes], replicas, network)
        exposed, k = rule.exposed(group), np.array([[float(replicas)]])
        assert work.time_s(k, machines).item() == pytest.approx(exposed.bytes_s, rel=1e-12)
        hops_s = work.sums.item() * form.hops_s(network, replicas) if replicas > 1 else 0.0
        assert hops_s == pytest.approx(exposed.hops_s)
        room = rule.extra_bytes(group)
        held = (
            replace(sums, room_bytes=np.array([float(room)])),
            replace(sums, room_bytes=np.array([0.99 * room - 16 * replicas - 1])),
        )
        fits = [bool(rule_works([each], np.array([0]))[0].may_have(k).item()) for each in held]
        assert fits[0]
        assert not fits[1] or replicas == 1


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.integers(1, 40), st.floats(0.0, 2.0))
def test_halving_is_what_counting_replica_by_replica_says(replicas: int, units: int, inner: float):
    machines = Machines(np.array([float(units)]), np.array([inner]))
    halves, products = halving_shares(np.array([float(replicas)]), machines)
    assert (halves.item(), products.item()) == pytest.approx(plain_halving(replicas, units, inner))
    if replicas > 1:
        alone = halving_shares(np.array([float(replicas)]), None)
        of_ring, of_gather = least_of_ring(None)
        assert of_ring.item() * (1 - 1 / replicas) <= alone[0].item() / 2 * (1 + 1e-12)
        assert of_gather.item() * (1 - 1 / replicas) <= alone[1].item() * (1 + 1e-12)
        of_ring, of_gather = least_of_ring(machines)
        share = machines.share(np.array([float(replicas)])).item()
        assert of_ring.item() * share <= halves.item() / 2 * (1 + 1e-12)
        assert of_gather.item() * share <= products.item() * (1 + 1e-12)


@pytest.mark.parametrize("units", [1, 3, 4, 8, 16])
def test_no_number_of_replicas_beyond_takes_less_than_the_least_that_is_told(units: int):
    counts = np.arange(2.0, 600.0)
    machines = Machines(np.full(len(counts), float(units)), np.full(len(counts), 0.3))
    form = RuleForm(Adasum(), False, False, True, False)
    ones, none = np.ones(len(counts)), np.full(len(counts), np.inf)
    work = RuleWork(form, ones, 0.01 * ones, none, none, ones)
    beyond = np.minimum.accumulate(work.time_s(counts, machines)[::-1])[::-1]
    assert np.all(work.low_s(counts, machines) <= beyond * (1 + 1e-12))
