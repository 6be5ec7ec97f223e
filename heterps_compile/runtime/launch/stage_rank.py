"""A rank that runs stages: what it reads and builds before its first step, and what it leaves behind.

Left out: joining the run (``worker.py``), the loop over steps (``loop.py``).
"""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import Module, Parameter

from heterps_compile.errors import RunError
from heterps_compile.runtime.data.epochs import Epochs
from heterps_compile.runtime.data.identity import Identity, with_contents
from heterps_compile.runtime.data.model_inputs import inputs_of_plan
from heterps_compile.runtime.data.sample_source import Source
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.read_stage import RunnableStage, read_stage, read_tied
from heterps_compile.runtime.pipeline.recorder import Recorder, Recorders
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.row_prefetch import Reader, RowPrefetch
from heterps_compile.runtime.servers.served_table import serve_tables
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder, rank_starts

from .checkpoint_collective import Checkpoints
from .checkpoint_folder import STEP_PATTERN, find_checkpoints
from .checkpoint_format import read_state
from .checkpoint_start import check_weights, find_start, start_notes
from .loop import checked_loss, infer, train
from .optimizer_state import take_schedule
from .outputs import make_output_folder
from .prepare import count_steps
from .rank_context import RESULT_KEY, RankContext, RankSpec, Result
from .run_data import ALL, MicroBatches, check_same_data, open_data, say_data, telling_ids
from .run_options import RunOptions
from .server_rank import make_spec
from .store_client import read_number, read_word
from .training_file import Scheduler, Training, make_optimizer, make_scheduler, read_training_file, step_scheduler

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

_START_KEY = "start"
_STEPS_KEY = "steps"
_FILLED_KEY = "filled"
_CHECKPOINT_OR_NONE = re.compile(rf"({STEP_PATTERN})?")
_TRACED_STEPS = 20  # a trace of more is slow to look at
_WARM_STEPS = 2


def run_stage_rank(context: RankContext, spec: RankSpec) -> Result:
    """Run the stages of one rank until the run is over.

    Raises:
        HeterpsError: where something cannot be read, or a step fails.
    """
    options, rank = spec.options, context.member.rank
    training = spec.training
    if training is None and options.train is not None:
        training = read_training_file(options.train, has_data=bool(options.data))
    source = data = None
    if rank == 0:
        source, data = open_data(context, spec, training)
        data = _decide_steps(context, spec, source, data)
    checkpoint, steps = steps_to_run(context, options)
    folder, plan = context.prepared.folder, context.prepared.plan
    stages = {i: read_stage(folder, plan, i, context.device) for i in context.prepared.layout.stages_of(rank)}
    if options.output is not None and context.prepared.layout.stage_count - 1 in stages:
        make_output_folder(options.output)  # its machine may have a disk of its own; nobody writes before all are here
    telemetry = _telemetry(context, spec, steps)
    recorder = Recorders([context.progress] if telemetry is None else [context.progress, telemetry])
    client = _connect_servers(context, spec, stages, checkpoint, steps, recorder=recorder)
    ahead = None if client is None else RowPrefetch(client, context.prepared.layout.actions(rank), steps)
    engine = Engine(
        RankParts(
            plan,
            context.prepared.layout,
            rank,
            stages,
            tied=read_tied(folder, plan),
            device=context.device,
            recorder=recorder,
            hooks=() if client is None or ahead is None else (client, ahead),
        ),
        StepOptions(
            loss=None if training is None else checked_loss(training.loss, context.progress),
            wire=options.wire,
            seed=options.seed,
            exact_sums=options.exact_sums,
            clip_norm=options.clip_norm,
        ),
    )
    optimizer = None if training is None else make_optimizer(training, list(engine.named_parameters().items()))
    if telemetry is not None:
        telemetry.optimizer = optimizer
    scheduler = _scheduler(context, options, training, optimizer)
    checkpoints = _checkpoints(context, spec, stages, client, optimizer=optimizer, scheduler=scheduler, data=data)
    _restore(checkpoints, checkpoint, options)
    wanted = (*engine.needs, *((ALL,) if engine.wants_targets else ()))
    with ExitStack() as closing:
        reader = None
        if wanted:
            if source is None:
                source, mine = open_data(context, spec, training)
                check_same_data(context.store, rank, mine)
            reader = _reader(context, source, training, wanted, steps)
            closing.callback(reader.close)
        feed = reader if reader is None or ahead is None else ahead.around(reader)
        if telemetry is not None:
            closing.callback(telemetry.close)
        set_rates = None if training is None or scheduler is None else partial(step_scheduler, training, scheduler)
        with telling_ids(reader):
            done = _steps(context, spec, engine, feed, steps, checkpoints=checkpoints, step_schedule=set_rates)
        engine.finish()
        if client is not None:
            client.close()
    found = [] if options.checkpoint is None else find_checkpoints(Path(options.checkpoint))
    last = str(found[-1]) if found else ""
    filled = _filled(context) if done == steps.stop else 0
    result = Result(steps.start, done, context.prepared.layout.batch, context.watch.stopped_by or 0, last, filled)
    if rank == 0:
        context.store.set(RESULT_KEY, result.to_json())
    return result


