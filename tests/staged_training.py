"""Train a model in one process and as a pipeline, and say how far apart the two end."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from ranks import run_ranks
from safetensors.torch import load_file, save_file
from torch import Tensor
from trained_models import TRAINED, as_dtype, compile_trained

from heterps_compile.plan.folder import read_folder
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied

Run = tuple[list[float], dict[str, Tensor]]
"""The loss of every step, and the model's state at the end."""

MICRO_BATCHES = 5
STEPS = 5


def batch_of(name: str, step: int, micro_batches: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the columns of one step; data differ from step to step."""
    trained = TRAINED[name]
    samples = trained.micro_batch * micro_batches
    columns = as_dtype(trained.columns(samples * STEPS), dtype)
    return {column: value[step * samples : (step + 1) * samples] for column, value in columns.items()}


def train_whole(
    name: str, *, micro_batches: int = MICRO_BATCHES, dtype: torch.dtype = torch.float32, disturbed: float = 0.0
) -> Run:
    """Train the unsplit model: micro-batches in order, gradients added up.

    ``disturbed`` changes every weight by that share of it first: how far that carries says how far rounding does.
    """
    trained = TRAINED[name]
    module = trained.build().to(dtype).train()
    if disturbed:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1 + disturbed * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    optimizer = trained.optimizer(list(module.named_parameters()))
    losses = []
    for step in range(STEPS):
        columns = batch_of(name, step, micro_batches, dtype)
        optimizer.zero_grad()
        total = 0.0
        for i in range(micro_batches):
            part = part_of(columns, i, trained.micro_batch)
            loss = trained.loss(module(**{column: part[column] for column in trained.inputs}), part)
            (loss / micro_batches).backward()
            total += float(loss.detach())
        optimizer.step()
        losses.append(total / micro_batches)
    return losses, {key: value.detach().clone() for key, value in module.state_dict().items()}


def part_of(columns: Mapping[str, Tensor], micro_batch: int, size: int) -> dict[str, Tensor]:
    return {column: value[micro_batch * size : (micro_batch + 1) * size] for column, value in columns.items()}


@dataclass(frozen=True)
class Case:
    """A pipeline to train: a model, the folder it was compiled to, and how the folder is run."""

    name: str
    folder: Path
    widths: tuple[int, ...]
    schedule: str
    micro_batches: int = MICRO_BATCHES
    dtype: torch.dtype = torch.float32
    wire: str = "float32"
    speeds: tuple[tuple[float, ...], ...] | None = None
    recompute: bool = False


def train_staged(cases: Sequence[Case], *, timeout_s: float = 180.0) -> list[Run]:
    """Train written folders with one process a replica; all of them in the same processes, one after the other."""
    world_size = max(sum(case.widths) for case in cases)
    with tempfile.TemporaryDirectory() as results:
        losses = run_ranks(_train_rank, world_size, tuple(cases), Path(results), timeout_s=timeout_s)
        return [
            _run(place, case, [of_rank[place] for of_rank in losses], Path(results)) for place, case in enumerate(cases)
        ]


def _run(place: int, case: Case, losses: Sequence[Sequence[float]], results: Path) -> Run:
    state: dict[str, Tensor] = {}
    for rank in range(sum(case.widths)):
        for key, value in load_file(results / f"{place}-{rank}.safetensors").items():
            assert key not in state or torch.equal(state[key], value), f"{case}: rank {rank} has another {key}"
            state[key] = value
    told = {tuple(of_rank) for of_rank in losses if of_rank}
    assert len(told) == 1, f"{case}: the ranks of the last stage tell different losses: {told}"
    return list(told.pop()), state


def _train_rank(rank: int, cases: Sequence[Case], results: Path) -> list[list[float]]:
    return [_train_case(rank, place, case, results) for place, case in enumerate(cases)]


def _train_case(rank: int, place: int, case: Case, results: Path) -> list[float]:
    if rank >= sum(case.widths):
        return []
    trained = TRAINED[case.name]
    plan, _ = read_folder(case.folder)
    plan = replace(plan, stages=tuple(replace(stage, recompute=case.recompute) for stage in plan.stages))
    layout = make_layout(
        plan,
        training=True,
        replicas=case.widths,
        speeds=case.speeds,
        step=StepShape(
            schedule=case.schedule, micro_batches=case.micro_batches, batch=trained.micro_batch * case.micro_batches
        ),
    )
    stages = {index: read_stage(case.folder, plan, index, torch.device("cpu")) for index in layout.stages_of(rank)}
    tied = read_tied(case.folder, plan)
    engine = Engine(
        RankParts(plan, layout, rank, stages, tied=tied),
        StepOptions(loss=trained.loss, wire=case.wire),
    )
    parameters = engine.named_parameters()
    optimizer = trained.optimizer(list(parameters.items())) if parameters else None
    losses = []
    for step in range(STEPS):
        columns = batch_of(case.name, step, case.micro_batches, case.dtype)
        loss = engine.train_step(step, reader(columns, trained.micro_batch)).loss
        if optimizer is not None:
            optimizer.step()
        losses += [] if loss is None else [loss]
    engine.finish()
    state = {**parameters, **engine.named_buffers()}
    copies = {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    save_file(copies, results / f"{place}-{rank}.safetensors")
    return losses


def reader(columns: Mapping[str, Tensor], size: int) -> Callable[[int, Sequence[str]], Mapping[str, Tensor]]:
    def read(micro_batch: int, names: Sequence[str]) -> Mapping[str, Tensor]:
        part = part_of(columns, micro_batch, size)
        return part if tuple(names) == ("*",) else {name: part[name] for name in names}

    return read


def differences(staged: Run, whole: Run) -> tuple[float, float, float]:
    """Return the largest differences of a loss, a weight and a buffer, relative to the scale of each.

    Counters must be equal, and every tensor of the state that was trained must be there.
    """
    losses = max(abs(a - b) / abs(b) for a, b in zip(staged[0], whole[0], strict=True))
    weights = buffers = 0.0
    for key, ours in staged[1].items():
        theirs = whole[1][key]
        if not theirs.is_floating_point():
            assert torch.equal(ours, theirs), key
            continue
        difference = float((ours - theirs).abs().max() / theirs.abs().max().clamp_min(1e-30))
        if "running_" in key:
            buffers = max(buffers, difference)
        else:
            weights = max(weights, difference)
    return losses, weights, buffers


def stage_count(widths: Sequence[int], schedule: str) -> int:
    """Return the stages that a pipeline of these widths takes."""
    return len(widths) * (2 if schedule == "interleaved-1f1b" else 1)


class Folders:
    """Compiles each model to each number of stages once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: set[Path] = set()

    def __call__(self, name: str, stages: int, dtype: torch.dtype = torch.float32, mix: Sequence[str] = ()) -> Path:
        folder = self.root / "-".join([name, str(stages), str(dtype).removeprefix("torch."), *mix])
        if folder not in self._made:
            compile_trained(name, stages, folder, dtype=dtype, mix=mix)
            self._made.add(folder)
        return folder
