"""A pass over validation data: every sample once, and the metrics of one process to the last bit."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from torch import Tensor, nn

import heterps_compile
from heterps_compile.cost.precision import FULL
from heterps_compile.errors import RunError
from heterps_compile.plan.folder import read_folder
from heterps_compile.runtime.data.sample_source import TensorSource
from heterps_compile.runtime.launch.progress import ProgressRecorder
from heterps_compile.runtime.launch.run_options import RunOptions
from heterps_compile.runtime.launch.training_file import Training
from heterps_compile.runtime.pipeline.batch_loss import SharedLoss
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.pipeline.read_stage import read_stage
from heterps_compile.runtime.pipeline.recorder import StepResult
from heterps_compile.runtime.validation.data import ValidationData
from heterps_compile.runtime.validation.forward_pass import PassShape, ValidationPass
from heterps_compile.schedule.order import Phase

SAMPLES = 46
BATCH = 12
# replicas of the two stages (or of the one rank that has both), schedule, micro-batches
CASES: tuple[tuple[tuple[int, ...], str, int], ...] = (
    ((1,), "interleaved-1f1b", 3),
    ((2, 1), "gpipe", 3),
    ((2, 2), "1f1b", 3),
    ((1, 3), "gpipe", 6),
)


class Ranking:
    """The share of pairs of a positive and a negative that are ranked right, over all samples."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.outputs: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        self.outputs.append(outputs)
        self.labels.append(labels)

    def compute(self) -> Tensor:
        outputs, labels = torch.cat(self.outputs), torch.cat(self.labels) > 0
        return (outputs[labels][:, None] > outputs[~labels][None]).double().mean()


class Dropping(nn.Module):
    """Drops at random and keeps statistics in training, neither in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 16), nn.Tanh())
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))[:, 0]


class Reducing(Dropping):
    """Gives a mean over the batch too, which has no row for a sample."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        found = super().forward(x)
        return found, found.mean()


def dropping() -> Dropping:
    torch.manual_seed(0)
    module = Dropping()
    with torch.no_grad():
        module.layers[1].running_mean.add_(torch.arange(16) / 16)
    return module


def columns() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 8, generator=generator)
    return {"x": x, "label": (x.sum(1) + torch.randn(SAMPLES, generator=generator) > 0).float()}


def loss(outputs: Tensor, batch: Any) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(outputs, batch["label"])


def training(**more: Any) -> Training:
    ranking = Ranking()

    def metrics(outputs: Tensor, batch: Any) -> dict[str, Any]:
        ranking.update(outputs, batch["label"])
        return {"auc": ranking, "mean": outputs.mean()}

    return Training(loss=loss, optimizer=torch.optim.SGD, metrics=metrics, **more)  # type: ignore[arg-type]


def in_one_process(size: int) -> dict[str, float]:
    """Validate in a plain loop, batches of so many samples."""
    module, made = dropping().eval(), training()
    assert made.metrics is not None
    sums = {"loss": 0.0, "mean": 0.0}
    found: dict[str, Any] = {}
    with torch.no_grad():
        for first in range(0, SAMPLES, size):
            batch = {name: column[first : first + size] for name, column in columns().items()}
            outputs = module(batch["x"])
            found = dict(made.metrics(outputs, batch))
            sums["loss"] += float(loss(outputs, batch)) * len(outputs)
            sums["mean"] += float(found["mean"]) * len(outputs)
    means = {name: total / SAMPLES for name, total in sums.items()}
    return {**means, "auc": float(found["auc"].compute())}


def context_of(folder: Path, layout: Layout, rank: int, source: Any) -> Any:
    plan, _ = read_folder(folder)
    options = RunOptions(directory=str(folder), train="/train.py", data="x.tsv")
    return SimpleNamespace(
        prepared=SimpleNamespace(plan=plan, folder=folder, layout=layout, precision=FULL),
        layout=layout,
        rank=rank,
        options=options,
        spec=SimpleNamespace(validation=source, telemetry=None),
        device=torch.device("cpu"),
        progress=ProgressRecorder(),
    )