def _steps(
    context: RankContext,
    spec: RankSpec,
    engine: Engine,
    reader: Reader | None,
    steps: range,
    *,
    checkpoints: Checkpoints,
    step_schedule: Callable[[float | None], None] | None,
) -> int:
    """Run the steps; give how many are done in all."""
    options = spec.options
    if context.prepared.layout.training:
        return train(
            engine,
            checkpoints.optimizer,
            reader,
            steps,
            step_schedule=step_schedule,
            watch=context.watch,
            progress=context.progress,
            checkpoints=checkpoints if options.checkpoint is not None else None,
            every=options.every,
        )
    return infer(
        engine,
        reader,
        steps,
        layout=context.prepared.layout,
        watch=context.watch,
        progress=context.progress,
        names=context.prepared.plan.graph_outputs,
        folder=None if options.output is None else Path(options.output),
        file_format=options.output_format,
        samples=steps.stop * context.prepared.layout.batch - _filled(context),
    )


def _restore(checkpoints: Checkpoints, checkpoint: Path | None, options: RunOptions) -> None:
    """Put in what a run begins with, where that is not what was compiled."""
    if checkpoint is not None:
        checkpoints.restore(checkpoint)
    elif options.weights is not None:
        checkpoints.restore_weights(Path(options.weights))


def _reader(
    context: RankContext, source: Source, training: Training | None, wanted: Sequence[str], steps: range
) -> MicroBatches:
    prepared = context.prepared
    return MicroBatches(
        source,
        prepared.layout,
        context.member.rank,
        steps,
        wanted=wanted,
        progress=context.progress,
        inputs=inputs_of_plan(prepared.plan, prepared.folder),
        prepare=None if training is None else training.prepare,
        device=context.device,
    )


def _scheduler(
    context: RankContext, options: RunOptions, training: Training | None, optimizer: "Optimizer | None"
) -> Scheduler | None:
    """Make the scheduler of this rank, and see before the first step that a checkpoint can hold it."""
    if training is None or not context.prepared.layout.training:
        return None
    layout = context.prepared.layout
    knows_loss = all(layout.stage_count - 1 in layout.stages_of(rank) for rank in range(layout.world_size))
    scheduler = make_scheduler(training, optimizer, knows_loss=knows_loss)
    if scheduler is not None and options.checkpoint is not None:
        take_schedule(scheduler)
    return scheduler


def _checkpoints(
    context: RankContext,
    spec: RankSpec,
    stages: Mapping[int, RunnableStage],
    client: Client | None,
    *,
    optimizer: "Optimizer | None",
    scheduler: Scheduler | None,
    data: Identity | None,
) -> Checkpoints:
    rank = context.member.rank
    return Checkpoints(
        context.prepared,
        spec.options,
        Path(spec.options.checkpoint or ""),
        context.store,
        rank,
        parameters={index: _tensors(stage, trained=True) for index, stage in stages.items()},
        buffers={index: _tensors(stage, trained=False) for index, stage in stages.items()},
        optimizer=optimizer,
        scheduler=scheduler,
        data=data,
        servers=client if client is not None and client.spec.workers[0] == rank else None,
        tied_as={index: getattr(stage, "tied_as", {}) for index, stage in stages.items()},
    )


