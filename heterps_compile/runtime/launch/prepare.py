"""What the launcher and every rank work out alike before anything starts: plan, layout, who is who.

Left out: reading stages and data (``worker.py``).
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.cost.precision import FULL
from heterps_compile.errors import RunError, StalePlanError
from heterps_compile.escape import printable
from heterps_compile.plan.folder import PLAN_NAME, read_folder
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.scoring_files import plan_for_scoring
from heterps_compile.plan.source import read_plan
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout
from heterps_compile.runtime.predict import step_on_cores
from heterps_compile.runtime.signature import check_signature
from heterps_compile.sync_rules.rule import SyncRule
from heterps_compile.units import counted, format_bytes, format_seconds

from .block_notes import rule_lines
from .combinations import RUN, RunFacts, check_file, refuse_combinations
from .faults import Place
from .run_options import GIVEN, RunOptions
from .sync_of_run import rule_notes, rules_of_run

if TYPE_CHECKING:
    import torch


_NOTICED = 1.005  # steps closer than this factor read alike

SERVERS = "parameter-server"
"""The device type of the parameter servers of a run."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run, before it starts.

    Attributes:
        folder: The compiled one.
        plan: Its plan.
        plan_sha256: Of the plan file.
        layout: Of the ranks that hold stages.
        places: Of every rank, parameter servers after those with stages.
        precision: In which forwards compute.
        sync: By which rule the replicas of every stage agree.
    """

    folder: Path
    plan: Plan
    plan_sha256: str
    layout: Layout
    places: tuple[Place, ...]
    precision: str = FULL
    sync: tuple[SyncRule, ...] = ()

    @property
    def world_size(self) -> int:
        """Return the number of processes."""
        return len(self.places)


def prepare(options: RunOptions, *, checked_sha256: str | None = None) -> Prepared:
    """Read the folder, check its files against the plan, and lay the run out.

    Args:
        options: Of the run.
        checked_sha256: Of a plan file whose folder has just been checked: the launcher's word, so that not every rank
            reads every file; None to check them here.

    Raises:
        InputError: where there is no such folder, or a file that is named does not exist.
        PlanError: where the plan is wrong, or does not say how its model is called.
        StalePlanError: where a file of the folder was changed.
        RunError: where the options do not fit the plan, or with each other (``combinations.py``).
    """
    folder = Path(options.directory)
    plan = (
        read_folder(folder, expect_sha256=options.expect_sha256)[0]
        if checked_sha256 is None
        else read_plan(options.directory)
    )
    plan_sha256 = hashlib.sha256((folder / PLAN_NAME).read_bytes()).hexdigest()
    if checked_sha256 not in (None, plan_sha256):
        raise StalePlanError(
            f"the plan in {printable(options.directory)!r} was changed while the run began; start it again"
        )
    if options.train != GIVEN:
        check_file(options)
    if not options.training:
        plan = plan_for_scoring(plan)
    elif options.validate is not None:
        plan_for_scoring(plan)  # which says why where it cannot
    check_signature(plan)
    layout = make_layout(
        plan,
        training=options.training,
        replicas=options.replicas or None,
        speeds=options.speeds or None,
        step=StepShape(schedule=options.schedule, micro_batches=options.micro_batches, batch=options.batch),
    )
    precision = plan.request.precision if options.precision is None else options.precision
    rules = rules_of_run(options, plan)
    refuse_combinations(RUN, RunFacts(options, plan, folder, layout, precision, rules))
    return Prepared(folder, plan, plan_sha256, layout, places_of(layout, options.servers.count), precision, rules)


def places_of(layout: Layout, servers: int = 0) -> tuple[Place, ...]:
    """Return what every rank is."""
    ranks = layout.world_size
    stages = [Place(rank, layout.stages_of(rank), layout.replica_of(rank)) for rank in range(ranks)]
    return (*stages, *(Place(ranks + index, (), index) for index in range(servers)))


def planned_devices(prepared: Prepared) -> list[tuple[str, str]]:
    """Return name and kind of the device type of every rank; of a parameter server :data:`SERVERS`.

    Raises:
        RunError: if a rank has stages of several types.
    """
    found = []
    for place in prepared.places:
        types = {prepared.plan.stages[stage].of_replica(place.replica) for stage in place.stages} or {(SERVERS, "cpu")}
        if len(types) > 1:
            names = " and ".join(sorted(repr(printable(name)) for name, _ in types))
            raise RunError(
                f"rank {place.rank} runs stages of {names}, and no machine is both. Fix: take a schedule with one "
                f"stage a rank (--schedule 1f1b)"
            )
        found.append(next(iter(types)))
    return found


def check_world_size(prepared: Prepared, world_size: int) -> None:
    """Check that as many processes were started as the run has.

    Raises:
        RunError: with the counts and the way out.
    """
    wanted = prepared.world_size
    if wanted == world_size:
        return
    widths = ",".join(map(str, prepared.layout.widths))
    servers = wanted - prepared.layout.world_size
    also = f" and {counted(servers, 'parameter server')}" if servers else ""
    started = "1 process was" if world_size == 1 else f"{world_size} processes were"
    raise RunError(
        f"{started} started, and the plan has {prepared.layout.world_size} replicas ({widths} in its stages)"
        f"{also}: start {wanted} (torchrun --nproc-per-node), or give the stages other counts (--replicas)"
    )


def choose_device(prepared: Prepared, rank: int, local_rank: int) -> "torch.device":
    """Return where a rank computes: the GPU it is planned for where this machine has one, else the CPU."""
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    place = prepared.places[rank]
    wants_gpu = any(prepared.plan.stages[stage].of_replica(place.replica)[1] == "gpu" for stage in place.stages)
    if wants_gpu and torch.cuda.is_available():
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return torch.device("cpu")


def device_notes(plan: Plan, devices: Sequence[str]) -> list[str]:
    """Tell which stages run elsewhere than planned.

    Args:
        plan: The plan.
        devices: For every stage the kind of device it runs on, ``"cpu"`` or ``"cuda"``.
    """
    notes = []
    for stage, device in zip(plan.stages, devices, strict=True):
        if stage.kind != "cpu" and device == "cpu":
            what = "GPU" if stage.kind == "gpu" else stage.kind.upper()
            notes.append(f"stage {stage.index} is planned for {printable(stage.device)}: no {what} here, on the CPU")
    return notes


def core_notes(prepared: Prepared, options: RunOptions, cores: int) -> list[str]:
    """Tell where processes have to share a machine's cores."""
    sharing = sharing_words(prepared, options, cores)
    if not sharing:
        return []
    than = "on machines of their own"
    longer = f"steps take longer than {than}"
    shared_s = step_sharing_cores(prepared, options, cores)
    own_s = step_on_cores(prepared.plan, prepared.layout, prepared.world_size) if shared_s else 0.0
    if shared_s > own_s * _NOTICED:
        longer = f"by the plan's times a step takes {format_seconds(shared_s)} or more, {than} {format_seconds(own_s)}"
    return [f"  {sharing}: {longer}"]


