"""Replicas that are brought together beside their training: no step is lost, and none waits."""

from datetime import timedelta
from typing import Any

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, linear_loss, linear_stage, plan_of, reader, stepped_on_all
from plain_rules import replica_gap
from ranks import run_ranks
from torch import nn

from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.recorder import Recorders, StepResult
from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync.collective import CountedGroup
from heterps_compile.runtime.sync.contract import Shared, flats_of, put
from heterps_compile.runtime.sync.shadow import BlockMomentum, Moves, Shadow
from heterps_compile.sync_rules.assignment import parse_rule

RATE = 0.5
STEPS = 6
SPEEDS = ((2.0, 1.0),)
RULES = "average", "easgd", "bmuf"
ROUNDS = 3
LENGTH = 5


def trained(rank: int, rule: str) -> tuple[list[float], list[float], bool, int]:
    """Train two unequal replicas; return their mean, a rank's own weights, whether it saw a gap, and what it sent."""
    stage = linear_stage()
    shape = StepShape(schedule="1f1b", micro_batches=MICRO_BATCHES, batch=BATCH)
    layout = make_layout(plan_of([stage], "y"), training=True, replicas=[2], speeds=SPEEDS, step=shape)
    asked = (parse_rule(f"shadow(every=1, rule={rule})"),)
    engine = Engine(
        RankParts(plan_of([stage], "y"), layout, rank, {0: stage}, tied={}), StepOptions(linear_loss, sync=asked)
    )
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE)
    shared = engine.shared
    assert shared is not None
    (shadow,) = shared.rules
    assert isinstance(shadow, Shadow)
    for step in range(STEPS):
        engine.train_step(step, reader(step, []))
        shared.before_update(step)
        optimizer.step()
        shared.after_update(step, is_skipped=False)
        if step == 0:  # both have handed over a copy
            with shadow._changed:
                shadow._changed.wait_for(lambda: shadow.gap() is not None)
    with shared.agreed():
        mean = stage.weight.flatten().tolist()
    own = stage.weight.flatten().tolist()
    state = shared.rule_state()
    assert ("centre:weight" in state, "velocity:weight" in state) == (rule != "average", rule == "bmuf")
    assert torch.equal(state["weight:weight"], stage.weight)
    engine.finish()
    measured = shared.measure()
    return mean, own, bool(measured["replica_gap"]), measured["sync_bytes"][0]


def moved(rank: int, rule: str) -> dict[str, Any]:
    """Return weights of a rank before and after every move, and the gap, without any training."""
    group = make_group((0, 1))
    parameters = {"w": nn.Parameter(torch.zeros(LENGTH))}
    moves = Moves(rule, Shared(group, rank, parameters, 0.5))
    rounds = []
    for number in range(ROUNDS):
        weights = torch.randn(LENGTH, generator=torch.Generator().manual_seed(10 * number + rank))
        put(parameters, [*flats_of({"w": nn.Parameter(weights)})])
        (move,) = moves.of(flats_of(parameters), group, group)
        rounds.append((weights.tolist(), move.tolist(), moves.gap))
    centre = moves.state().get("centre:w")
    return {"rounds": rounds, "centre": None if centre is None else centre.tolist()}


def running_ahead(rank: int) -> bool:
    """Let the first replica make many steps before the second one has made any."""
    import torch.distributed as dist  # noqa: PLC0415 - in the ranks alone

    group = make_group((0, 1))
    another = make_group((0, 1), has_thread=True)
    parameters = {"w": nn.Parameter(torch.zeros(LENGTH))}
    shared = Shared(
        CountedGroup(group, rank), rank, parameters, 0.5, more_groups=lambda: (CountedGroup(another, rank), another)
    )
    rule = Shadow(shared, parse_rule("shadow(every=1)"))
    store = dist.distributed_c10d._get_default_store()
    if rank == 1:
        store.wait(["ahead"], timedelta(seconds=60))
    for step in range(100):
        rule.before_step(step)
        rule.after_step(step, is_skipped=False)
    if rank == 0:
        was_alone = rule.gap() is None
        store.set("ahead", "")
    rule.close()
    return rank == 1 or was_alone


