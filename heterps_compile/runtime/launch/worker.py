"""What one rank of a run does, from joining the others to leaving with them.

::

    connect to the store, start the watcher
    read the plan                              every rank by itself
    agree on plan, versions and options        all refuse alike
    read the stages, and a checkpoint          stage_rank.py, server_rank.py
    steps                                      loop.py
    last checkpoint, wait for all, leave

The launcher starts :func:`main` with the run's folder and a rank; under torchrun, ``heterps-compile run`` and ``run()``
of Python come here directly.

Left out: the steps themselves (``pipeline/``), and how the launcher sees the end (``local_machine.py``).
"""

import json
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.runtime.checkpoint.folder import holding_checkpoints

from .addresses import LOOPBACK, own_address
from .beats import BeatPage
from .fork_server import end_with_parent
from .machines_of_ranks import machine_notes
from .membership import Membership
from .preflight import agree, refuse_own_folders, statement
from .prepare import Prepared, check_world_size, choose_device, header, planned_devices, prepare
from .progress import ProgressRecorder
from .rank_context import RankContext, RankSpec, Result
from .run_folder import run_folder
from .run_options import options_from_json
from .run_store import Connect, folder_store
from .stage_rank import run_stage_rank
from .steps_of_run import steps_to_run
from .watch import Supervision, Watch
from .watched_ranks import join_group, supervised_by_ranks, watched

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

    from .env_rank import Joined

CONFIG_NAME = "run.json"
PAGE_NAME = "beats"
"""Files of the run's folder: what ranks are started with, and their heartbeats."""

_WIDTH = 120
_RUNS = count()


def work(member: Membership, spec: RankSpec) -> Result:
    """Be one rank of a run. On a fault this process ends at once, after the message.

    Raises:
        RunError: where the run's store cannot be reached.
    """
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    keep_freed_memory()
    torch.set_num_threads(spec.options.threads)
    hang_after_s, folder = spec.options.hang_after_s, spec.options.checkpoint
    checkpoints = None if folder is None else Path(folder)
    connect: Connect
    prepared = None
    if spec.folder is not None:
        page = BeatPage(spec.folder / PAGE_NAME)
        progress = ProgressRecorder(partial(page.write, member.rank))
        connect = partial(folder_store, spec.folder)
        supervision = Supervision(hang_after_s=hang_after_s, beats=page, parent=spec.parent, checkpoints=checkpoints)
    else:
        joined, prepared = _join_world(member, spec)
        member, connect, progress = joined.member, joined.connect, ProgressRecorder()
        supervision = supervised_by_ranks(joined, hang_after_s, checkpoints)
    with watched(member, connect, progress, supervision) as watch:
        return _run(member, spec, connect, watch, progress, prepared)


def _join_world(member: Membership, spec: RankSpec) -> tuple["Joined", Prepared]:
    """Check the run, meet the other ranks, and get a rank of the run.

    Raises:
        HeterpsError: if this rank or another one refuses the run.
    """
    from .env_rank import device_type_here, join  # noqa: PLC0415 - ranks of a launcher have met

    prepared: Prepared | HeterpsError
    device_type = None
    try:
        prepared = prepare(spec.options, checked_sha256=spec.checked_sha256)
        known = list(dict(planned_devices(prepared)))
        device_type = device_type_here(known, spec.options.device_type, member.local_rank)
    except HeterpsError as error:
        prepared = error
    joined = join(member, prepared, device_type, str(next(_RUNS)))
    if isinstance(prepared, HeterpsError):
        raise prepared
    return joined, prepared


