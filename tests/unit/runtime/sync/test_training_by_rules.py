"""Pipelines whose replicas agree by rules, held against loops written out by hand and PyTorch's own averager."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, HandMade, largest_relative_difference, looking_up_stages, plan_of, reader
from plain_rules import send_with_feedback
from ranks import run_ranks
from torch import Tensor
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.scaling import Scaling
from heterps_compile.runtime.sync.top_k import select_exact
from heterps_compile.sync_rules.assignment import parse_rule

pytestmark = pytest.mark.slow  # some forty trainings in three processes

STEPS = 7
RATE = 0.05
PLAIN, MOMENTUM = 0.0, 0.9
UNEQUAL = ((2.0, 1.0), (1.0,))  # four of six micro-batches, and two
THREE = ((3.0, 1.0, 2.0),)
Weights = dict[str, list[float]]


def two_stages() -> list[HandMade]:
    def first(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return (torch.tanh(x @ stage.weight) * stage.norm.weight,)

    def second(stage: HandMade, hidden: Tensor) -> tuple[Any, ...]:
        return (hidden @ stage.weight.T + stage.norm.bias,)

    return [HandMade("x", "a", first), HandMade("a", "y", second)]


def one_stage() -> list[HandMade]:
    return [HandMade("x", "y", lambda stage, x: (torch.tanh(x @ stage.weight) * stage.norm.weight + stage.norm.bias,))]


def loss_of(outputs: Sequence[Any], columns: dict[str, Tensor]) -> Tensor:
    return (outputs[0].sum(1) - columns["label"]).square().mean()


def layout_of(stages: Sequence[HandMade], speeds: Sequence[Sequence[float]]) -> Layout:
    shape = StepShape(schedule="1f1b", micro_batches=MICRO_BATCHES, batch=BATCH)
    widths = [len(of_stage) for of_stage in speeds]
    return make_layout(plan_of(stages, "y"), training=True, replicas=widths, speeds=speeds, step=shape)


class Trained:
    """One rank of a training, step by step."""

    def __init__(
        self,
        rank: int,
        stages: list[HandMade],
        speeds: Sequence[Sequence[float]],
        rules: Sequence[str],
        *,
        momentum: float = PLAIN,
        tied: bool = False,
        **options: Any,
    ) -> None:
        layout = layout_of(stages, speeds)
        own = {index: stages[index] for index in layout.stages_of(rank)}
        places = {"shared": ((0, "weight"), (1, "weight"))} if tied else {}
        asked = tuple(map(parse_rule, rules))
        self.engine = Engine(
            RankParts(plan_of(stages, "y"), layout, rank, own, tied=places), StepOptions(loss_of, sync=asked, **options)
        )
        self.named = {f"{index}.{name}": p for index, stage in own.items() for name, p in stage.named_parameters()}
        once = list({id(p): p for p in self.named.values()}.values())
        self.optimizer = torch.optim.SGD(once, lr=RATE, momentum=momentum)
        self.skipped = 0

    def step(self, step: int) -> None:
        result = self.engine.train_step(step, reader(step, []))
        shared = self.engine.shared
        assert shared is not None
        shared.before_update(step)
        if not result.is_skipped:
            self.optimizer.step()
        self.skipped += result.is_skipped
        shared.after_update(step, is_skipped=result.is_skipped)

    def weights(self) -> Weights:
        return {name: parameter.flatten().tolist() for name, parameter in self.named.items()}

    def train(self, steps: int = STEPS) -> Weights:
        for step in range(steps):
            self.step(step)
        self.engine.finish()
        return self.weights()


def trained(rank: int, make: Callable[[], list[HandMade]], speeds: Any, rules: Sequence[str], **more: Any) -> Any:
    """Return the weights of a rank after all steps; None where the layout has no such rank."""
    return Trained(rank, make(), speeds, rules, **more).train() if rank < sum(map(len, speeds)) else None


def averaged_by_torch(rank: int) -> Weights | None:
    """Train two replicas with PyTorch's averager of parameters, every three steps."""
    if rank > 1:
        return None
    import torch.distributed as dist  # noqa: PLC0415 - in the ranks alone

    pair = dist.new_group([0, 1], use_local_synchronization=True)
    (stage,) = one_stage()
    optimizer = torch.optim.SGD(stage.parameters(), lr=RATE, momentum=MOMENTUM)
    averager = PeriodicModelAverager(period=3, warmup_steps=2, process_group=pair)
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(rank, MICRO_BATCHES, 2):
            columns = dict(reader(step, [])(i, ("*",)))
            (loss_of(stage(columns["x"]), columns) / (MICRO_BATCHES / 2)).backward()
        optimizer.step()
        averager.average_parameters(stage.parameters())
    return {f"0.{name}": parameter.flatten().tolist() for name, parameter in stage.named_parameters()}


def in_agreement(rank: int) -> tuple[Weights, Weights, Weights] | None:
    """Return weights between two averages, those that all hold meanwhile, and those after that."""
    if rank > 1:
        return None
    one = Trained(rank, one_stage(), ((1.0, 1.0),), ["local(steps=3)"])
    before = one.train(4)
    assert one.engine.shared is not None
    with one.engine.shared.agreed():
        inside = one.weights()
    return before, inside, one.weights()


