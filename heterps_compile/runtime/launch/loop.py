"""The loop over steps of one rank, in training and in inference.

Left out: a step (``pipeline/engine.py``), where a run begins and how it ends (``worker.py``).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from heterps_compile.runtime.checkpoint.collective import Checkpoints
from heterps_compile.runtime.pipeline.batch_loss import SharedLoss
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.rank_parts import SampleWeight
from heterps_compile.runtime.pipeline.recorder import StepResult, numbers_of
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder
from heterps_compile.runtime.validation.best import BEFORE_ANY, Standing
from heterps_compile.runtime.validation.result import Validation

from .hooks import Hooks
from .learning_rates import Rates, current_rates
from .outputs import OutputFiles
from .progress import READING, SAVING, UPDATING, ProgressRecorder
from .run_view import RunView
from .training_file import Training, weight_of
from .watch import Watch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.pipeline.rank_parts import ReadMicroBatch as Reading
    from heterps_compile.runtime.servers.row_prefetch import Reader
    from heterps_compile.runtime.validation.validator import Validator

    from .block_steps import BlockSteps, TakeStep
    from .weight_average import WeightAverage


@dataclass(frozen=True, slots=True)
class FollowUps:
    """What follows a training step on one rank; None for what does not.

    Attributes:
        optimizer: Of this rank's parameters.
        rates: Set its learning rates, and those of tables on servers.
        shared_loss: Brings the losses of a step to all ranks.
        validator: Of the run.
        tell: Is told of every validation.
        checkpoints: Of the run.
        every: Steps between two of them; None for the one at the end, and those of the best validations.
        average: Of the weights; validations are of it.
        hooks: Of the training file, on the rank that calls them.
        blocks: Steps on data that come in blocks, and their predictors, of which validations are.
        epoch_samples: In an epoch; None where the data have no end.
        batch: Samples in a step.
    """

    optimizer: "Optimizer | None" = None
    rates: Sequence[Rates] = ()
    shared_loss: SharedLoss | None = None
    validator: "Validator | None" = None
    tell: Callable[[Validation, Standing], None] | None = None
    checkpoints: Checkpoints | None = None
    every: int | None = None
    average: "WeightAverage | None" = None
    hooks: Hooks | None = None
    blocks: "BlockSteps | None" = None
    epoch_samples: int | None = None
    batch: int = 0

    @property
    def standing(self) -> Standing:
        """Return where the run stands among its validations."""
        return BEFORE_ANY if self.validator is None else self.validator.standing

    @property
    def is_over(self) -> bool:
        """Tell whether validations have ended the run."""
        return self.validator is not None and self.validator.is_over

    def view(self, done: int, validation: Validation | None, taken: StepResult | None = None) -> RunView:
        """Return what hooks see after so many steps, of the last of them and of its validation, where there was one."""
        samples = done * self.batch
        return RunView(
            step=done,
            samples=samples,
            epoch=None if self.epoch_samples is None else samples / self.epoch_samples,
            metrics=MappingProxyType({} if validation is None else dict(validation.metrics)),
            is_best=validation is not None and validation.is_best,
            best=self.standing.best,
            learning_rates=current_rates(self.optimizer),
            validation_s=0.0 if validation is None else validation.time_s,
            **({} if taken is None else {"step_s": taken.step_s, **numbers_of(taken)}),
        )


@dataclass(frozen=True, slots=True)
class StepLoop:
    """The steps of one rank, until the last one or until somebody asks to stop.

    Attributes:
        engine: Runs a step.
        reader: Of this rank's data; None where it reads none.
        steps: To run.
        watch: Says which step is the last.
        progress: Is told what goes on.
        telemetry: Is told what lies between two steps; None where nobody is.
    """

    engine: Engine
    reader: "Reader | None"
    steps: range
    watch: Watch
    progress: ProgressRecorder
    telemetry: TelemetryRecorder | None = None

    def train(self, then: FollowUps) -> int:
        """Train; a checkpoint stands at the end.

        Args:
            then: What follows every step.

        Returns:
            The steps that are done, those before this run included.
        """
        saved = done = self.steps.start
        taken: StepResult | None = None
        take: TakeStep = partial(self._take_step, then)
        if then.blocks is not None:
            take = partial(then.blocks.take, take, self._updating)
        updates: list[Callable[[float | None], None]] = [rates.after_step for rates in then.rates]
        if (average := then.average) is not None:
            updates.append(lambda _: average.update())
        if then.is_over:
            return done
        for step in self._steps():
            began_s = time.perf_counter()
            result = take(step, self._read(step))
            if updates and not result.is_skipped:
                with self._updating():
                    for update in updates:
                        update(result.loss)
            done = step + 1
            taken = replace(result, step_s=time.perf_counter() - began_s)
            self._call_hook(then, "on_step", (done, None, taken))
            validation = self._validate(then, done, taken)
            is_best = validation is not None and validation.is_best
            if is_best or (then.every is not None and done % then.every == 0):
                self._save(then, done, validation, taken)
                saved = done
            if then.is_over:
                break
        if saved != done:
            last = None if then.validator is None else then.validator.at(done)
            self._save(then, done, last, taken)
        return done

    def _take_step(self, then: FollowUps, step: int, read: "Reading", *, is_told: bool = True) -> StepResult:
        """Run forwards and backwards, and step the optimiser.

        Args:
            then: Has the optimiser.
            step: Its number.
            read: Reads micro-batches.
            is_told: Whether those who follow the run hear of it.
        """
        result = self.engine.train_step(step, read, is_told=is_told)
        if then.shared_loss is not None:
            result = then.shared_loss.of_all(self.engine.with_losses(result))
        if then.optimizer is not None:
            with self._updating():
                self._update(then.optimizer, step, is_skipped=result.is_skipped)
        return result

    @contextmanager
    def _updating(self) -> Iterator[None]:
        with self._between("optimizer"), self.progress.during(UPDATING):
            yield

    def _update(self, optimizer: "Optimizer", step: int, *, is_skipped: bool) -> None:
        """Step the optimiser, and have replicas that step alone agree where they do."""
        shared = self.engine.shared
        if shared is not None:
            shared.before_update(step)
        if not is_skipped:
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if shared is not None:
            shared.after_update(step, is_skipped=is_skipped)

    def _agreed(self) -> AbstractContextManager[None]:
        """Return a block in which replicas that step alone hold what they agree on."""
        return nullcontext() if self.engine.shared is None else self.engine.shared.agreed()

    def _validate(self, then: FollowUps, done: int, taken: StepResult) -> Validation | None:
        """Validate where it is due, and do what follows from that alone."""
        validator = then.validator
        if validator is None or not validator.times.are_due(done):
            return None
        taken = self.engine.with_losses(taken)
        averaged = nullcontext() if then.average is None else then.average.in_place()
        with self._between("validation"), self._agreed(), averaged:
            validation = validator.run(done)
        for rates in then.rates:
            rates.after_validation(validation.metrics)
        if then.tell is not None:
            then.tell(validation, validator.standing)
        self._call_hook(then, "on_validation", (done, validation, taken))
        return validation

    def _save(self, then: FollowUps, done: int, validation: Validation | None, taken: StepResult | None = None) -> None:
        """Write a checkpoint, where the run keeps some."""
        if then.checkpoints is None:
            return
        taken = None if taken is None else self.engine.with_losses(taken)
        with self._between("checkpoint"), self.progress.during(SAVING):
            metrics = None if validation is None else validation.metrics
            folder = then.checkpoints.write(done, then.standing, metrics)
        if folder is not None:
            self._call_hook(then, "on_checkpoint", (done, validation, taken), folder)

    def _call_hook(
        self, then: FollowUps, name: str, seen: tuple[int, Validation | None, StepResult | None], *before: Path
    ) -> None:
        """Call a function of the training file with a view of the run.

        Args:
            then: Has it, or has none.
            name: Of it.
            seen: Steps done, the validation after them and the last step.
            before: What the function receives before the view.
        """
        if then.hooks is not None:
            with self._between("hooks"):
                then.hooks.call(name, *before, then.view(*seen))

    def infer(self, files: OutputFiles | None) -> int:
        """Run the forwards; return the steps that are done.

        Args:
            files: For what they give; None where nobody wants it.
        """
        done = self.steps.start
        for step in self._steps():
            found = self.engine.infer(step, self._read(step))
            if files is not None:
                with self._between("outputs"):
                    files.write(step, found)
            done = step + 1
        return done

    def _between(self, what: str) -> AbstractContextManager[None]:
        return nullcontext() if self.telemetry is None else self.telemetry.between(what)

    def _steps(self) -> Iterator[int]:
        for step in self.steps:
            if not self.watch.may_begin(step):
                return
            self.progress.begin_step(step)
            yield step

    def _read(self, step: int) -> "Reading":
        return _read_nothing if self.reader is None else self.reader.of_step(step)


def watched_weight(training: Training, progress: ProgressRecorder) -> SampleWeight | None:
    """Return what gives the weights of samples, watched over as reading them is; None where they count alike.

    Args:
        training: Of the training file.
        progress: Is told.
    """
    weigh = weight_of(training)
    if weigh is None:
        return None

    def call(batch: Mapping[str, "Tensor"]) -> "Tensor":
        with progress.during(READING):
            return weigh(batch)

    return call


def _read_nothing(micro_batch: int, names: Sequence[str]) -> Mapping[str, "Tensor"]:
    return {}