class Heard(Recorders):
    """Keeps what steps came to, as they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[StepResult] = []

    def step_done(self, step: int, samples: int, result: StepResult, *times_s: float) -> None:
        self.results.append(result)


def losses_of(rank: int, rule: str, *, is_ahead: bool = False) -> list[Any]:
    """Take steps with weights that stay; return whether each loss was known at once, and the losses.

    Args:
        rank: Of two.
        rule: By which they agree.
        is_ahead: Whether the first replica takes all steps but the first before the second one does.
    """
    import torch.distributed as dist  # noqa: PLC0415 - in the ranks alone

    stage, heard = linear_stage(), Heard()
    shape = StepShape(schedule="1f1b", micro_batches=MICRO_BATCHES, batch=BATCH)
    layout = make_layout(plan_of([stage], "y"), training=True, replicas=[2], speeds=SPEEDS, step=shape)
    parts = RankParts(plan_of([stage], "y"), layout, rank, {0: stage}, tied={}, recorder=heard)
    engine = Engine(parts, StepOptions(linear_loss, sync=(parse_rule(rule),)))
    store = dist.distributed_c10d._get_default_store()
    for step in range(STEPS):
        if is_ahead and rank == 1 and step == 1:
            store.wait(["losses ahead"], timedelta(seconds=60))
        engine.train_step(step, reader(step, []))
    if is_ahead and rank == 0:
        store.set("losses ahead", "")
    at_once = [result.late is None for result in heard.results]
    engine.finish()
    losses = [result.with_losses().loss for result in heard.results]
    return [at_once, losses, [late.are_known for result in heard.results if (late := result.late) is not None]]


LOSSES = {
    "all-reduce": ("all-reduce", False),
    "shadow": ("shadow(every=4)", True),
    "shadow in every step": ("shadow(every=1)", False),
    "local": ("local(steps=100)", False),
}


def in_group(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {rule: (trained(rank, rule), moved(rank, rule)) for rule in RULES}
    losses = {name: losses_of(rank, rule, is_ahead=is_ahead) for name, (rule, is_ahead) in LOSSES.items()}
    return found | {"ahead": running_ahead(rank), "losses": losses}


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Any]]:
    return run_ranks(in_group, 2, timeout_s=60)


def test_averaging_beside_the_training_loses_no_step_whenever_it_comes(by_rank):
    """Moves to the mean add up to nothing, so the mean of the weights has all steps on it, as with all-reduce."""
    expected = stepped_on_all(STEPS, RATE)
    for of_rank in by_rank:
        assert torch.allclose(torch.tensor(of_rank["average"][0][0]).view(4, 4), expected, atol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_replicas_have_one_mean_and_differ_and_say_how_much_they_sent(by_rank, rule):
    (mean, own, saw, sent), (mean_1, own_1, saw_1, sent_1) = (of_rank[rule][0] for of_rank in by_rank)
    assert mean == mean_1
    assert torch.isfinite(torch.tensor(own + own_1)).all()
    assert saw
    assert saw_1
    size_bytes = 4 * (16 + 8)  # weight, and both tensors of the norm
    assert sent == sent_1
    assert sent % size_bytes == 0  # 2 (k - 1) / k S in every sum, with k = 2
    assert sent >= 2 * size_bytes, "one sum beside the training, and the one for the mean"


def test_a_replica_that_runs_ahead_waits_for_nobody(by_rank):
    assert [of_rank["ahead"] for of_rank in by_rank] == [True, True]


def test_moves_are_those_of_the_rules(by_rank):
    both = [of_rank["average"][1]["rounds"] for of_rank in by_rank]
    for (one, move, gap), (other, move_1, gap_1) in zip(*both, strict=True):
        weights, moves = torch.tensor([one, other]), torch.tensor([move, move_1])
        assert torch.allclose(weights + moves, weights.mean(0).expand(2, LENGTH), atol=1e-6)
        assert gap == gap_1 == pytest.approx(replica_gap(list(weights)), rel=1e-6)


def test_elastic_moves_keep_the_sum_of_replicas_and_centre(by_rank):
    both = [of_rank["easgd"][1] for of_rank in by_rank]
    first = torch.tensor([found["rounds"][0][0] for found in both])
    total = first.mean(0)  # where the centre begins
    for one, other in zip(*(found["rounds"] for found in both), strict=True):
        total -= torch.tensor(one[1]) + torch.tensor(other[1])
    assert torch.allclose(torch.tensor(both[0]["centre"]), total, atol=1e-5)
    assert both[0]["centre"] == both[1]["centre"]


def test_block_momentum_goes_on_in_the_direction_of_the_last_blocks(by_rank):
    both = [of_rank["bmuf"][1]["rounds"] for of_rank in by_rank]
    block = None
    for (one, move, _), (other, move_1, _) in zip(*both, strict=True):
        mean = (torch.tensor(one) + torch.tensor(other)) / 2
        block = (BlockMomentum.beginning(mean) if block is None else block).after_block(mean, 0.5)
        for weights, moved_by in ((one, move), (other, move_1)):
            assert torch.allclose(torch.tensor(weights) + torch.tensor(moved_by), block.weights, atol=1e-6)


def test_steps_of_replicas_that_step_alone_do_not_wait_for_their_losses(by_rank):
    """The first replica takes five steps before the second one does; all losses are there in the end, to the bit."""
    expected = by_rank[0]["losses"]["all-reduce"][1]
    assert len(set(expected)) == STEPS
    for of_rank in by_rank:
        assert of_rank["losses"]["all-reduce"][0] == [True] * STEPS
        for name in list(LOSSES)[1:]:
            at_once, losses, known = of_rank["losses"][name]
            assert (at_once, losses, known) == ([False] * STEPS, expected, [True] * STEPS)
