"""Clipped gradients and scheduled learning rates: a pipeline with a tied weight trains as one plain loop does."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, HandMade, largest_relative_difference, looking_up_stages, plan_of, reader
from ranks import run_ranks
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from heterps_compile.errors import RunError
from heterps_compile.runtime.launch.loop import FollowUps, StepLoop
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.recorder import Recorders

STEPS = 6
CLIP = 0.5
ONE_RANK = "one rank"
LAYOUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "1,1": ((1, 1), "1f1b"),
    "2,1": ((2, 1), "1f1b"),
    "1,2": ((1, 2), "gpipe"),
    "2,2": ((2, 2), "1f1b"),
    ONE_RANK: ((1,), "interleaved-1f1b"),
}
Trained = tuple[dict[str, list[float]], list[float]]
"""Weights by stage and name, and the norm of every step."""


def tied_stages() -> list[HandMade]:
    """Return two stages that hold one tied weight, and a parameter of its own each."""

    def first(stage: HandMade, x: Tensor) -> tuple[Any, ...]:
        return (torch.tanh(x @ stage.weight) * stage.norm.weight,)

    def second(stage: HandMade, hidden: Tensor) -> tuple[Any, ...]:
        return (hidden @ stage.weight.T + stage.norm.bias,)

    stages = [HandMade("x", "a", first), HandMade("a", "y", second)]
    assert torch.equal(stages[0].weight, stages[1].weight)
    return stages


def loss_of(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    return (outputs[0].sum(1) - columns["label"]).square().mean()


def rootless_loss(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    """Return a loss of 0 whose gradient is not finite."""
    return (outputs[0] - outputs[0].detach()).abs().sqrt().sum()


def warm_up_and_cosine(optimizer: torch.optim.Optimizer) -> LRScheduler:
    warm_up = LinearLR(optimizer, start_factor=0.1, total_iters=2)
    return SequentialLR(optimizer, [warm_up, CosineAnnealingLR(optimizer, T_max=STEPS)], milestones=[2])


class Norms(Recorders):
    """A recorder that keeps the norms."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[float | None] = []

    def step_done(self, *what: Any) -> None:
        self.told.append(what[2].gradient_norm)


def trained(
    rank: int, layout_name: str, stages: list[HandMade], *, loss: Any = loss_of, tied: bool = True, **options: Any
) -> Trained | None:
    """Train on one rank as a run does; None where the layout has no such rank."""
    widths, schedule = LAYOUTS[layout_name]
    if rank >= sum(widths):
        return None
    plan = plan_of(stages, "y")
    layout = make_layout(
        plan,
        training=True,
        replicas=widths,
        step=StepShape(schedule=schedule, micro_batches=MICRO_BATCHES, batch=BATCH),
    )
    own = {index: stages[index] for index in layout.stages_of(rank)}
    places = {"shared": ((0, "weight"), (1, "weight"))} if tied else {}
    norms = Norms()
    engine = Engine(RankParts(plan, layout, rank, own, tied=places, recorder=norms), StepOptions(loss, **options))
    parameters = list({id(p): p for index in own for p in stages[index].parameters()}.values())
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9 if tied else 0.0)
    scheduler = warm_up_and_cosine(optimizer)
    reads: Any = SimpleNamespace(of_step=lambda step: reader(step, []))
    watch: Any = SimpleNamespace(may_begin=lambda step: True)
    loop = StepLoop(engine, reads, range(STEPS), watch, ProgressRecorder())
    rates: Any = SimpleNamespace(after_step=lambda loss: scheduler.step())
    loop.train(FollowUps(optimizer=optimizer, rates=[rates]))
    engine.finish()
    weights = {f"{i}.{name}": p.flatten().tolist() for i in own for name, p in stages[i].named_parameters()}
    return weights, norms.told