def overflowing(rank: int, rule: str) -> tuple[Weights, int] | None:
    """Train in float16 with a scale at which gradients overflow at first."""
    if rank > 1:
        return None
    one = Trained(rank, one_stage(), ((1.0, 1.0),), [rule], precision="fp16", scaling=Scaling(scale=2.0**20))
    return one.train(), one.skipped


def refused(rank: int, make: Callable[[], list[HandMade]], rules: Sequence[str], **more: Any) -> str:
    with pytest.raises(RunError) as caught:
        Trained(rank, make(), ((1.0, 1.0), (1.0,)), rules, **more).train()
    return str(caught.value)


def refused_sparse(rank: int) -> str:
    if rank < 2:
        return refused(rank, looking_up_stages, ["adasum", "all-reduce"])
    Trained(rank, looking_up_stages(), ((1.0, 1.0), (1.0,)), ["adasum", "all-reduce"]).step(0)
    return ""


RULES = {"all-reduce": "all-reduce", "everything": "topk(density=1)", "one step": "local(steps=1)"}
CASES: dict[str, tuple[Callable[[], list[HandMade]], Any, dict[str, Any]]] = {
    "unequal shares": (two_stages, UNEQUAL, {}),
    "three replicas": (one_stage, THREE, {}),
    "the last stage": (two_stages, ((1.0,), (1.0, 1.0)), {}),
    "sparse gradients": (looking_up_stages, UNEQUAL, {}),
    "float16": (two_stages, UNEQUAL, {"precision": "fp16"}),
}
SUMMED = {"clipped": {"clip_norm": 0.5}, "tied": {"tied": True}, "momentum": {"momentum": MOMENTUM}}


def in_group(rank: int) -> dict[str, Any]:
    """Train all of it in one world: to start processes takes longer than what they do."""
    found: dict[str, Any] = {}
    for case, (make, speeds, more) in CASES.items():
        for name, rule in RULES.items():
            found[f"{case}, {name}"] = trained(rank, make, speeds, [rule] * len(speeds), **more)
    for case, more in SUMMED.items():
        for name in ("all-reduce", "everything"):
            found[f"{case}, {name}"] = trained(rank, two_stages, UNEQUAL, [RULES[name]] * 2, **more)
    found["local"] = trained(rank, one_stage, ((1.0, 1.0),), ["local(steps=3)"], momentum=MOMENTUM)
    found["torch"] = averaged_by_torch(rank)
    found["local of three"] = trained(rank, one_stage, THREE, ["local(steps=2)"], momentum=MOMENTUM)
    found["topk of three"] = trained(rank, one_stage, THREE, ["topk(density=0.2, selection=exact)"], momentum=MOMENTUM)
    found["adasum of three"] = trained(rank, one_stage, THREE, ["adasum"])
    found["adasum of steps"] = trained(rank, one_stage, THREE, ["adasum(on=step)"])
    for name in ("adasum", "adasum(on=step)"):
        found[f"{name} with momentum"] = trained(rank, one_stage, THREE, [name], momentum=MOMENTUM)
    found["agreement"] = in_agreement(rank)
    for rule in ("topk(density=0.3)", "local(steps=2)", "adasum", "powersgd(rank=1)"):
        found[f"overflow, {rule}"] = overflowing(rank, rule)
    found["refused"] = {
        "sparse": refused_sparse(rank),
        "tied": refused(rank, two_stages, ["adasum", "adasum"], tied=True),
        "tied otherwise": refused(rank, two_stages, ["topk(density=0.5)", "all-reduce"], tied=True),
    }
    return found


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Any]]:
    return run_ranks(in_group, 3, timeout_s=60)


def merged(by_rank: list[dict[str, Any]], name: str) -> Weights:
    """Return the weights over all ranks, which must have the same bits where they hold the same."""
    weights: Weights = {}
    for of_rank in by_rank:
        assert all(weights.setdefault(key, numbers) == numbers for key, numbers in (of_rank[name] or {}).items())
    return weights


