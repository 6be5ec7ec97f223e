"""Automatic mixed precision: stages train as the whole model does under torch.autocast and torch.amp.GradScaler."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hand_made import BATCH, MICRO_BATCHES, HandMade, plan_of, reader
from ranks import run_ranks
from torch import Tensor, nn
from torch.nn import functional

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.runtime.launch.loop import FollowUps, StepLoop
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.pipeline.autocast import Autocast
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.loss_scale import LossScale
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.recorder import Recorders, StepResult
from heterps_compile.runtime.pipeline.scaling import Scaling

STEPS = 7
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LAYOUTS: dict[str, tuple[tuple[int, ...], str]] = {
    "one rank": ((1,), "interleaved-1f1b"),
    "1,1": ((1, 1), "1f1b"),
    "2,1": ((2, 1), "1f1b"),
    "1,2": ((1, 2), "gpipe"),
}
SCALING = Scaling(scale=2.0**17, growth_interval=2)
POISONED = 4
"""The step in which a sample of one micro-batch is too large for float16's gradients."""


class Seen(Recorders):
    """Keeps what steps came to."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[StepResult] = []

    def step_done(self, step: int, samples: int, result: StepResult, *times_s: float) -> None:
        self.results.append(result)


def cut_at_a_float32_value(seen: list[tuple[torch.dtype, ...]]) -> list[HandMade]:
    """Return two stages, the cut after a sum with a float32: it is float32 too, and three products read it.

    A value in the narrow dtype goes over the cut as well, and a whole number.
    """

    def first(stage: HandMade, x: Tensor, ids: Tensor) -> tuple[Any, ...]:
        looked_up = functional.embedding(ids, stage.weight)
        product = functional.linear(x, stage.weight) + looked_up.to(x.dtype)
        narrow = functional.linear(stage.norm(product), stage.weight.T)
        return functional.layer_norm(narrow + x, (4,)), narrow, ids

    def second(stage: HandMade, normal: Tensor, narrow: Tensor, ids: Tensor) -> tuple[Any, ...]:
        seen.append((normal.dtype, narrow.dtype, ids.dtype))
        queries = functional.linear(normal, stage.weight)
        keys = normal @ (stage.weight * 2)
        values = normal @ stage.weight.T
        return (functional.softmax(queries * keys, -1) * values + narrow * stage.norm.bias,)

    return [HandMade("x ids", "normal narrow same", first), HandMade("normal narrow same", "y", second)]


def loss_of(outputs: list[Any], columns: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(outputs[0].sum(1), columns["label"]) * columns["importance"]


def read(precision: str, step: int) -> Any:
    """Read a step's data; with fp16 one micro-batch of a step has a weight that is too large for it."""

    def call(micro_batch: int, names: Any) -> Any:
        columns = dict(reader(step, [])(micro_batch, names))
        is_poisoned = precision == "fp16" and step == POISONED and micro_batch == 1
        return (
            columns | {"importance": torch.tensor(1e30 if is_poisoned else 1.0)} if tuple(names) == ("*",) else columns
        )

    return call


def optimizer_of(stages: list[HandMade]) -> Any:
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)


Trained = tuple[dict[str, list[float]], list[tuple[float | None, float | None, bool]], float, Any]
"""Weights and statistics, what the steps came to, the learning rate at the end, dtypes that the second stage saw."""


def by_hand(precision: str, *, clip: float | None) -> Trained:
    """Train the whole in a plain loop of PyTorch, on the same micro-batches."""
    seen: list[tuple[torch.dtype, ...]] = []
    stages = cut_at_a_float32_value(seen)
    optimizer, scheduler = optimizer_of(stages)
    scaler = torch.amp.GradScaler(
        "cpu", SCALING.scale, growth_interval=SCALING.growth_interval, enabled=precision == "fp16"
    )
    told = []
    for step in range(STEPS):
        optimizer.zero_grad()
        total = 0.0
        for i in range(MICRO_BATCHES):
            columns = read(precision, step)(i, ("*",))
            with torch.autocast("cpu", DTYPES[precision], enabled=precision != "fp32"):
                values = stages[0](columns["x"], columns["ids"])
                loss = loss_of(list(stages[1](*values)), columns)
            scaler.scale(loss / MICRO_BATCHES).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = None
        if clip is not None:
            norm = float(nn.utils.clip_grad_norm_([p for s in stages for p in s.parameters()], clip))
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        is_skipped = precision == "fp16" and scaler.get_scale() < scale
        if not is_skipped:
            scheduler.step()
        told.append((total / MICRO_BATCHES, None if is_skipped else norm, is_skipped))
    return _state(stages), told, optimizer.param_groups[0]["lr"], set(seen)


