"""What replicas do by themselves behind the last backward, in numbers that are worked out by hand."""

from dataclasses import replace

import pytest
from agreeing import GRADIENT_BYTES, agreeing, pool

from heterps_compile.cost.step_rates import OptimizerRate, StepRates
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.powersgd import PowerSGD
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, SyncRule, TensorShape
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

N = 1000
S = 4 * N
A_BYTE = StepRates(1.0, 1.0, 1.0, 1.0, 1.0)  # a second for all that is counted


def group(replicas: int, elements: int = N) -> SyncGroup:
    flat, shapes = (FlatBuffer(elements),), (TensorShape((elements // 10, 10)),)
    return SyncGroup(replicas, flat, flat, 1, shapes=shapes)


@pytest.mark.parametrize(
    ("rule", "replicas", "seconds"),
    [
        # buffers that are made zero and added to, S + 3 S, and of all but a k-th 3 S that the ring adds up
        (AllReduce(), 2, 4 * S + 3 * S / 2),
        (AllReduce(), 4, 4 * S + 3 * S * 3 / 4),
        # 6 passes, a selection of 10 entries of 8 bytes, which are taken out and packed; and put in, of every replica
        (TopK(0.01), 3, 4 * S + 6 * S + S + 10 + 10 + 4 * 80 + 3 * (3 * 80 + 10)),
        (TopK(0.01, feedback=False), 3, 4 * S + S + S + 10 + 10 + 4 * 80 + 3 * (3 * 80 + 10)),
        # means of gradients, and of every fourth step the weights copied, scaled and put back
        (LocalSteps(4), 2, 4 * S + 2 * S + 6 * S / 4 + 3 * S / 4 / 2),
        (Shadow(5, "average"), 2, 4 * S + 2 * S + 37 * S / 5 + 3 * S / 5 / 2),
        (Adasum(), 4, 4 * S + 2 * S + 7 * S * 3 / 4),
        (Adasum("step"), 2, 4 * S + 2 * S + 12 * S + 7 * S / 2),
        (Servers(), 2, 4 * S + 4 * S),
        (PowerSGD(1), 2, 4 * S + 11 * S + 3 * 4 * (100 + 10) / 2),
    ],
)
def test_the_work_of_a_rule(rule: SyncRule, replicas: int, seconds: float) -> None:
    assert A_BYTE.handling_s(rule.handling(group(replicas)), replicas) == pytest.approx(seconds)
    assert A_BYTE.handling_s(rule.handling(group(1)), 1) == 0.0  # who is alone agrees with nobody


@pytest.mark.parametrize(
    "rule", [AllReduce(), TopK(0.01), LocalSteps(4), Shadow(5), Adasum(), Servers(), PowerSGD(1)], ids=str
)
def test_the_work_of_a_rule_adds_up_over_layers(rule: SyncRule) -> None:
    halves = [A_BYTE.handling_s(rule.handling(group(3, size)), 3) for size in (400, 600)]
    if rule == PowerSGD(1):  # whose factors have rows and columns of their own
        assert sum(halves) >= A_BYTE.handling_s(rule.handling(group(3)), 3)
    else:
        assert sum(halves) == pytest.approx(A_BYTE.handling_s(rule.handling(group(3)), 3))


def test_an_optimizer_is_its_own_rate_or_the_traffic_of_its_bytes() -> None:
    rates = StepRates(10.0, 1.0, 1.0, 1.0, 1.0, (OptimizerRate("sgd", 0.5, 100.0),))
    assert rates.optimizer_s("sgd", 200.0, 0.0, 3) == 3 * 0.5 + 2.0
    assert rates.optimizer_s("adam", 200.0, 400.0, 3) == (3 * 200 + 2 * 400) / 10


def test_a_plan_has_both_behind_the_last_backward() -> None:
    """8 MiB of weights at 4 replicas; Adam moves 7 bytes a byte, an all-reduce 4 and 3/4 of 3."""
    slow = pool(memory_bytes_per_s=1e12)
    made, device = agreeing(slow), slow.device_types[0]
    [stage] = made.stages
    moved_per_s = device.memory_bytes_per_s * device.efficiency
    assert stage.replicas == 4
    assert stage.update_s == pytest.approx(7 * GRADIENT_BYTES / moved_per_s)
    assert stage.handling_s == pytest.approx((4 + 3 * 3 / 4) * GRADIENT_BYTES / moved_per_s)
    count = made.schedule.micro_batches
    whole_s = count / 4 * stage.micro_batch(count).whole_s
    assert made.schedule.step_s == pytest.approx(whole_s + stage.all_reduce_s + stage.handling_s + stage.update_s)


def test_the_optimizer_that_is_asked_for_is_in_the_step() -> None:
    [adam], [sgd] = agreeing().stages, agreeing(optimizer="sgd").stages
    assert sgd.update_s == pytest.approx(3 / 7 * adam.update_s)
    assert sgd.handling_s == adam.handling_s


def test_inference_has_neither() -> None:
    for stage in agreeing(mode="inference", min_throughput=0.0).stages:
        assert (stage.handling_s, stage.update_s) == (0.0, 0.0)


def test_a_search_and_a_plan_count_the_same() -> None:
    """The value that the search over steps found is the step of the plan that was made of it."""
    for sync in ("all-reduce", "topk(density=0.01)", "local(steps=4)", "shadow(every=5)"):
        made = agreeing(pool(memory_bytes_per_s=1e11), synchronisation=sync, objective="throughput", min_throughput=0.0)
        assert made.value == pytest.approx(made.schedule.step_s, rel=1e-9)
        assert made.bound == pytest.approx(made.value, rel=1e-9)


def test_a_slower_memory_makes_the_step_longer_by_its_part() -> None:
    slow = replace(pool().device_types[0], memory_bytes_per_s=pool().device_types[0].memory_bytes_per_s / 10)
    rates = [StepRates.of_type(device) for device in (pool().device_types[0], slow)]
    assert rates[1].moved_per_s * 10 == pytest.approx(rates[0].moved_per_s)
    assert rates[1].selected_per_s < rates[1].moved_per_s / 40  # a GPU counts all passes of a bisection
