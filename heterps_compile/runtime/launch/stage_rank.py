"""A rank that runs stages: what it reads and builds before its first step, and what it leaves behind.

The modules of features are imported only if the run has them: tables on servers, validations, averages, blocks.

Left out: joining the run (``worker.py``), the loop over steps (``loop.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from heterps_compile.runtime.checkpoint.best import check_judged_alike, standing_at
from heterps_compile.runtime.checkpoint.collective import Checkpoints
from heterps_compile.runtime.checkpoint.folder import find_checkpoints, step_name
from heterps_compile.runtime.checkpoint.format import Checkpoint, open_checkpoint
from heterps_compile.runtime.checkpoint.optimizer_state import take_schedule
from heterps_compile.runtime.checkpoint.own_state import keeps_own_state
from heterps_compile.runtime.data.identity import Identity
from heterps_compile.runtime.data.model_inputs import inputs_of_plan
from heterps_compile.runtime.data.sample_source import Source
from heterps_compile.runtime.pipeline.batch_loss import SharedLoss
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied
from heterps_compile.runtime.pipeline.recorder import Recorders
from heterps_compile.runtime.telemetry.rank_recorder import Measure, TelemetryRecorder, rank_starts
from heterps_compile.runtime.validation.data import (
    ValidationData,
    ValidationSize,
    hear_size,
    refuse_other_columns,
    say_size,
    validates,
)

from .combinations import VALIDATION_DATA, DataFacts, refuse_combinations
from .hooks import Hooks
from .learning_rates import Rates, make_rates, measure_rates
from .loop import FollowUps, StepLoop, watched_weight
from .outputs import OutputFiles, make_output_folder
from .rank_context import RESULT_KEY, RankContext, Result
from .repeated_batches import order_of_batches
from .run_data import ALL, Feed, MicroBatches, check_same_data, open_data, telling_ids
from .run_options import RunOptions
from .steps_of_run import decide_steps, filled_samples, samples_of_epoch, steps_to_run
from .sync_of_run import block_rule
from .training_file import Scheduler, Training, loss_of, make_optimizer, make_scheduler, read_training_file

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from heterps_compile.runtime.servers.client import Client
    from heterps_compile.runtime.servers.row_prefetch import RowPrefetch
    from heterps_compile.runtime.validation.validator import Validator

    from .block_chains import BlockChains
    from .block_models import BlockModels
    from .weight_average import WeightAverage

_TRACED_STEPS = 20  # a trace of more is slow to look at
_WARM_STEPS = 2


@dataclass(frozen=True, slots=True)
class _Given:
    """What a rank has read before it builds anything.

    Attributes:
        training: How the model is trained; None for inference.
        source: The data, where this rank has opened them.
        data: What a checkpoint keeps of them, where this rank knows it.
        size: Of the validation data; None where the run does not validate.
    """

    training: Training | None
    source: Source | None
    data: Identity | None
    size: ValidationSize | None


@dataclass(frozen=True, slots=True)
class _Built:
    """What a rank has built before its first step; None for what it has not.

    Attributes:
        engine: Runs a step.
        training: Loss, optimiser and what raw columns become.
        checkpoints: Of the run, with this rank's optimiser and scheduler.
        source: The data, where they have been opened.
        client: Of the parameter servers.
        prefetched: Its rows.
        telemetry: Takes down what this rank does.
        rates: Set the learning rates of this rank, and of what it pushes.
        shared_loss: Brings the loss of a step to all ranks, where one wants it.
        validator: Of the run.
    """

    engine: Engine
    training: Training | None
    checkpoints: Checkpoints
    source: Source | None
    client: "Client | None"
    prefetched: "RowPrefetch | None"
    telemetry: TelemetryRecorder | None
    rates: Sequence[Rates] = ()
    shared_loss: SharedLoss | None = None
    validator: "Validator | None" = None


def run_stage_rank(context: RankContext) -> Result:
    """Run the stages of one rank until the run is over.

    Raises:
        HeterpsError: where something cannot be read, or a step fails.
    """
    options, rank = context.options, context.rank
    training = context.spec.training
    if training is None and options.train is not None:
        training = read_training_file(options.train, has_data=bool(options.data))
    source = data = None
    has_validation = validates(options, training, context.spec.validation)
    if rank == 0:
        source, data = open_data(context, training)
        data = decide_steps(context, source, data, training)
        if training is not None and has_validation:
            counted = ValidationData(context, training).size()
            refuse_other_columns(source.columns, counted.identity.columns)
            refuse_combinations(VALIDATION_DATA, DataFacts(context.prepared.sync, context.layout, counted.samples))
            say_size(context.store, counted)
    checkpoint, steps = steps_to_run(context)
    size = hear_size(context.store) if has_validation else None
    if rank == 0 and size is not None and checkpoint is not None and options.best is not None:
        check_judged_alike(checkpoint, options.best, size.identity)
    built = _build(context, _Given(training, source, data, size), (checkpoint, steps))
    skipped_before = 0 if built.engine.loss_scale is None else built.engine.loss_scale.state.skipped
    done = _run_steps(context, built, steps)
    found = [] if options.checkpoint is None else find_checkpoints(Path(options.checkpoint))
    last = str(found[-1]) if found else ""
    filled = filled_samples(context) if done == steps.stop else 0
    scale, validator = built.engine.loss_scale, built.validator
    result = Result(
        steps.start,
        done,
        context.layout.batch,
        context.watch.stopped_by or 0,
        last,
        filled,
        skipped=0 if scale is None else scale.state.skipped - skipped_before,
        validations=() if validator is None else tuple(validator.history),
        stopped_after=0 if validator is None or not validator.is_over else validator.standing.stale,
        **_best_of(options, validator),
    )
    if rank == 0:
        context.store.set(RESULT_KEY, result.to_json())
    return result


def _build(context: RankContext, given: _Given, start: tuple[Checkpoint | None, range]) -> _Built:
    """Read the stages and a checkpoint, and build what runs them.

    Args:
        context: Of this rank.
        given: What it has read before.
        start: The checkpoint to go on from, and the steps to run.
    """
    training, size, (checkpoint, steps) = given.training, given.size, start
    options, rank, layout = context.options, context.rank, context.layout
    folder, plan, precision = context.prepared.folder, context.prepared.plan, context.prepared.precision
    stages = {i: read_stage(folder, plan, i, context.device) for i in layout.stages_of(rank)}
    if options.output is not None and layout.stage_count - 1 in stages:
        make_output_folder(options.output)  # its machine may have a disk of its own; nobody writes before all are here
    telemetry = _telemetry(context, steps)
    recorder = Recorders([context.progress] if telemetry is None else [context.progress, telemetry])
    client = ahead = None
    if options.servers.count:
        from .server_rank import serve_stages  # noqa: PLC0415 - see the module

        client, ahead = serve_stages(context, start, stages, recorder, telemetry)
    engine = Engine(
        RankParts(
            plan,
            layout,
            rank,
            stages,
            tied=read_tied(folder, plan),
            device=context.device,
            recorder=recorder,
            hooks=() if client is None or ahead is None else (client, ahead),
            served=client if client is not None and client.spec.clips and client.is_first else None,
            machine_of=context.machine_of,
        ),
        StepOptions(
            loss=None if training is None else loss_of(training),
            wire=options.wire,
            seed=options.seed,
            clip_norm=options.clip_norm,
            precision=precision,
            sample_weight=None if training is None else watched_weight(training, context.progress),
            sync=context.prepared.sync,
            order=order_of_batches(context.prepared.sync, options),
        ),
    )
    optimizer = None if training is None else make_optimizer(training, list(engine.named_parameters().items()))
    if telemetry is not None:
        telemetry.measures += _measures(options, engine, optimizer)
    split_norms = getattr(optimizer, "split_norms", None)  # of ours that need norms of layers, and of no other
    if split_norms is not None and engine.shared is not None:
        split_norms(engine.shared.norm_groups())
    standing = standing_at(checkpoint, options.best)
    scheduler = _scheduler(context, training, optimizer)
    shared_loss, rates, of_tables = None, list[Rates](), None
    if training is not None:
        mine = make_rates(training, scheduler, validates=size is not None, best=options.best)
        rates += [] if mine is None else [mine]
        if client is not None:
            from .server_rates import ServerRates  # noqa: PLC0415 - see the module

            of_tables = ServerRates(training, client, validates=size is not None, best=options.best)
            rates.append(of_tables)
            if options.checkpoint is not None:
                of_tables.take()  # what no checkpoint can hold is told before the first step
        shared_loss = _shared_loss(context, training, rates)
    held = {index: _tensors(stage) for index, stage in stages.items()}
    average, (blocks, chains) = _average(options, held), _blocks(context, held, optimizer)
    checkpoints = Checkpoints(
        context.prepared,
        options,
        context.store,
        rank,
        held=held,
        optimizer=optimizer,
        scheduler=scheduler,
        data=given.data,
        servers=client if client is not None and client.is_first else None,
        rates=of_tables,
        tied_as={index: getattr(stage, "tied_as", {}) for index, stage in stages.items()},
        loss_scale=engine.loss_scale,
        validation_data=None if size is None else size.identity,
        average=average,
        shared=engine.shared,
        keeps_own=chains is not None or keeps_own_state(context.prepared, checkpoint),
        blocks=blocks,
        chains=chains,
    )
    if checkpoint is not None:
        checkpoints.restore(checkpoint)
    elif options.weights is not None:
        weights = open_checkpoint(Path(options.weights))
        checkpoints.restore_weights(weights, weights.kind(averaged=options.averaged, block=options.from_block))
    validator = None
    if training is not None and size is not None:
        from heterps_compile.runtime.validation.forward_pass import ValidationPass  # noqa: PLC0415 - see the module
        from heterps_compile.runtime.validation.validator import (  # noqa: PLC0415 - see the module
            ValidationTimes,
            Validator,
        )

        forwards = ValidationPass(
            context, training, stages, data=ValidationData(context, training), size=size, client=client, blocks=blocks
        )
        times = ValidationTimes(steps.stop, options.validate_every, layout.batch, samples_of_epoch(context))
        validator = Validator(forwards, times, context.store, size.samples, options.best, options.stop_after, standing)
        validator.try_out(steps.start)
    return _Built(engine, training, checkpoints, given.source, client, ahead, telemetry, rates, shared_loss, validator)


def _shared_loss(context: RankContext, training: Training, rates: Sequence[Rates]) -> SharedLoss | None:
    """Return what brings the losses of a step to all ranks; None where no rank wants them."""
    rule = block_rule(context.prepared.sync)
    compares = rule is not None and rule.rule == "mc"
    if training.scheduler is None and training.on_step is None and not compares:
        return None
    asking = SharedLoss(context.layout, context.rank)
    is_told = compares or training.on_step is not None or any(one.wants_loss for one in rates)
    return asking if asking.is_wanted(is_told) else None


def _run_steps(context: RankContext, built: _Built, steps: range) -> int:
    """Run the steps; return how many are done in all."""
    engine, training = built.engine, built.training
    wanted = (*engine.needs, *((ALL,) if engine.wants_targets else ()))
    with ExitStack() as closing:
        reader = None
        if wanted:
            source = built.source
            if source is None:
                source, mine = open_data(context, training)
                check_same_data(context.store, context.rank, mine)
            feed = _feed(context, training, wanted)
            reader = MicroBatches(source, context.layout, context.rank, steps, feed=feed, progress=context.progress)
            closing.callback(reader.close)
        reads = reader if reader is None or built.prefetched is None else built.prefetched.around(reader)
        if built.telemetry is not None:
            closing.callback(built.telemetry.close)
        loop = StepLoop(engine, reads, steps, context.watch, context.progress, built.telemetry)
        with telling_ids(reader):
            if context.layout.training:
                done = loop.train(_follow_ups(context, built))
            else:
                done = loop.infer(_output_files(context, steps))
        engine.finish()
        if built.validator is not None:
            built.validator.forwards.finish()
        if built.client is not None:
            built.client.close()
    return done


def _best_of(options: RunOptions, validator: "Validator | None") -> dict[str, Any]:
    """Return what a result says of the best validation; nothing where there is none."""
    best = None if validator is None else validator.standing.best
    if best is None or options.checkpoint is None:
        return {}
    return {"best_step": best.step, "best_checkpoint": str(Path(options.checkpoint) / step_name(best.step))}


def _follow_ups(context: RankContext, built: _Built) -> FollowUps:
    """Return what follows every step of this rank."""
    options, training, checkpoints = context.options, built.training, built.checkpoints
    tell = blocks = None
    if context.rank == 0 and built.telemetry is not None and built.validator is not None:
        from .told_by_rank import tell_validation  # noqa: PLC0415 - see the module

        tell = partial(tell_validation, built.telemetry)
    if checkpoints.blocks is not None and built.engine.shared is not None:
        from .block_steps import BlockSteps  # noqa: PLC0415 - see the module

        blocks = BlockSteps(checkpoints.blocks, checkpoints.chains, built.engine.shared.agreed)
    return FollowUps(
        optimizer=checkpoints.optimizer,
        rates=built.rates,
        shared_loss=built.shared_loss,
        validator=built.validator,
        tell=tell,
        checkpoints=checkpoints if options.checkpoint is not None else None,
        every=options.every,
        average=checkpoints.average,
        blocks=blocks,
        hooks=Hooks(training) if training is not None and training.has_hooks and context.rank == 0 else None,
        epoch_samples=samples_of_epoch(context),
        batch=context.layout.batch,
    )


def _output_files(context: RankContext, steps: range) -> OutputFiles | None:
    """Return the files for what inference gives; None where nobody wants it."""
    options, layout = context.options, context.layout
    if options.output is None:
        return None
    samples = steps.stop * layout.batch - filled_samples(context)
    names = context.prepared.plan.graph_outputs
    return OutputFiles(Path(options.output), options.output_format, names, layout, samples)


def _feed(context: RankContext, training: Training | None, wanted: Sequence[str]) -> Feed:
    return Feed(
        wanted=wanted,
        inputs=inputs_of_plan(context.prepared.plan, context.prepared.folder),
        prepare=None if training is None else training.prepare,
        device=context.device,
    )


def _scheduler(context: RankContext, training: Training | None, optimizer: "Optimizer | None") -> Scheduler | None:
    """Make the scheduler of this rank, and see before the first step that a checkpoint can hold it."""
    if training is None or not context.layout.training:
        return None
    scheduler = make_scheduler(training, optimizer)
    if scheduler is not None and context.options.checkpoint is not None:
        take_schedule(scheduler)
    return scheduler


def _average(options: RunOptions, held: "Mapping[int, Mapping[str, Tensor]]") -> "WeightAverage | None":
    if options.ema is None:
        return None
    from .weight_average import WeightAverage  # noqa: PLC0415 - see the module

    return WeightAverage(options.ema, held)


def _blocks(
    context: RankContext, held: "Mapping[int, Mapping[str, Tensor]]", optimizer: "Optimizer | None"
) -> "tuple[BlockModels | None, BlockChains | None]":
    """Make the predictors of blocks of the data, and their chains; None if the rules keep none."""
    if not context.layout.training or block_rule(context.prepared.sync) is None:
        return None, None
    from .block_chains import make_blocks  # noqa: PLC0415 - see the module

    return make_blocks(context.prepared.sync, held, optimizer)


def _telemetry(context: RankContext, steps: range) -> TelemetryRecorder | None:
    if context.spec.telemetry is None:
        return None
    layout, rank = context.layout, context.rank
    traced = range(steps.start + _WARM_STEPS, steps.start + _WARM_STEPS + _TRACED_STEPS)
    return TelemetryRecorder(
        context.spec.telemetry,
        rank_starts(
            rank, position=layout.position_of(rank), replica=layout.replica_of(rank), stages=layout.stages_of(rank)
        ),
        trace_steps=traced if context.options.trace is not None else range(0),
        gpu_index=context.device.index,
    )


def _measures(options: RunOptions, engine: Engine, optimizer: "Optimizer | None") -> Iterator[Measure]:
    """Yield what measures the fields of a step's telemetry that not every run has."""
    if engine.shared is not None:
        yield engine.shared.measure
    if optimizer is not None:
        yield partial(measure_rates, optimizer)
    if any("://" in (where or "") for where in (options.data, options.validate)):
        from heterps_compile.runtime.data.block_cache import measure_read  # noqa: PLC0415 - see the module

        yield measure_read


def _tensors(stage: Any) -> "dict[str, Any]":
    """Return parameters and buffers of a stage under every name that they have in the model.

    A stage of another runtime has none that could be changed.
    """
    if not isinstance(stage, Module):
        return {}
    state: dict[str, Tensor] = stage.state_dict(keep_vars=True)
    return state