def by_hand(stages: list[HandMade], *, max_norm: float, tied: bool) -> Trained:
    """Train in a plain loop, with torch's own clipping."""
    if tied:
        stages[1].weight = stages[0].weight
    parameters = list({id(p): p for stage in stages for p in stage.parameters()}.values())
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9 if tied else 0.0)
    scheduler = warm_up_and_cosine(optimizer)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for i in range(MICRO_BATCHES):
            columns = dict(reader(step, [])(i, ("*",)))
            (a,) = stages[0](columns[stages[0].inputs[0]])
            (loss_of(list(stages[1](a)), columns) / MICRO_BATCHES).backward()
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.to_dense()
        norms.append(float(nn.utils.clip_grad_norm_(parameters, max_norm)))
        optimizer.step()
        scheduler.step()
    return {f"{i}.{n}": p.flatten().tolist() for i, s in enumerate(stages) for n, p in s.named_parameters()}, norms


def refused(rank: int) -> str:
    with pytest.raises(RunError) as caught:
        trained(rank, "2,1", tied_stages(), loss=rootless_loss, clip_norm=CLIP)
    return str(caught.value)


def _everything(rank: int) -> dict[str, Any]:
    """Run all of it in one world: to start processes takes longer than what they do."""
    made: dict[str, Any] = {name: trained(rank, name, tied_stages(), clip_norm=CLIP) for name in LAYOUTS}
    made |= {f"sparse {n}": trained(rank, n, looking_up_stages(), tied=False, clip_norm=CLIP) for n in ("1,1", "2,1")}
    made["loose"] = trained(rank, "2,1", tied_stages(), clip_norm=1e9)
    made["free"] = trained(rank, "2,1", tied_stages())
    made["refused"] = refused(rank) if rank < 3 else None
    return made


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Any]]:
    return run_ranks(_everything, 4)


def merged(by_rank: list[dict[str, Any]], name: str) -> Trained:
    """Return weights and norms over all ranks, which must agree on what several of them have."""
    found = [of_rank[name] for of_rank in by_rank if of_rank[name] is not None]
    assert all(norms == found[0][1] for _, norms in found)
    weights: dict[str, list[float]] = {}
    for run, _ in found:
        assert all(weights.setdefault(key, numbers) == numbers for key, numbers in run.items())
    return weights, found[0][1]


def difference(ours: Trained, theirs: Trained) -> float:
    assert set(theirs[0]) <= set(ours[0])
    pairs = [(ours[1], theirs[1]), *((ours[0][key], theirs[0][key]) for key in theirs[0])]
    return largest_relative_difference(pairs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_clips_and_schedules_as_one_process_does(by_rank, layout):
    expected = by_hand(tied_stages(), max_norm=CLIP, tied=True)
    assert min(expected[1]) > CLIP
    ours = merged(by_rank, layout)
    assert difference(ours, expected) < 1e-6
    assert ours[0]["0.weight"] == ours[0]["1.weight"]


@pytest.mark.parametrize("layout", ["1,1", "2,1"])
def test_rows_of_a_sparse_gradient_are_summed_before_they_count(by_rank, layout):
    expected = by_hand(looking_up_stages(), max_norm=CLIP, tied=False)
    assert min(expected[1]) > CLIP
    assert difference(merged(by_rank, f"sparse {layout}"), expected) < 1e-6


def test_a_norm_below_the_limit_changes_nothing(by_rank):
    (loose, norms), (free, none) = merged(by_rank, "loose"), merged(by_rank, "free")
    assert loose == free
    assert all(math.isfinite(norm) for norm in norms)
    assert none == [None] * STEPS


def test_every_rank_refuses_a_norm_that_is_no_number(by_rank):
    for rank, of_rank in enumerate(by_rank[:3]):
        where, _, fault = of_rank["refused"].partition(": ")
        assert where.endswith(f"(rank {rank}), at the end of step 0")
        assert fault.startswith(("the norm of the gradients is inf; look at", "the norm of the gradients is nan; look"))