def apart(ours: Weights, theirs: Weights) -> float:
    assert ours.keys() == theirs.keys()
    return largest_relative_difference((ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rule", ["everything", "one step"])
def test_topk_of_all_entries_and_one_local_step_of_plain_sgd_are_all_reduce(by_rank, case, rule):
    limit = 3e-6 if case != "float16" else 1e-3
    assert apart(merged(by_rank, f"{case}, {rule}"), merged(by_rank, f"{case}, all-reduce")) < limit


@pytest.mark.parametrize("case", SUMMED)
def test_topk_of_all_entries_is_clipped_and_summed_over_tied_stages_as_all_reduce_is(by_rank, case):
    assert apart(merged(by_rank, f"{case}, everything"), merged(by_rank, f"{case}, all-reduce")) < 2e-6


def test_local_steps_are_those_of_the_averager_of_pytorch(by_rank):
    for of_rank in by_rank[:2]:
        assert apart(of_rank["local"], of_rank["torch"]) < 1e-6
    assert by_rank[0]["local"] != by_rank[1]["local"], "seven steps end between two averages"


def by_hand(
    speeds: Sequence[Sequence[float]], combine: Callable[[int, list[Any], list[float]], None], *, momentum: float
) -> list[Weights]:
    """Train replicas of one stage in a loop; ``combine`` gets the step, the stages with gradients, and the shares."""
    replicas = [one_stage()[0] for _ in speeds[0]]
    optimizers = [torch.optim.SGD(stage.parameters(), lr=RATE, momentum=momentum) for stage in replicas]
    (dealt,) = layout_of(one_stage(), speeds).assignment
    shares = [dealt.count(replica) / MICRO_BATCHES for replica in range(len(replicas))]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for i, replica in enumerate(dealt):
            columns = dict(reader(step, [])(i, ("*",)))
            (loss_of(replicas[replica](columns["x"]), columns) / MICRO_BATCHES).backward()
        combine(step, replicas, shares)
        for optimizer in optimizers:
            optimizer.step()
        combine(-step - 1, replicas, shares)
    return [{f"0.{name}": p.flatten().tolist() for name, p in stage.named_parameters()} for stage in replicas]


def test_local_steps_of_unequal_replicas_are_those_of_a_loop(by_rank):
    def average_every_two(step: int, replicas: list[Any], shares: list[float]) -> None:
        if step >= 0:
            for stage, share in zip(replicas, shares, strict=True):
                for parameter in stage.parameters():
                    parameter.grad /= share
        elif step % 2 == 0:  # -2, -4, -6: after an even number of steps
            with torch.no_grad():
                for same in zip(*(stage.parameters() for stage in replicas), strict=True):
                    mean = sum(share * parameter for share, parameter in zip(shares, same, strict=True))
                    for parameter in same:
                        parameter.copy_(mean)

    expected = by_hand(THREE, average_every_two, momentum=MOMENTUM)
    for of_rank, theirs in zip(by_rank, expected, strict=True):
        assert apart(of_rank["local of three"], theirs) < 2e-6


def test_topk_with_feedback_trains_as_a_loop_with_it_does(by_rank):
    residuals: list[Tensor | None] = [None] * 3

    def send(step: int, replicas: list[Any], shares: list[float]) -> None:
        if step < 0:
            return
        total = torch.zeros(24)
        for place, stage in enumerate(replicas):
            gradient = torch.cat([p.grad.flatten() for p in stage.parameters()])
            selection, residuals[place] = send_with_feedback(gradient, residuals[place], round(0.2 * 24), select_exact)
            total += selection.dense(24)
        for stage in replicas:
            sizes = [p.numel() for p in stage.parameters()]
            for parameter, part in zip(stage.parameters(), total.split(sizes), strict=True):
                parameter.grad.copy_(part.view(parameter.shape))

    (expected, *_) = by_hand(THREE, send, momentum=MOMENTUM)
    assert apart(merged(by_rank, "topk of three"), expected) < 2e-6


def test_adasum_keeps_replicas_equal_and_is_another_training(by_rank):
    ours = merged(by_rank, "adasum of three")
    assert apart(ours, merged(by_rank, "three replicas, all-reduce")) > 1e-3


def test_adasum_of_steps_is_that_of_gradients_for_plain_sgd_and_another_one_with_momentum(by_rank):
    assert apart(merged(by_rank, "adasum of steps"), merged(by_rank, "adasum of three")) < 1e-5
    with_momentum = [merged(by_rank, f"{name} with momentum") for name in ("adasum", "adasum(on=step)")]
    assert apart(*with_momentum) > 1e-3


def test_replicas_that_step_alone_hold_their_mean_in_a_block_and_their_own_after_it(by_rank):
    (before, inside, after), (before_1, inside_1, after_1) = (of_rank["agreement"] for of_rank in by_rank[:2])
    assert before != before_1
    assert inside == inside_1
    assert (after, after_1) == (before, before_1)
    mean = {name: [(a + b) / 2 for a, b in zip(before[name], before_1[name], strict=True)] for name in before}
    assert apart(inside, mean) < 1e-6


@pytest.mark.parametrize("rule", ["topk(density=0.3)", "local(steps=2)", "adasum", "powersgd(rank=1)"])
def test_a_step_that_overflows_on_one_replica_is_skipped_by_all(by_rank, rule):
    (first, skipped), (second, skipped_too) = (of_rank[f"overflow, {rule}"] for of_rank in by_rank[:2])
    assert skipped == skipped_too > 0
    assert all(torch.tensor(numbers).isfinite().all() for of_rank in (first, second) for numbers in of_rank.values())
    assert skipped < STEPS


def test_what_a_rule_cannot_do_is_refused_by_name(by_rank):
    for of_rank in by_rank[:2]:
        assert "the gradient of 'weight' is sparse, and adasum combines dense ones" in of_rank["refused"]["sparse"]
    for of_rank in by_rank:
        assert "stages 0 and 1 share the weight 'shared'" in of_rank["refused"]["tied"]
        assert "stages 0 and 1 share the weight 'shared'" in of_rank["refused"]["tied otherwise"]