def made_pass(folder: Path, case: Any, rank: int, of: Training | None = None) -> ValidationPass | None:
    widths, schedule, micro_batches = case
    if rank >= sum(widths):
        return None
    plan, _ = read_folder(folder)
    layout = make_layout(
        plan,
        training=True,
        replicas=widths,
        step=StepShape(schedule=schedule, micro_batches=micro_batches, batch=BATCH),
    )
    source = None if of is not None and of.validation_data is not None else TensorSource(columns())
    context, used = context_of(folder, layout, rank, source), of or training()
    stages = {index: read_stage(folder, plan, index, context.device) for index in layout.stages_of(rank)}
    data = ValidationData(context, used)
    return ValidationPass(context, used, stages, data=data, size=data.size(), client=None)


def passes_of(rank: int, folder: Path) -> list[Any]:
    """Go over the data twice in every case; give both metrics, and a loss that is shared."""
    made = []
    for case in CASES:
        forwards = made_pass(folder, case, rank)
        if forwards is None:
            made.append(None)
            continue
        forwards.run(0, is_try=True)
        torch.manual_seed(7)
        before = torch.get_rng_state()
        twice = [forwards.run(done) for done in (1, 2)]
        assert torch.equal(torch.get_rng_state(), before)
        forwards.finish()
        made.append(twice)
    plan, _ = read_folder(folder)
    step = StepShape(schedule="1f1b", micro_batches=4, batch=8)
    shared = SharedLoss(make_layout(plan, training=True, replicas=(2, 2), step=step), rank)
    asked = shared.is_wanted(rank == 1), shared.is_wanted(False)
    return [
        made,
        asked,
        shared.of_all(StepResult(loss=0.1 if rank >= 2 else None)).loss,
        tried(folder) if rank == 0 else "",
        alone(folder) if rank == 0 else [],
    ]