def sharing_words(prepared: Prepared, options: RunOptions, cores: int) -> str:
    """Say that processes share a machine's cores; "" where these are enough for all."""
    if prepared.world_size * options.threads <= cores:
        return ""
    processes = f"{prepared.world_size} processes of {counted(options.threads, 'thread')}"
    return f"{processes} share {counted(cores, 'core')}"


def step_sharing_cores(prepared: Prepared, options: RunOptions, cores: int) -> float:
    """Return the least seconds of a step where ranks share cores; 0 where they do not, or nothing tells it."""
    has_servers = prepared.world_size > prepared.layout.world_size
    if has_servers or options.threads > 1 or prepared.world_size <= cores:
        return 0.0
    return step_on_cores(prepared.plan, prepared.layout, cores)


def header(prepared: Prepared, options: RunOptions, devices: Sequence[str]) -> list[str]:
    """Return the lines that a run begins with."""
    plan, layout = prepared.plan, prepared.layout
    what = "training" if options.training else "inference"
    if not options.training and plan.request.mode == "training":
        what = "scoring in evaluation mode of a folder compiled for training"
    servers = prepared.world_size - layout.world_size
    also = f" + {counted(servers, 'parameter server')}" if servers else ""
    lines = [
        f"{printable(plan.model)}: {what}, {counted(len(plan.stages), 'stage')} on "
        f"{counted(layout.world_size, 'process')}{also}, "
        f"{layout.schedule}, {counted(layout.micro_batches, 'micro-batch')} of {layout.micro_batch_size} samples"
        f"{_precision_words(prepared)}"
    ]
    for stage in plan.stages:
        ranks = layout.ranks_of(stage.index)
        shown = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
        layers, replicas = counted(len(stage.layers), "layer"), counted(len(ranks), "replica")
        planned = "" if len(ranks) == stage.replicas else f" (planned: {stage.replicas})"
        if stage.mixed and len(ranks) == stage.replicas:
            taken = Counter(layout.assignment[stage.index % len(layout.widths)])
            parts = [f"{stage.of_replica(i)[0]} takes {taken[i]}" for i in range(stage.replicas)]
            planned = f" ({printable(', '.join(parts))})"
        lines.append(f"  stage {stage.index}: {layers}, {replicas}{planned}, {shown}")
    lines += [f"  {note}" for note in rule_notes(prepared.sync, plan, layout, is_asked=options.sync is not None)]
    lines += [f"  {line}" for line in rule_lines(prepared.sync, layout.batch)]
    if options.ema is not None:
        lines += _average_lines(plan, options.ema)
    return [*lines, *(f"  {note}" for note in device_notes(plan, devices))]