def _state(stages: list[HandMade]) -> dict[str, list[float]]:
    return {
        f"{index}.{name}": tensor.flatten().tolist()
        for index, stage in enumerate(stages)
        for name, tensor in stage.state_dict().items()
    }


def trained(rank: int, layout_name: str, precision: str, **options: Any) -> Trained | None:
    """Train on one rank as a run does."""
    widths, schedule = LAYOUTS[layout_name]
    if rank >= sum(widths):
        return None
    seen: list[tuple[torch.dtype, ...]] = []
    stages = cut_at_a_float32_value(seen)
    plan, recorder = plan_of(stages, "y"), Seen()
    layout = make_layout(
        plan,
        training=True,
        replicas=widths,
        step=StepShape(schedule=schedule, micro_batches=MICRO_BATCHES, batch=BATCH),
    )
    own = {index: stages[index] for index in layout.stages_of(rank)}
    engine = Engine(
        RankParts(plan, layout, rank, own, tied={}, recorder=recorder),
        StepOptions(loss_of, precision=precision, scaling=SCALING, **options),
    )
    optimizer, scheduler = optimizer_of(list(own.values()))
    reads: Any = SimpleNamespace(of_step=partial(read, precision))
    watch: Any = SimpleNamespace(may_begin=lambda step: True)
    loop = StepLoop(engine, reads, range(STEPS), watch, ProgressRecorder())
    rates: Any = SimpleNamespace(after_step=lambda loss: scheduler.step())
    loop.train(FollowUps(optimizer=optimizer, rates=[rates]))
    engine.finish()
    told = [(one.loss, one.gradient_norm, one.is_skipped) for one in recorder.results]
    state = {f"{i}.{name}": t.flatten().tolist() for i, s in own.items() for name, t in s.state_dict().items()}
    return state, told, optimizer.param_groups[0]["lr"], set(seen)


def compare(found: Trained, whole: Trained, tolerance: float) -> None:
    """Hold weights to the whole model's, relative to their largest, and all that is exact to be equal."""
    assert [step[2] for step in found[1]] == [step[2] for step in whole[1]], "the same steps are skipped"
    assert found[2] == whole[2], "the schedule stands where it should"
    for ours, theirs in zip(found[1], whole[1], strict=True):
        for mine, other in zip(ours[:2], theirs[:2], strict=True):
            assert mine is None or mine == pytest.approx(other, rel=max(tolerance, 1e-5), nan_ok=True)
    for name, values in found[0].items():
        other = torch.tensor(whole[0][name])
        assert float((torch.tensor(values) - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max())), name


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_stages_on_one_rank_have_the_bits_of_the_whole_model_under_autocast(precision, clip):
    found = trained(0, "one rank", precision, clip_norm=clip)
    whole = by_hand(precision, clip=clip)
    assert found is not None
    # without a norm, which torch sums in float32, not a bit differs: the float32 value at the cut is read three times
    compare(found, whole, 0.0 if clip is None else 1e-6)
    narrow = DTYPES[precision]
    assert found[3] == whole[3] == {(torch.float32, narrow, torch.int64)}
    assert [step[2] for step in whole[1]].count(True) == (0 if precision != "fp16" else 2)


AGREED = "agreed"


def _on_ranks(rank: int) -> dict[str, Any]:
    found = {
        f"{name} {precision} {clip}": trained(rank, name, precision, clip_norm=clip)
        for name in list(LAYOUTS)[1:]
        for precision, clip in (("bf16", None), ("fp16", None), ("fp16", 0.5))
    }
    agreed = [_agreed(rank, overflows_on) for overflows_on in (1, None)]
    return found | {AGREED: agreed}