@pytest.fixture(scope="module")
def by_rank(folder) -> list[Any]:
    return run_ranks(passes_of, 4, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("dropping") / "m.heterps"
    save(dropping(), path, stages=2)
    save(Reducing(), path.with_name("reducing.heterps"), stages=1)
    return path


def save(module: nn.Module, path: Path, *, stages: int) -> None:
    free = torch.export.Dim("batch", min=2, max=1024)
    compiled = heterps_compile.compile(
        module.train(),
        (torch.randn(4, 8),),
        dynamic_shapes=({0: free},),
        mode="training",
        method="greedy",
        min_stages=stages,
        max_stages=stages,
        min_throughput=1.0,
        verify=False,
    )
    compiled.save(path)


def test_metrics_are_those_of_one_process_and_the_same_bits_whatever_the_replicas(by_rank):
    found: dict[int, set[tuple[float, ...]]] = {}
    for place, (widths, schedule, micro_batches) in enumerate(CASES):
        stages = 2 if schedule == "interleaved-1f1b" else 1
        last = sum(widths) - widths[-1]  # the first replica of the last stage
        expected = in_one_process(BATCH // micro_batches)
        for rank, (made, *_) in enumerate(by_rank):
            if rank == last:
                first, second = made[place]
                assert first == second == pytest.approx(expected, rel=1e-6), (widths, stages)
                found.setdefault(micro_batches, set()).add(tuple(first.values()))
            else:
                assert made[place] in (None, [None, None])
    assert [len(bits) for bits in found.values()] == [1] * len(found)
    assert all(asked == (True, False) and known == 0.1 for _, asked, known, *_ in by_rank)


@given(
    widths=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    micro_batches=st.integers(4, 9),
    size=st.integers(1, 5),
    samples=st.integers(1, 80),
)
def test_every_sample_is_computed_once(widths, micro_batches, size, samples):
    assignment = tuple(tuple((i * 3) % width for i in range(micro_batches)) for width in widths)
    layout = Layout("gpipe", True, tuple(widths), 1, micro_batches, micro_batches * size, assignment)
    shape = PassShape(replace(layout, training=False), samples)
    for stage in range(len(widths)):
        seen: list[int] = []
        for rank in layout.ranks_of(stage):
            for step in shape.steps:
                count = shape.micro_batches(step)
                own = [a.micro_batch for a in shape.layout.actions(rank) if a.phase is Phase.FORWARD]
                run = [i for i in own if i < count]
                for i in run:
                    first = step * layout.batch + i * size
                    seen += range(first, first + shape.size(step, i))
        assert sorted(seen) == list(range(samples))


ALONE = ((1,), "interleaved-1f1b", 3)


def alone(folder: Path) -> list[str]:
    """Say what is refused, and where, on the one rank of a pipeline."""
    told = []

    def failing(outputs: Any, batch: Any) -> Any:
        raise ValueError("no such thing")

    once = iter([{name: column[:20] for name, column in columns().items()}])
    given = iter([20, 20, 21])

    def growing() -> list[dict[str, Tensor]]:
        count = next(given)
        return [
            {name: column[:12] for name, column in columns().items()},
            {n: c[12:count] for n, c in columns().items()},
        ]

    for used, passes in (
        (Training(loss=loss, optimizer=sgd, metrics=failing), 1),
        (Training(loss=loss, optimizer=sgd, metrics=lambda outputs, batch: {"m": batch["lable"].mean()}), 1),
        (Training(loss=loss, optimizer=sgd, prepare=lambda batch: {"y": batch["x"]}), 1),
        (Training(loss=loss, optimizer=sgd, validation_data=lambda: once), 1),
        (Training(loss=loss, optimizer=sgd, validation_data=growing), 1),
        (Training(loss=loss, optimizer=sgd, validation_data=lambda: 3), 1),  # type: ignore[arg-type,return-value]
        (Training(loss=loss, optimizer=sgd, validation_data=list), 1),
    ):
        try:
            forwards = made_pass(folder, ALONE, 0, used)
            assert forwards is not None
            for done in range(1, passes + 1):
                forwards.run(done)
        except Exception as error:  # noqa: BLE001 - what it says is looked at
            cause: BaseException = error
            while isinstance(cause, RunError) and cause.__cause__ is not None:
                cause = cause.__cause__
            told.append(" ".join([type(cause).__name__, str(cause), *getattr(cause, "__notes__", ())]))
        else:
            told.append("nothing")
    return told


def tried(folder: Path) -> str:
    """Say what a try refuses of a model with an output that has no row for a sample."""
    forwards = made_pass(folder.with_name("reducing.heterps"), ((1,), "gpipe", 3), 0)
    assert forwards is not None
    with pytest.raises(RunError) as refused:
        forwards.run(0, is_try=True)
    return str(refused.value)


def test_what_has_no_row_for_a_sample_is_refused_before_the_first_step_if_a_micro_batch_is_padded(by_rank):
    assert "with no row for each, and the last micro-batch of the 46 validation samples has 2" in by_rank[0][-2]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in parameters], lr=0.1)


def test_what_is_wrong_in_a_validation_says_that_it_was_there(by_rank):
    told = by_rank[0][-1]
    for said, expected in zip(
        told,
        (
            "ValueError no such thing in metrics() of the training file",
            "InputError the batch has no column 'lable' (it has 'x', 'label')",
            "InputError the batch lacks 'x', which the model takes; it has 'y'",
            "InputError the iterable has no items",
            "RunError validation_data() of the training file gave 21 samples, and 20 when the run began",
            "InputError validation_data() of the training file gave a int; it must give an iterable of batches",
            "InputError the iterable has no items",
        ),
        strict=True,
    ):
        assert said.startswith(expected)
    assert all("in the validation after 1 step" in said for said in told[:3])