def _average_lines(plan: Plan, decay: float) -> Iterator[str]:
    """Say what an average of the weights takes, and where it takes more than a device has: the plan counts none."""
    memory = {stage.index: stage.memory for stage in plan.stages if stage.memory is not None}
    most = max((parts.weights_bytes for parts in memory.values()), default=0)
    yield (
        f"  an average of the weights is kept (EMA, decay {decay:g}), up to {format_bytes(most)} on a replica, and as "
        f"much again in validations, which are of it"
    )
    room = {device.name: device.memory_bytes for device in plan.devices}
    for stage in (part for whole in plan.stages for part in whole.by_type):
        if stage.index in memory:
            parts, has = memory[stage.index], room.get(stage.device, 0.0)
            needed = parts.with_average().total_bytes
            if has and needed > has:
                device = repr(printable(stage.device))
                yield (
                    f"  stage {stage.index} needs {format_bytes(needed)} with it on {device}, which has "
                    f"{format_bytes(has)} (planned without it: {format_bytes(parts.total_bytes)}): leave --ema out, or "
                    f"compile for a pool whose {device} has more memory"
                )


def _precision_words(prepared: Prepared) -> str:
    """Return the precision of a run for its first line; "" for float32 as planned."""
    precision, planned = prepared.precision, prepared.plan.request.precision
    if precision != planned:
        return f", {precision} (planned: {planned})"
    return "" if precision == FULL else f", {precision}"


def count_steps(samples: int | None, options: RunOptions, batch: int) -> int:
    """Return how many steps the run has in all; inference takes a last one for samples that do not fill it.

    Raises:
        RunError: where the data have no end and no number of steps is given, or they do not fill one step.
    """
    if options.steps is not None:
        return options.steps
    if samples is None:
        raise RunError("the data have no end, so that the run would have none; give the number of steps (--steps N)")
    steps = samples * options.epochs // batch
    if not options.training:
        return -(-samples * options.epochs // batch)
    if not steps:
        raise RunError(
            f"the data have {samples * options.epochs} samples, and a step takes {batch}; give more data (--epochs N "
            f"goes through them again), or smaller steps (--batch N)"
        )
    return steps