def _agreed(rank: int, overflows_on: int | None) -> bool:
    """Tell what a rank hears of gradients that are not finite on one of three."""
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = torch.tensor([1.0, float("inf") if rank == overflows_on else 1.0])
    scale = LossScale(Scaling(), [parameter], 3)
    return scale.start_agreeing(scale.unscale()).is_finite()


def test_ranks_skip_the_same_steps_and_end_where_one_process_does():
    by_rank = run_ranks(_on_ranks, 3)
    assert [of.pop(AGREED) for of in by_rank] == [[False, True]] * 3, "what one rank finds, all know"
    for case in by_rank[0]:
        name, precision, clip = case.split()
        found = [of[case] for of in by_rank if of[case] is not None]
        assert len(found) == sum(LAYOUTS[name][0])
        # replicas add their gradients up in another order, and a float32 that differs by a bit may be rounded to
        # another number of 8 bits (bf16) or 11 (fp16): a few of these after seven steps
        tolerance = 4 * torch.finfo(DTYPES[precision]).eps
        for one in found:
            compare(one, by_hand(precision, clip=None if clip == "None" else float(clip)), tolerance)


def test_a_scale_moves_as_that_of_torch():
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    state = Scaling(scale=2.0**10, growth_interval=3)
    parameter = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([parameter], 0.1)
    for is_finite in (True, True, True, False, True, True, False, False, True, True, True, True):
        scaler.scale(parameter.sum()).backward()
        assert parameter.grad is not None
        parameter.grad.fill_(1.0 if is_finite else float("nan"))
        scaler.step(optimizer)
        scaler.update()
        state = state.after(is_finite=is_finite)
        known = scaler.state_dict()
        assert (state.scale, state.growth_tracker) == (known["scale"], known["_growth_tracker"])
    assert state.skipped == 3
    assert Scaling().scale == torch.amp.GradScaler("cpu").get_scale()
    largest = Scaling(scale=2.0**127, growth_interval=1)
    assert largest.after(is_finite=True).scale == 2.0**127, "no scale that float32 does not have"


def test_a_scale_that_falls_for_ever_ends_the_run():
    scale = LossScale(Scaling(scale=2.0**-24), [nn.Parameter(torch.zeros(1))], 1)
    with pytest.raises(RunError, match=r"\b1\b"):
        scale.update(is_finite=False)


def test_sparse_gradients_are_scaled_back_too():
    table = nn.Parameter(torch.ones(4, 2))
    functional.embedding(torch.tensor([1, 1, 3]), table, sparse=True).sum().backward()
    scale = LossScale(Scaling(scale=4.0), [table], 1)
    assert not scale.unscale().item()
    assert table.grad is not None
    assert table.grad.to_dense().tolist() == [[0, 0], [0.5, 0.5], [0, 0], [0.25, 0.25]]
    table.grad.coalesce().values()[0, 0] = float("inf")
    assert scale.unscale().item()


def test_what_cannot_be_is_refused():
    with pytest.raises(UnknownNameError, match="'fp8'"):
        Engine(SimpleNamespace(device=torch.device("cpu")), StepOptions(precision="fp8"))  # type: ignore[arg-type]
    with pytest.raises(RunError, match="float16"):
        LossScale(Scaling(), [nn.Parameter(torch.zeros(1, dtype=torch.float16))], 1)
    with pytest.raises(RunError, match="loss"):
        replace(SCALING, scale=float("nan"))


def test_tf32_is_products_of_float32_values_on_cuda_alone(monkeypatch):
    """No autocast: values stay float32, and PyTorch is told to multiply them in TF32 where there are such cores."""
    taken = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", taken.append)
    for kind in ("cpu", "cuda"):
        autocast = Autocast("tf32", torch.device(kind))
        assert not autocast.narrows
    assert taken == ["high"]


def test_a_dtype_without_autocast_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: False)
    with pytest.raises(RunError, match="bfloat16"):
        Engine(SimpleNamespace(device=torch.device("cpu")), StepOptions(precision="bf16"))  # type: ignore[arg-type]
