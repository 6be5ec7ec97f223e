"""Losses by name and weights of samples: a pipeline trains what one process does that sees the whole batch at once."""

from typing import Any

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, HandMade, data_of, engine_of, plan_of, reader
from ranks import run_ranks
from torch import Tensor
from torch.nn import functional

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.batch_loss import SharedLoss
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_group import share_names
from heterps_compile.runtime.pipeline.recorder import StepResult
from heterps_compile.runtime.pipeline.scaling import Scaling
from heterps_compile.runtime.pipeline.world import make_group

STEP = 3
SIZE = BATCH // MICRO_BATCHES
LAYOUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "one rank": ((1,), "interleaved-1f1b"),
    "1,1": ((1, 1), "1f1b"),
    "2,1": ((2, 1), "1f1b"),
    "1,2": ((1, 2), "gpipe"),
}


def two_stages() -> list[HandMade]:
    return [
        HandMade("x", "a", lambda stage, x: (torch.tanh(x @ stage.weight),)),
        HandMade("a", "y", lambda stage, a: (a @ stage.weight,)),
    ]


def each(outputs: list[Any], columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return two losses of every sample."""
    return {
        "fit": functional.mse_loss(outputs[0].sum(1), columns["label"], reduction="none"),
        "size": 0.1 * outputs[0].square().mean(1),
    }


def means(outputs: list[Any], columns: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: loss.mean() for name, loss in each(outputs, columns).items()}


def weight(columns: dict[str, Tensor]) -> Tensor:
    """Return weights between 0 and 3, of which whole micro-batches have none."""
    return (columns["ids"] * (columns["label"] > -0.2)).float()


def in_one_process(*, is_weighted: bool) -> tuple[list[float], list[Tensor]]:
    """Return the losses and the gradients of the whole batch at once, in float64."""
    stages, columns = [stage.double() for stage in two_stages()], data_of(STEP)
    columns = {name: column.double() if column.is_floating_point() else column for name, column in columns.items()}
    losses = each(list(stages[1](*stages[0](columns["x"]))), columns)
    weights = weight(columns).double() if is_weighted else torch.ones(BATCH, dtype=torch.float64)
    assert not is_weighted or weights.reshape(MICRO_BATCHES, SIZE).sum(1).eq(0).any()
    told = {name: (weights * loss).sum() / weights.sum() for name, loss in losses.items()}
    total = told["fit"] + told["size"]
    total.backward()
    return [loss.item() for loss in (total, *told.values())], [stage.weight.grad for stage in stages]


def step_of(rank: int, layout: str, loss: Any, **options: Any) -> Any:
    """Take a step; return the losses that this rank tells, the norm, and by stage the gradients that it has."""
    widths, schedule = LAYOUTS[layout]
    if rank >= sum(widths):
        return None
    stages = two_stages()
    engine = engine_of(rank, stages, "y", widths, loss, schedule, **options)
    result = engine.train_step(STEP, reader(STEP, []))
    engine.finish()
    told = [] if result.loss is None else [result.loss, *result.losses.values()]
    assert list(result.losses) == (["fit", "size"] if told else [])
    gradients = {i: stage.weight.grad for i, stage in enumerate(stages) if stage.weight.grad is not None}
    return told, result.gradient_norm, {index: gradient.tolist() for index, gradient in gradients.items()}


def refused(rank: int, loss: Any, *, first_waits: bool = False, **options: Any) -> str:
    """Return what ends a step whose last stage has two replicas, on rank 1 and 2; the first stage may end its own."""
    engine = engine_of(rank, two_stages(), "y", (1, 2), loss, "gpipe", **options)
    if rank == 0:
        if not first_waits:
            engine.train_step(STEP, reader(STEP, []))
        return ""
    with pytest.raises(RunError) as caught:
        engine.train_step(STEP, reader(STEP, []))
    return str(caught.value)


def on_ranks(rank: int) -> dict[str, Any]:
    """Run all of it in one world: to start processes takes longer than what they do."""
    found: dict[str, Any] = {}
    scaling = Scaling(scale=2.0**10)
    for name in LAYOUTS:
        found[f"{name} mean"] = step_of(rank, name, means)
        found[f"{name} weighted"] = step_of(rank, name, each, sample_weight=weight, clip_norm=1e6)
        for precision in () if name != "1,2" else ("bf16", "fp16"):
            options: dict[str, Any] = {"precision": precision, "scaling": scaling, "clip_norm": 1e6}
            found[f"{name} {precision}"] = step_of(rank, name, each, sample_weight=weight, **options)
    found["names"] = share_names(make_group(range(3)), ["a"] * rank, rank)
    layout = make_layout(plan_of(two_stages(), "y"), training=True, replicas=(1, 2), step=StepShape(schedule="gpipe"))
    shared, result = SharedLoss(layout, rank), StepResult(loss=0.5, losses={"b": 0.3, "a": 0.2})
    found["shared"] = [dict(shared.of_all(result if rank == 1 else StepResult()).losses) for _ in range(2)]
    turned = ["fit", "size"] if rank == 1 else ["size", "fit"]  # by replica of the last stage
    found["turned"] = step_of(rank, "1,2", lambda o, c: {name: means(o, c)[name] for name in turned})
    found["other"] = refused(rank, lambda o, c: {"fit" if rank == 1 else "fat": o[0].mean()})
    found["zero"] = refused(rank, each, sample_weight=lambda columns: torch.zeros(SIZE), first_waits=True)
    return found


@pytest.fixture(scope="module")
def by_rank() -> list[dict[str, Any]]:
    return run_ranks(on_ranks, 3)


@pytest.mark.parametrize("kind", ["mean", "weighted"])
def test_what_is_trained_and_told_is_that_of_one_process_whatever_the_layout(by_rank, kind):
    losses, gradients = in_one_process(is_weighted=kind == "weighted")
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    told = set()
    for layout, (widths, _) in LAYOUTS.items():
        found = [of[f"{layout} {kind}"] for of in by_rank[: sum(widths)]]
        told |= {tuple(one[0]) for one in found if one[0]}
        for _, measured, held in found:
            assert measured is None or measured == pytest.approx(float(norm), rel=1e-6)
            for index, gradient in held.items():
                torch.testing.assert_close(torch.tensor(gradient).double(), gradients[index], rtol=1e-5, atol=1e-7)
        assert {index for _, _, held in found for index in held} == {0, 1}
    assert len(told) == 1, "the losses that are told are the same bits under every layout"
    assert told.pop() == pytest.approx(losses, rel=1e-6)


@pytest.mark.parametrize(("precision", "digits"), [("bf16", 2.0**-5), ("fp16", 2.0**-8)])
def test_weights_go_with_narrow_precisions_and_with_scaled_losses(by_rank, precision, digits):
    losses, gradients = in_one_process(is_weighted=True)
    for told, _, held in (of[f"1,2 {precision}"] for of in by_rank):
        assert told == pytest.approx(losses, rel=digits) or not told
        for index, gradient in held.items():
            scale = float(gradients[index].abs().max())
            torch.testing.assert_close(torch.tensor(gradient).double(), gradients[index], rtol=0, atol=digits * scale)


def test_ranks_hear_the_names_and_values_of_the_others(by_rank):
    assert [of["names"] for of in by_rank] == [[(), ("a",), ("a", "a")]] * 3
    assert [of["shared"] for of in by_rank] == [[{"b": 0.3, "a": 0.2}] * 2] * 3


def test_replicas_have_losses_of_the_same_names_in_the_order_of_the_first(by_rank):
    told = [of["turned"][0] for of in by_rank[1:]]
    assert told[0] == told[1] == pytest.approx(in_one_process(is_weighted=False)[0], rel=1e-6)
    said = "the loss gives 'fat' on replica 1 of the last stage, and 'fit' on replica 0; give the same names for every"
    assert [said in of["other"] for of in by_rank] == [False, True, True]


def test_a_batch_without_any_weight_is_refused_on_every_rank_that_has_a_loss(by_rank):
    said = f"sample_weight() of the training file gives 0 for each of the {BATCH} samples of the step"
    assert [said in of["zero"] for of in by_rank] == [False, True, True]


def told_of(loss: Any, **options: Any) -> str:
    """Return what ends a step of one process."""
    with pytest.raises(RunError) as caught:
        engine_of(0, two_stages(), "y", (1,), loss, "interleaved-1f1b", **options).train_step(STEP, reader(STEP, []))
    return str(caught.value)


def in_turns(*losses: Any) -> Any:
    turns = iter(losses)

    def loss(outputs: Any, columns: Any) -> Any:
        return next(turns)(outputs, columns)

    return loss


WEIGHTED = {"sample_weight": weight}


@pytest.mark.parametrize(
    ("loss", "options", "said"),
    [
        (lambda o, c: {}, {}, "the loss gives an empty dict; it must have one loss or more by name"),
        (lambda o, c: {"a\x1b": o[0].mean()}, {}, r"the loss gives a dict with the name 'a\x1b'; a name has"),
        (lambda o, c: {"x" * 60: o[0].mean()}, {}, "; a name has up to 59 letters, digits"),
        (lambda o, c: {1: o[0].mean()}, {}, "the loss gives a dict with the name 1;"),
        (lambda o, c: {"a": 0.5}, {}, "the loss gives, as 'a', a float; it must be one number as a tensor"),
        (lambda o, c: {"a": o[0].mean().detach()}, {}, "the loss depends on no parameter"),
        (
            in_turns(lambda o, c: {"a": o[0].mean()}, lambda o, c: {"b": o[0].mean()}),
            {},
            "micro-batch 1 in step 3: the loss gives 'b' here, and 'a' before; give the same names for every",
        ),
        (
            in_turns(lambda o, c: o[0].mean(), lambda o, c: {"b": o[0].mean()}),
            {},
            "the loss gives 'b' here, and one number without a name before",
        ),
        (
            lambda o, c: o[0].mean(1, keepdim=True),
            WEIGHTED,
            "the loss gives a tensor of shape [2, 1] for 2 samples, and the training file has sample_weight(); it must "
            "give one value for each sample, a tensor of shape [2] (reduction='none')",
        ),
        (each, {"sample_weight": lambda c: 1.0}, "gives a float for 2 samples; it must give one number for each"),
        (each, {"sample_weight": lambda c: torch.ones(2, 1)}, "gives a tensor of shape [2, 1] for 2 samples"),
        (each, {"sample_weight": lambda c: torch.tensor([1.0, -2])}, "gives -2 for sample 1 of the step; a weight is"),
        (each, {"sample_weight": lambda c: c["x"][:, 0] / 0}, "inf for sample 0 of the step; a weight is a finite"),
        (
            each,
            {"sample_weight": lambda c: torch.full((2,), 1e-40)},
            "weights that add up to 1.2e-39 for the 12 samples",
        ),
    ],
)
def test_what_is_no_loss_or_no_weight_is_refused_by_name(loss, options, said):
    assert said in told_of(loss, **options)