def _run(  # noqa: PLR0917 - what a rank has before it joins the others
    member: Membership,
    spec: RankSpec,
    connect: Connect,
    watch: Watch,
    progress: ProgressRecorder,
    prepared: Prepared | None,
) -> Result:
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    store = connect()
    prepared = prepared or prepare(spec.options, checked_sha256=spec.checked_sha256)
    check_world_size(prepared, member.world_size)
    watch.know(prepared.places)
    device = choose_device(prepared, member.rank, member.local_rank)
    mine = statement(prepared, spec.options, str(device), own_address(member.address))
    if device.type == "cuda":
        from heterps_compile.runtime.pipeline.over_nccl import gpu_id  # noqa: PLC0415 - on GPUs alone

        torch.cuda.set_device(device)
        mine["gpu"] = gpu_id(device)
    said = agree(store, member.rank, member.world_size, mine)
    machine_of = join_group(member, store, said)
    context = RankContext(spec, member, prepared, store, watch, progress, device, machine_of)
    if spec.parent is not None:
        return _run_part(context)
    if member.rank == 0 and not spec.options.quiet:
        from heterps_compile.runtime.pipeline.gpu_table import gpu_table  # noqa: PLC0415 - a launcher has said it

        kinds = [str(said[prepared.layout.ranks_of(stage.index)[0]].get("device")) for stage in prepared.plan.stages]
        devices = [kind.partition(":")[0] for kind in kinds]
        notes = machine_notes(prepared, machine_of, gpu_table(said))
        for line in (*header(prepared, spec.options, devices), *notes):
            print(line, file=sys.stderr, flush=True)
    if spec.options.checkpoint is not None:
        refuse_own_folders(store, member.rank, member.world_size, Path(spec.options.checkpoint))
    with holding_checkpoints(spec.options.checkpoint if member.rank == 0 else None):
        return _run_and_tell(context, connect())


def _run_part(context: RankContext) -> Result:
    if context.prepared.places[context.rank].stages:
        return run_stage_rank(context)
    from .server_rank import run_server_rank  # noqa: PLC0415 - few runs have servers

    checkpoint, steps = steps_to_run(context)
    return run_server_rank(context, checkpoint, steps)


def _run_and_tell(context: RankContext, store: "Store") -> Result:
    """Run, and have rank 0 do what the launcher does elsewhere: the live view, the log, the summary.

    Ranks write what they report into a folder of their own. Rank 0 takes it from the store, and removes what an earlier
    run left in the folder that the user named.
    """
    from rich.console import Console  # noqa: PLC0415 - a launcher has all of these, its ranks need none

    from .run_report import RunReport, clear_telemetry, print_summary  # noqa: PLC0415 - as above
    from .telemetry_relay import TelemetryCollector, TelemetrySender  # noqa: PLC0415 - as above

    with run_folder() as own:
        context.watch.before_end(partial(shutil.rmtree, own, ignore_errors=True))  # a fault ends this process at once
        if context.rank != 0:
            with closing(TelemetrySender(store, own, context.rank)):
                return _run_part(_telling(context, own))
        folder = own if context.options.telemetry is None else Path(context.options.telemetry)
        clear_telemetry(folder)
        collector = TelemetryCollector(store, folder, range(1, context.member.world_size))
        with RunReport(context.prepared, context.options, folder, sys.stderr) as show, show.following(collector):
            result = _run_part(_telling(context, folder))
            collector.wait_for_last()
    if context.spec.prints_summary:
        print_summary(Console(file=sys.stdout, markup=False, highlight=False, width=_WIDTH), result, show)
    return result


def _telling(context: RankContext, folder: Path) -> RankContext:
    return replace(context, spec=replace(context.spec, telemetry=folder))


def start(directory: Path, rank: int) -> int:
    """Be a rank that the launcher started; gives its exit code.

    Raises:
        InputError: where the launcher's file cannot be read.
    """
    try:
        content = json.loads((directory / CONFIG_NAME).read_text("utf-8"))
        options = options_from_json(json.dumps(content["options"]))
        parent, world_size = int(content["parent"]), int(content["world_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {str(directory / CONFIG_NAME)!r}: {error}") from error
    end_with_parent(parent)
    telemetry = Path(content["telemetry"]) if content.get("telemetry") else None
    spec = RankSpec(
        options,
        parent=parent,
        telemetry=telemetry,
        folder=directory,
        checked_sha256=str(content["plan"]),
    )
    work(Membership(rank, world_size, rank, LOOPBACK, 0), spec)
    return 0


def main() -> int:
    """Be the rank that the words of this process name: the run's folder and a number."""
    try:
        return start(Path(sys.argv[1]), int(sys.argv[2]))
    except HeterpsError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return 1
