r"""One pass over the validation data on the pipeline: forwards of the stages as they are in evaluation mode.

The stages are those with which a folder compiled for training scores; they hold the very tensors that are trained.
Every sample is computed once. With micro-batches of 4 samples, 2 in a step, and 14 samples::

    step 0    F0 [0-3]   F1 [4-7]        every micro-batch on the replica that has it in training
    step 1    F0 [8-11]  F1 [12-13 13 13]

The last micro-batch is padded with its last sample; the outputs of the padding are dropped before the metrics.

What the model returns goes to the first replica of the last stage, which reads the columns of all samples and computes
the metrics, micro-batch by micro-batch in the data's order: replicas change no bit of them.

Where a run keeps predictors of blocks of its data, a pass goes over as many equal parts of the samples, each with the
predictor of its block in the stages; metrics are of all samples together.

A pass leaves the training as it was: random numbers go on where they were, running statistics stay.

Left out: when there is one, and what follows from it (``validator.py``).
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from heterps_compile.backends.shared_state import share_state
from heterps_compile.errors import RunError
from heterps_compile.escape import printable
from heterps_compile.plan.scoring_files import plan_for_scoring
from heterps_compile.runtime.data.model_inputs import inputs_of_plan
from heterps_compile.runtime.data.sample_source import Columns
from heterps_compile.runtime.launch.faults import innermost
from heterps_compile.runtime.launch.progress import VALIDATING, ProgressRecorder
from heterps_compile.runtime.launch.rank_context import RankContext
from heterps_compile.runtime.launch.run_data import ALL, Feed, MicroBatches, telling_ids
from heterps_compile.runtime.launch.training_file import Training, called_in, weight_of
from heterps_compile.runtime.pipeline.autocast import Autocast
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import Layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, ReadMicroBatch, StepOptions
from heterps_compile.runtime.pipeline.read_stage import RunnableStage, read_stage, read_tied
from heterps_compile.runtime.pipeline.recorder import Recorders
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.served_table import serve_tables
from heterps_compile.runtime.signature import Signature, signature_of_plan
from heterps_compile.schedule.order import Phase
from heterps_compile.units import counted

from .data import ValidationData, ValidationSize
from .metrics import MetricsOfSamples

if TYPE_CHECKING:
    from torch import Tensor

    from heterps_compile.runtime.launch.block_models import BlockModels


@dataclass(frozen=True, slots=True)
class PassShape:
    """How the samples of a pass are dealt.

    Attributes:
        layout: That of the training, without backwards.
        samples: In all.
    """

    layout: Layout
    samples: int

    @property
    def is_padded(self) -> bool:
        """Say whether the last micro-batch has fewer samples than the others."""
        return self.samples % self.layout.micro_batch_size > 0

    def size(self, step: int, micro_batch: int) -> int:
        """Return the samples of a micro-batch, its padding left out."""
        size = self.layout.micro_batch_size
        return min(size, self.samples - step * self.layout.batch - micro_batch * size)

    @property
    def steps(self) -> range:
        """Return the steps, the last of which may have fewer micro-batches."""
        return range(-(-self.samples // self.layout.batch))

    def micro_batches(self, step: int) -> int:
        """Return the number of micro-batches of a step."""
        left = -(-self.samples // self.layout.micro_batch_size) - step * self.layout.micro_batches
        return max(0, min(self.layout.micro_batches, left))


class ValidationPass:
    """The stages of one rank in evaluation mode, and what runs them over the validation data."""

    def __init__(
        self,
        context: RankContext,
        training: Training,
        stages: Mapping[int, RunnableStage],
        *,
        data: ValidationData,
        size: ValidationSize,
        client: Client | None,
        blocks: "BlockModels | None" = None,
    ) -> None:
        """Read the stages and connect the rank; every rank of the pipeline does so.

        Args:
            context: Of the rank.
            training: Has the loss and the metrics.
            stages: That train, by index.
            data: To validate on.
            size: What all ranks know of them.
            client: Of the parameter servers, where this rank looks rows up.
            blocks: Predictors of blocks, of which parts of the data are validated on; None for the weights themselves.

        Raises:
            RunError: where the folder carries nothing to score with.
        """
        prepared, layout, rank = context.prepared, context.layout, context.rank
        plan, folder = plan_for_scoring(prepared.plan), prepared.folder
        self._context, self._training, self._data, self._size = context, training, data, size
        self._trained = dict(stages)
        self._blocks, self._parts = blocks, 1 if blocks is None else blocks.count
        self._shape = PassShape(replace(layout, training=False), size.samples // self._parts)
        self._stages = {index: read_stage(folder, plan, index, context.device) for index in stages}
        if client is not None:
            for stage in self._stages.values():
                if isinstance(stage, nn.Module):
                    serve_tables(stage, client, prefetches=False)
        self._recorder = _ForwardsOfPass(context.progress)

        self._engine = Engine(
            RankParts(
                plan,
                self._shape.layout,
                rank,
                self._stages,
                tied=read_tied(folder, plan),
                device=context.device,
                recorder=self._recorder,
            ),
            StepOptions(
                wire=context.options.wire, seed=context.options.seed, precision=prepared.precision, gathers=True
            ),
        )
        self._inputs = inputs_of_plan(plan, folder)
        self._signature: Signature = signature_of_plan(plan)
        self._metrics: MetricsOfSamples | None = None
        if rank == layout.ranks_of(layout.stage_count - 1)[0]:
            metrics = None if training.metrics is None else called_in("metrics", training.metrics)
            autocast = Autocast(prepared.precision, context.device)
            loss = autocast.around(called_in("loss", training.loss))
            self._metrics = MetricsOfSamples(loss, metrics, weight_of(training))

    @property
    def metric_names(self) -> tuple[str, ...]:
        """Return the names of the metrics on the rank that computes them, after a pass; else nothing."""
        return () if self._metrics is None else self._metrics.names

    def run(self, done: int, *, is_try: bool = False) -> dict[str, float] | None:
        """Go over the validation data.

        Args:
            done: Steps of the training that are done.
            is_try: Whether the first micro-batch alone goes through, and no metric is computed of it.

        Returns:
            The metrics, on the rank that computes them; None on others.

        Raises:
            RunError: naming what is wrong, and that it was in a validation.
        """
        devices = [self._context.device] if self._context.device.type == "cuda" else []
        shape = self._shape
        if is_try:
            shape = replace(shape, samples=min(shape.layout.micro_batch_size, shape.samples))
        try:
            with torch.random.fork_rng(devices), torch.no_grad():
                self._recorder.step = done - 1
                if self._metrics is not None:
                    self._metrics.begin()
                for part in range(1 if is_try else self._parts):
                    with ExitStack() as closing:
                        if self._blocks is not None:
                            closing.enter_context(self._blocks.in_place(part))
                        self._take_weights()
                        self._go_over(shape, part * shape.samples, closing)
                if self._metrics is None or is_try:
                    return None
                with self._context.progress.during(VALIDATING):
                    return self._metrics.compute()
        except Exception as error:
            kind = "a try of the validation" if is_try else "the validation"
            innermost(error).add_note(f"in {kind} after {counted(done, 'step')}")
            raise

    def finish(self) -> None:
        """Leave the other ranks, after the last pass."""
        self._engine.finish()

    def _take_weights(self) -> None:
        """Let the stages hold the tensors that are trained, as they are now.

        Whoever validates on others, such as an average of them, puts those here.
        """
        for index, stage in self._stages.items():
            both: tuple[Any, Any] = (stage, self._trained[index])
            share_state(*both)

    def _go_over(self, shape: PassShape, first: int, closing: ExitStack) -> None:
        """Go over samples from the first of a part on."""
        reader = self._reader(shape, first, closing)
        with telling_ids(reader):
            for step in shape.steps:
                read = _nothing if reader is None else reader.of_step(step)
                if self._metrics is not None:
                    read = _in_order(read)
                padded = _padded(read, shape.layout.micro_batch_size)
                self._take_in(shape, step, self._engine.infer(step, padded, shape.micro_batches(step)), read)
            self._engine.settle(len(shape.steps))

    def _take_in(
        self, shape: PassShape, step: int, found: Mapping[int, Mapping[str, Any]], read: ReadMicroBatch
    ) -> None:
        """Have the metrics take in what the model returned for the micro-batches of a step."""
        if self._metrics is None:
            return
        for micro_batch, values in found.items():
            batch, size = read(micro_batch, (ALL,)), shape.size(step, micro_batch)
            if self._shape.is_padded:  # of the first micro-batch too, so that a try refuses what the last one cannot be
                values = {name: _first_rows(name, value, size, self._shape) for name, value in values.items()}  # noqa: PLW2901
            with self._context.progress.during(VALIDATING):
                self._metrics.add(self._signature.assemble(values), Columns(batch), size)

    def _reader(self, shape: PassShape, first: int, closing: ExitStack) -> MicroBatches | None:
        """Begin to read what this rank needs: for the metrics all columns of all samples, else those of its stages."""
        context, wanted = self._context, self._engine.needs
        layout, rank = shape.layout, context.rank
        if self._metrics is not None:
            wanted = (*wanted, ALL)
            layout, rank = _all_on_one(layout), 0
        if not wanted:
            return None
        source, items = self._data.open(self._size, context.rank)
        feed = Feed(
            wanted=wanted,
            inputs=self._inputs,
            prepare=self._training.prepare,
            device=context.device,
            samples=shape.samples,
            first=first,
        )
        reader = MicroBatches(source, layout, rank, shape.steps, feed=feed, progress=context.progress)
        if items is not None and self._metrics is not None and first + shape.samples == self._size.samples:
            closing.callback(items.refuse_more, self._size.samples)  # last, when nobody reads any more
        closing.callback(reader.close)
        return reader


class _ForwardsOfPass(Recorders):
    """Tells the watch over hanging ranks of forwards, as of the step of the training that is done.

    Attributes:
        step: That step.
    """

    def __init__(self, progress: ProgressRecorder) -> None:
        super().__init__()
        self.step = 0
        self._progress = progress

    def begin(self, step: int, stage: int, micro_batch: int, phase: Phase) -> None:
        self._progress.begin(self.step, stage, micro_batch, phase)

    def end(  # noqa: PLR0917 - as the Recorder has it
        self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float
    ) -> None:
        self._progress.end(self.step, stage, micro_batch, phase, began_s, ended_s)


def _all_on_one(layout: Layout) -> Layout:
    """Return the layout of one rank that has every micro-batch."""
    return replace(layout, schedule="gpipe", widths=(1,), chunks=1, assignment=((0,) * layout.micro_batches,))


def _in_order(read: ReadMicroBatch) -> ReadMicroBatch:
    """Return what reads the micro-batches of a step in order, each once with all of its columns, and keeps them."""
    kept: list[Mapping[str, Tensor]] = []

    def call(micro_batch: int, names: Sequence[str]) -> "Mapping[str, Tensor]":
        while len(kept) <= micro_batch:
            kept.append(read(len(kept), (ALL,)))
        return kept[micro_batch]

    return call


def _padded(read: ReadMicroBatch, size: int) -> ReadMicroBatch:
    """Return a reader that pads a micro-batch of fewer samples with its last one."""

    def call(micro_batch: int, names: Sequence[str]) -> "Mapping[str, Tensor]":
        found = read(micro_batch, names)
        return {
            name: torch.cat([column, column[-1:].expand(size - len(column), *column.shape[1:])])
            if column.dim() and 0 < len(column) < size
            else column
            for name, column in found.items()
        }

    return call


def _first_rows(name: str, value: Any, count: int, shape: PassShape) -> Any:
    """Return the first rows of an output, those of samples.

    Raises:
        RunError: if the output has no row for every sample.
    """
    size = shape.layout.micro_batch_size
    if isinstance(value, torch.Tensor) and value.dim() and len(value) == size:
        return value[:count]
    shown = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
    raise RunError(
        f"output {printable(name)!r} is {shown} for {size} samples, with no row for each, and the last micro-batch of "
        f"the {shape.samples:,} validation samples has {shape.samples % size}; give a number of samples that {size} "
        f"divides"
    )


def _nothing(micro_batch: int, names: Sequence[str]) -> "Mapping[str, Tensor]":
    return {}
