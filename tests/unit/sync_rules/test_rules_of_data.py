"""Rules that know how data come, as blocks or as batches that come again: what they count, and refuse early."""

import pytest

from heterps_compile.cost.step_rates import StepRates
from heterps_compile.errors import HeterpsError, InfeasibleError
from heterps_compile.passes.rules_of_stages import with_rule
from heterps_compile.plan.request import make_request
from heterps_compile.sync_rules.adsaga import Adsaga
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import ANY, BOUNDED, FlatBuffer, SyncGroup
from heterps_compile.sync_rules.rule_text import rule_text

MM = LocalSteps(2, "mm", blocks=3, block_steps=4)
MC = LocalSteps(2, "mc", blocks=3, block_steps=4)
WEIGHTS_BYTES, GRADIENT_BYTES = 4000, 400
GROUP = SyncGroup(4, (FlatBuffer(100),), (FlatBuffer(1000),), network=Network(1e-9, 1e-6))
ALONE = SyncGroup(1, (FlatBuffer(100),), (FlatBuffer(1000),))


def test_the_drawing_of_blocks():
    assert [MM.block_of(step) for step in range(20)] == [0] * 4 + [1] * 4 + [2] * 4 + [0] * 4 + [1] * 4
    assert MM.cycle_steps == 12


def test_predictors_send_what_averages_send_and_chains_twice_that():
    one, mm, mc = (rule.exchange(GROUP) for rule in (LocalSteps(2), MM, MC))
    assert mm == one
    assert mc.sent_bytes == 2 * one.sent_bytes
    assert mc.time_s == pytest.approx(2 * one.time_s)
    assert MM.exposed(GROUP).time_s == pytest.approx(one.time_s / 2)
    assert [rule.extra_bytes(GROUP) for rule in (LocalSteps(2), MM, MC)] == [
        WEIGHTS_BYTES,
        (1 + 3) * WEIGHTS_BYTES,
        (1 + 3 + 3) * WEIGHTS_BYTES,
    ]


def test_a_table_is_held_and_gradients_are_summed():
    rule = Adsaga(batches=10, delay=2)
    assert rule.exchange(GROUP) == AllReduce().exchange(GROUP)
    assert rule.extra_bytes(GROUP) == (10 + 1 + 2) * WEIGHTS_BYTES
    assert rule.table_bytes(WEIGHTS_BYTES) == 10 * WEIGHTS_BYTES


@pytest.mark.parametrize("rule", [MM, MC, Adsaga(10), Adsaga(10, 3)])
def test_what_a_search_adds_up_is_what_a_rule_takes(rule):
    amounts = rule.amounts(GROUP)
    assert amounts.held_bytes == rule.extra_bytes(GROUP)
    assert GROUP.network.sums_s(amounts.ring_bytes, 4) == pytest.approx(rule.exposed(GROUP).bytes_s)
    assert rule.extra_bytes(ALONE) == rule.exchange(ALONE).sent_bytes == 0


def test_their_classes():
    assert [rule.exactness for rule in (MM, MC, Adsaga(10))] == [ANY, ANY, BOUNDED]


@pytest.mark.parametrize("rule", [MM, MC, LocalSteps(2, "mm", 5, 10, skip=1), Adsaga(7), Adsaga(7, 2)])
def test_their_text_is_read_back(rule):
    assert parse_rule(rule_text(rule)) == rule


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("local(steps=2, blocks=3)", "blocks of local is 3, and rule=average knows no blocks; leave it out, or"),
        ("local(steps=2, skip=1)", "skip of local is 1, and rule=average knows no blocks"),
        ("local(steps=2, rule=mm)", "needs to know how many there are in a cycle and how many steps each takes; write"),
        ("local(steps=2, rule=mc, blocks=3)", "local(steps=2, rule=mc, blocks=5, block_steps=16)"),
        ("local(steps=2, rule=mm, blocks=1, block_steps=4)", "blocks of local is 1; it must be 2 to 10,000"),
        ("local(steps=2, rule=mm, blocks=3, block_steps=5)", "block_steps of local is 5, and the weights are averaged"),
        ("local(steps=2, rule=mm, blocks=3, block_steps=4, skip=-1)", "skip of local is -1; it must be 0 cycles"),
        ("adsaga", "adsaga needs batches; write adsaga(batches=500)"),
        ("adsaga(batches=1)", "batches of adsaga is 1; it must be 2 or more"),
        ("adsaga(batches=4, delay=4)", "delay of adsaga is 4; it must be 0 to 3 steps, fewer than there are batches"),
    ],
)
def test_numbers_that_make_no_cycle_and_no_table_are_refused(text, said):
    with pytest.raises(HeterpsError) as refused:
        parse_rule(text)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"synchronisation": rule_text(MC)}, "it computes every batch twice"),
        ({"synchronisation": f"auto({rule_text(MC)})", "allow": "any"}, "it computes every batch twice"),
        ({"synchronisation": f"auto({rule_text(MM)})", "allow": "any"}, "and rules are chosen stage by stage"),
        ({"synchronisation": f"fc=adasum, *={rule_text(MM)}"}, "has a rule of whole models, local(steps=2, rule=mm, "),
        ({"synchronisation": f"fc={rule_text(MM)}"}, "give it to all of them (--sync 'local(steps=2, rule=mm, "),
    ],
)
def test_what_no_plan_can_have_is_refused_before_anything_is_searched(asked, said):
    with pytest.raises(HeterpsError) as refused:
        make_request("USD", mode="training", min_throughput=1.0, **asked)
    assert said in str(refused.value)


def test_a_plan_can_have_predictors_and_tables():
    for rule in (MM, Adsaga(10)):
        assert make_request("USD", mode="training", min_throughput=1.0, synchronisation=rule_text(rule)).sync_rules


def test_a_stage_is_refused_what_no_plan_has(agreed_stage):
    with pytest.raises(InfeasibleError, match="batch"):
        with_rule(agreed_stage, MC, GROUP, GROUP, (StepRates(1.0, 1.0, 1.0, 1.0, 1.0),))


@pytest.fixture
def agreed_stage():
    from plans import PLAN  # noqa: PLC0415 - beside its one use

    return PLAN.stages[0]