def _connect_servers(
    context: RankContext,
    spec: RankSpec,
    stages: Mapping[int, RunnableStage],
    checkpoint: Path | None,
    steps: range,
    *,
    recorder: Recorder,
) -> Client | None:
    """Put served tables in place of those of the stages; None where this rank has none, or there are no servers."""
    options, rank = spec.options, context.member.rank
    served = make_spec(
        context.prepared, options.servers, wire=options.wire, first_step=steps.start, checkpoint=checkpoint
    )
    if served is None or rank not in served.workers:
        return None
    client = Client(served, rank, recorder=recorder)
    for stage in stages.values():
        if isinstance(stage, Module):
            serve_tables(stage, client)
    return client


def _decide_steps(context: RankContext, spec: RankSpec, source: Source, data: Identity) -> Identity:
    """Find out which steps are to be run, and from which checkpoint, and tell all; rank 0 does this.

    Gives what a checkpoint keeps of the data.
    """
    options, store = spec.options, context.store
    if options.output is not None:
        make_output_folder(options.output)
    is_launched = spec.parent is not None  # the launcher has checked the files
    check_weights(options, context.prepared, files_too=not is_launched)
    if options.checkpoint is not None:
        data = with_contents(data, source)
    checkpoint = find_start(context.prepared, options, data, files_too=not is_launched)
    for note in () if is_launched or options.quiet else start_notes(options, context.prepared, checkpoint):
        print(f"  {note}", file=sys.stderr, flush=True)
    say_data(store, data)
    samples, batch = _samples(source), context.prepared.layout.batch
    steps = count_steps(samples, options, batch)
    filled = 0 if samples is None or options.steps is not None else max(0, steps * batch - samples * options.epochs)
    store.set(_FILLED_KEY, str(filled))
    store.set(_START_KEY, "" if checkpoint is None else checkpoint.name)
    store.set(_STEPS_KEY, str(steps))
    return data


def steps_to_run(context: RankContext, options: RunOptions) -> tuple[Path | None, range]:
    """Wait for what rank 0 decides: the checkpoint to go on from, and the steps to run.

    Raises:
        RunError: where this rank cannot see the checkpoint.
    """
    name = read_word(context.store, _START_KEY, _CHECKPOINT_OR_NONE, "the name of a checkpoint")
    last = read_number(context.store, _STEPS_KEY, "the count of steps")
    if not name or options.checkpoint is None:
        return None, range(last)
    checkpoint = Path(options.checkpoint) / name
    if not checkpoint.is_dir():
        raise RunError(
            f"{str(checkpoint)!r}, which rank 0 goes on from, is not there for rank {context.member.rank}: the folder "
            f"of checkpoints must be one that all machines share"
        )
    first = read_state(checkpoint).step
    return checkpoint, range(first, max(first, last))


def _filled(context: RankContext) -> int:
    """Return how many samples of the last step only fill it up, and were read before."""
    return read_number(context.store, _FILLED_KEY, "a count of samples")


def _samples(source: Source) -> int | None:
    """Return how many samples there are, also where they are repeated."""
    return source.source.samples if isinstance(source, Epochs) else source.samples


def _telemetry(context: RankContext, spec: RankSpec, steps: range) -> TelemetryRecorder | None:
    if spec.telemetry is None:
        return None
    layout, rank = context.prepared.layout, context.member.rank
    traced = range(steps.start + _WARM_STEPS, steps.start + _WARM_STEPS + _TRACED_STEPS)
    return TelemetryRecorder(
        spec.telemetry,
        rank_starts(
            rank, position=layout.position_of(rank), replica=layout.replica_of(rank), stages=layout.stages_of(rank)
        ),
        trace_steps=traced if spec.options.trace is not None else range(0),
        gpu_index=context.device.index,
    )


def _tensors(stage: Any, *, trained: bool) -> "dict[str, Any]":
    """Return the parameters of a stage, or its buffers, under every name that they have in the model.

    A stage of another runtime has none that could be changed.
    """
    if not isinstance(stage, Module):
        return {}
    state: dict[str, Tensor] = stage.state_dict(keep_vars=True)
    return {name: tensor for name, tensor in state.items() if isinstance(tensor, Parameter) == trained}
