"""A small CTRDNN, compiled and written, and what it takes to train it; and the same training in one process."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

import heterps_compile
from heterps_compile.examples.ctrdnn import CTRDNN, ctrdnn
from heterps_compile.runtime.data.model_inputs import InputSpec
from heterps_compile.runtime.data.open_source import open_source

MICRO_BATCH, MICRO_BATCHES = 4, 4
BATCH = MICRO_BATCH * MICRO_BATCHES
FIELDS, ROWS, DENSE = 3, 50, 13
DATA = f"random:sparse<{ROWS},label=float32<2"
LEARNING_RATE, MOMENTUM = 0.05, 0.9

TRAINING_FILE = f"""
import torch
from torch.nn import functional as F

def loss(outputs, batch):
    return F.binary_cross_entropy_with_logits(outputs, batch["label"])

def optimizer(parameters):
    return torch.optim.SGD([parameter for _, parameter in parameters], lr={LEARNING_RATE}, momentum={MOMENTUM})
"""


def model() -> tuple[CTRDNN, tuple[Tensor, Tensor]]:
    return ctrdnn(batch=MICRO_BATCH, fields=FIELDS, rows=ROWS, dense=DENSE, width=4, hidden=(16, 8))


def write_ctrdnn(folder: Path, *, stages: int = 2, mode: str = "training", dense_backend: str | None = None) -> Path:
    """Compile the model into so many stages; give the folder, with ``train.py`` beside it.

    With ``dense_backend`` there are two, tables in torch and dense layers in that.
    """
    built, inputs = model()
    compiled = heterps_compile.compile(
        built,
        inputs,
        method="greedy",
        mode=mode,
        backend=None if dense_backend is None else f"cpu-core=torch,v100={dense_backend}",
        pins={} if dense_backend is None else {"embedding": "cpu-core", "linear*": "v100"},
        min_stages=stages,
        max_stages=stages,
        min_throughput=1000,
        verify=False,
    )
    (folder / "train.py").write_text(TRAINING_FILE)
    name = f"model{stages}.heterps" if dense_backend is None else f"{dense_backend}.heterps"
    compiled.save(folder / name)
    return folder / name


def samples(first: int, count: int, columns: Sequence[str] = ("sparse", "dense", "label")) -> dict[str, Tensor]:
    """Return the samples that the runs read."""
    wanted = {"sparse": InputSpec("int64", (FIELDS,)), "dense": InputSpec("float32", (DENSE,))}
    return open_source(DATA, wanted=wanted, seed=0).read(first, count, columns)


def trained_in_one_process(
    steps: int,
    *,
    clip_norm: float | None = None,
    scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    half: bool = False,
    momentum: float = MOMENTUM,
    average: AveragedModel | None = None,
) -> dict[str, Tensor]:
    """Train the whole model on the same micro-batches in order, if ``half`` in float16; give its weights."""
    torch.set_num_threads(1)
    built, _ = model()
    built.train()
    optimizer = torch.optim.SGD(built.parameters(), lr=LEARNING_RATE, momentum=momentum)
    rates = None if scheduler is None else scheduler(optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    for step in range(steps):
        optimizer.zero_grad()
        for micro_batch in range(MICRO_BATCHES):
            batch = samples(step * BATCH + micro_batch * MICRO_BATCH, MICRO_BATCH)
            with torch.autocast("cpu", torch.float16, enabled=half):
                loss = binary_cross_entropy_with_logits(built(batch["sparse"], batch["dense"]), batch["label"])
            scaler.scale(loss / MICRO_BATCHES).backward()
        scaler.unscale_(optimizer)
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(built.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
        if average is not None:
            average.update_parameters(built)
        if rates is not None:
            rates.step()
    return {name: tensor.detach() for name, tensor in built.state_dict().items()}


def weights_in(checkpoint: Path, kind: str = "weights") -> dict[str, Tensor]:
    """Return the weights of all stages of a checkpoint, or with ``ema`` their average."""
    from safetensors.torch import load_file  # noqa: PLC0415 - beside its one use

    return {k: v for file in sorted(checkpoint.glob(f"{kind}-*.safetensors")) for k, v in load_file(file).items()}


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """Return the largest difference of two models' weights relative to the scale of each tensor."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[n] - theirs[n]).abs().max() / theirs[n].abs().max().clamp(min=1e-30)) for n in theirs)
