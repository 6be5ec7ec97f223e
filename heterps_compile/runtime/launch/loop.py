"""The loop over steps of one rank, in training and in inference.

Left out: a step (``pipeline/engine.py``), where a run begins and how it ends (``worker.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.runtime.data.sample_source import Columns
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import Layout

from .checkpoint_collective import Checkpoints
from .outputs import write_outputs
from .progress import SAVING, UPDATING, ProgressRecorder
from .training_file import in_function
from .watch import Watch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.servers.row_prefetch import Reader

Loss = Callable[[Any, Mapping[str, "Tensor"]], "Tensor"]


def train(
    engine: Engine,
    optimizer: "Optimizer | None",
    reader: "Reader | None",
    steps: range,
    *,
    step_schedule: Callable[[float | None], None] | None = None,
    watch: Watch,
    progress: ProgressRecorder,
    checkpoints: Checkpoints | None,
    every: int | None = None,
) -> int:
    """Train until the last step, or until somebody asks to stop; a checkpoint stands at the end.

    Args:
        engine: Of this rank.
        optimizer: Of its parameters; None where it has none.
        reader: Of its data; None where it reads none.
        steps: To run.
        step_schedule: Sets the learning rates of the next step, given the loss where this rank knows it; None where
            they stay.
        watch: Says which step is the last.
        progress: Is told what goes on.
        checkpoints: Of the run; None for none.
        every: Steps between two checkpoints; None for the one at the end alone.

    Returns:
        The steps that are done, those before this run included.
    """
    saved = done = steps.start
    for step in steps:
        if not watch.may_begin(step):
            break
        progress.begin_step(step)
        loss = engine.train_step(step, _read_nothing if reader is None else reader.of_step(step))
        if optimizer is not None:
            with progress.during(UPDATING):
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if step_schedule is not None:
                    step_schedule(loss)
        done = step + 1
        if checkpoints is not None and every is not None and done % every == 0:
            with progress.during(SAVING):
                checkpoints.write(done)
            saved = done
    if checkpoints is not None and saved != done:
        with progress.during(SAVING):
            checkpoints.write(done)
    return done


def infer(
    engine: Engine,
    reader: "Reader | None",
    steps: range,
    *,
    layout: Layout,
    watch: Watch,
    progress: ProgressRecorder,
    names: Sequence[str],
    folder: Path | None,
    file_format: str,
    samples: int,
) -> int:
    """Run the forwards of all steps, or until somebody asks to stop; keep what they give.

    Args:
        engine: Of this rank.
        reader: Of its data; None where it reads none.
        steps: To run.
        layout: Says which samples a micro-batch has.
        watch: Says which step is the last.
        progress: Is told what goes on.
        names: Of the graph outputs, in order.
        folder: For the outputs; None where nobody wants them.
        file_format: Of these files.
        samples: In all; what is given for others, which fill the last step up, is dropped.

    Returns:
        The steps that are done.
    """
    done = steps.start
    for step in steps:
        if not watch.may_begin(step):
            break
        progress.begin_step(step)
        found = engine.infer(step, _read_nothing if reader is None else reader.of_step(step))
        if folder is not None:
            for micro_batch, values in found.items():
                first = step * layout.batch + micro_batch * layout.micro_batch_size
                count = min(layout.micro_batch_size, samples - first)
                if count > 0:
                    write_outputs(folder, file_format, first, names, _first_of(values, count, layout.micro_batch_size))
        done = step + 1
    return done


def checked_loss(loss: Loss, progress: ProgressRecorder) -> Loss:
    """Return a loss that refuses what cannot be trained on, naming step and micro-batch."""

    def call(outputs: Any, batch: Mapping[str, "Tensor"]) -> "Tensor":
        with in_function("loss", loss):
            value = loss(outputs, Columns(batch))
        if hasattr(value, "isfinite") and not bool(value.isfinite().all()):
            now = progress.now()
            raise RunError(
                f"the loss is {float(value.detach().sum())} in step {now.step}, micro-batch {now.micro_batch}; look at "
                f"the data of that micro-batch, lower the learning rate, or go on from an earlier checkpoint (--resume)"
            )
        return value

    return call


def _read_nothing(micro_batch: int, names: Sequence[str]) -> Mapping[str, "Tensor"]:
    return {}


def _first_of(values: Mapping[str, Any], count: int, size: int) -> Mapping[str, Any]:
    """Return the outputs of the first samples of a micro-batch; what is no row for every sample stays whole."""
    if count == size:
        return values
    return {name: v[:count] if getattr(v, "shape", ())[:1] == (size,) else v for name, v in values.items()}
