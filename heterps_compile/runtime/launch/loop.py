"""The loop over steps of one rank, in training and in inference.

Left out: a step (``pipeline/engine.py``), where a run begins and how it ends (``worker.py``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from heterps_compile.errors import RunError
from heterps_compile.runtime.data.sample_source import Columns
from heterps_compile.runtime.pipeline.engine import Engine

from .checkpoint_collective import Checkpoints
from .outputs import OutputFiles
from .progress import SAVING, UPDATING, ProgressRecorder
from .training_file import in_function
from .watch import Watch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.servers.row_prefetch import Reader

Loss = Callable[[Any, Mapping[str, "Tensor"]], "Tensor"]


@dataclass(frozen=True, slots=True)
class StepLoop:
    """The steps of one rank, until the last one or until somebody asks to stop.

    Attributes:
        engine: Runs a step.
        reader: Of this rank's data; None where it reads none.
        steps: To run.
        watch: Says which step is the last.
        progress: Is told what goes on.
    """

    engine: Engine
    reader: "Reader | None"
    steps: range
    watch: Watch
    progress: ProgressRecorder

    def train(
        self,
        optimizer: "Optimizer | None",
        step_schedule: Callable[[float | None], None] | None = None,
        checkpoints: Checkpoints | None = None,
        every: int | None = None,
    ) -> int:
        """Train; a checkpoint stands at the end.

        Args:
            optimizer: Of this rank's parameters; None where it has none.
            step_schedule: Sets the learning rates of the next step, given the loss where this rank knows it; None where
                they stay.
            checkpoints: Of the run; None for none.
            every: Steps between two checkpoints; None for the one at the end alone.

        Returns:
            The steps that are done, those before this run included.
        """
        saved = done = self.steps.start
        for step in self._steps():
            result = self.engine.train_step(step, self._read(step))
            if optimizer is not None:
                with self.progress.during(UPDATING):
                    if not result.is_skipped:
                        optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    if step_schedule is not None and not result.is_skipped:
                        step_schedule(result.loss)
            done = step + 1
            if checkpoints is not None and every is not None and done % every == 0:
                with self.progress.during(SAVING):
                    checkpoints.write(done)
                saved = done
        if checkpoints is not None and saved != done:
            with self.progress.during(SAVING):
                checkpoints.write(done)
        return done

    def infer(self, files: OutputFiles | None) -> int:
        """Run the forwards; return the steps that are done.

        Args:
            files: For what they give; None where nobody wants it.
        """
        done = self.steps.start
        for step in self._steps():
            found = self.engine.infer(step, self._read(step))
            if files is not None:
                files.write(step, found)
            done = step + 1
        return done

    def _steps(self) -> Iterator[int]:
        for step in self.steps:
            if not self.watch.may_begin(step):
                return
            self.progress.begin_step(step)
            yield step

    def _read(self, step: int) -> "Callable[[int, Sequence[str]], Mapping[str, Tensor]]":
        return _read_nothing if self.reader is None else self.reader.of_step(step)


def checked_loss(loss: Loss, progress: ProgressRecorder, *, is_scaled: bool) -> Loss:
    """Return a loss that refuses what cannot be trained on, naming step and micro-batch.

    Args:
        loss: Of the training file.
        progress: Knows step and micro-batch.
        is_scaled: Whether a step whose loss is not finite is skipped, so that it is not refused.
    """

    def call(outputs: Any, batch: Mapping[str, "Tensor"]) -> "Tensor":
        with in_function("loss", loss):
            value = loss(outputs, Columns(batch))
        if not is_scaled and hasattr(value, "isfinite") and not bool(value.isfinite().all()):
            now = progress.now()
            raise RunError(
                f"the loss is {float(value.detach().sum())} in step {now.step}, micro-batch {now.micro_batch}; look at "
                f"the data of that micro-batch, lower the learning rate, or go on from an earlier checkpoint (--resume)"
            )
        return value

    return call


def _read_nothing(micro_batch: int, names: Sequence[str]) -> Mapping[str, "Tensor"]:
    return {}
