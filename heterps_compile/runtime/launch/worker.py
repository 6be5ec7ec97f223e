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

Left out: the steps themselves (``pipeline/``), and how the launcher sees the end (``local_ranks.py``).
"""

import atexit
import json
import os
import re
import shutil
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from heterps_compile.errors import HeterpsError, InputError
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.runtime.pipeline.world import join_world, leave_world

from .addresses import check_reach, choose_address, own_address
from .checkpoint_folder import holding_checkpoints
from .env_rank import device_type_here, join
from .faults import Place
from .fork_server import end_with_parent
from .machines_of_ranks import machine_notes, machines_of_ranks
from .membership import Membership, has_agent
from .preflight import agree, ranks_without, refuse_own_folders, statement
from .prepare import Prepared, check_world_size, choose_device, header, prepare
from .progress import ProgressRecorder
from .rank_context import RankContext, RankSpec, Result
from .run_folder import PREFIX, make_run_folder
from .run_options import options_from_json
from .run_report import RunReport, clear_telemetry, print_summary
from .run_secret import read_secret
from .server_rank import run_server_rank
from .stage_rank import run_stage_rank, steps_to_run
from .stop_signals import stopping_on_signals
from .store_client import LOOPBACK, StorePlace, connect_store, host_store, read_word
from .telemetry_relay import TelemetryCollector, TelemetrySender, end_telemetry
from .watch import Supervision, Watch

if TYPE_CHECKING:
    from heterps_compile.runtime.c10d import Store

CONFIG_NAME = "run.json"
PROGRESS_NAME = "rank-{rank}.progress"
"""Files of the run's folder: what ranks are started with, and what each left behind."""

_RUN_FOLDER = re.compile(rf"/(?:[^\0]{{0,4000}}/)?{PREFIX}[A-Za-z0-9_]{{1,64}}")
_OUTSTAY_S = 5.0
_TELEMETRY_KEY = "telemetry"
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
    progress = ProgressRecorder(spec.progress_file)
    is_launched = spec.parent is not None
    # The launcher hosts a store for each run; else rank 0 does, for all runs of a script, one after the other.
    if spec.store is None:
        member, place, prepared = _join_world(member, spec)
    else:
        place, prepared = spec.store, None
    hosted = host_store(place) if member.rank == 0 and not is_launched else None
    places = [Place(rank) for rank in range(member.world_size)]
    watch = Watch(
        connect_store(place, f"rank {member.rank}"), places, member.rank, progress, _supervision(member, spec, place)
    )
    if hosted is not None and place.folder is not None:
        watch.before_end(remove := partial(shutil.rmtree, place.folder, ignore_errors=True))
        atexit.register(remove)
    watch.start()
    with stopping_on_signals(watch.listen):
        try:
            result = _run(member, spec, place, watch, progress, prepared)
            watch.finish()
        except BaseException as error:  # the outermost frame of a rank: told to all, then the process ends
            watch.fail(error)
            raise
    leave_world()
    if hosted is not None:
        watch.outstay(_OUTSTAY_S)
        hosted.close()
    return result


def _join_world(member: Membership, spec: RankSpec) -> tuple[Membership, StorePlace, Prepared]:
    """Check the run, meet the other ranks, and get a rank of the run.

    Raises:
        HeterpsError: if this rank or another one refuses the run.
    """
    prepared: Prepared | HeterpsError
    device_type = None
    try:
        prepared = prepare(spec.options, checked_sha256=spec.checked_sha256)
        device_type = device_type_here(prepared, spec.options.device_type, member.local_rank)
    except HeterpsError as error:
        prepared = error
    member, place = join(member, prepared, device_type, str(next(_RUNS)))
    if isinstance(prepared, HeterpsError):
        raise prepared
    return member, place, prepared


def _supervision(member: Membership, spec: RankSpec, place: StorePlace) -> Supervision:
    """Return who watches over a rank: the launcher, or where there is none rank 0 over all, and all over rank 0."""
    hang_after_s, folder = spec.options.hang_after_s, spec.options.checkpoint
    checkpoints = None if folder is None else Path(folder)
    if spec.parent is not None:
        return Supervision(hang_after_s=hang_after_s, parent=spec.parent, checkpoints=checkpoints)
    monitored = range(1, member.world_size) if member.rank == 0 else (0,)
    parent = os.getppid() if has_agent(os.environ) else None
    return Supervision(
        hang_after_s=hang_after_s,
        monitored=monitored,
        parent=parent,
        late_s=place.patience_s,
        host=0,
        checkpoints=checkpoints,
    )


def _run(  # noqa: PLR0917 - what a rank has before it joins the others
    member: Membership,
    spec: RankSpec,
    place: StorePlace,
    watch: Watch,
    progress: ProgressRecorder,
    prepared: Prepared | None,
) -> Result:
    import torch  # noqa: PLC0415 - torch only in the processes of a run

    connect = partial(connect_store, place, f"rank {member.rank}")
    store = connect()
    prepared = prepared or prepare(spec.options, checked_sha256=spec.checked_sha256)
    check_world_size(prepared, member.world_size)
    watch.know(prepared.places)
    device = choose_device(prepared, member.rank, member.local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    mine = statement(prepared, spec.options, str(device), own_address(member.address))
    said = agree(store, member.rank, member.world_size, mine)
    own = choose_address([str(said_by.get("address", "")) for said_by in said])
    if own:
        check_reach(store, member.rank, member.world_size, own)
    _join_group(member, store)
    machine_of = machines_of_ranks(said)
    context = RankContext(spec, member, prepared, store, watch, progress, device, machine_of)
    is_launched = spec.parent is not None
    if member.rank == 0 and spec.parent is None and not spec.options.quiet:
        kinds = [str(said[prepared.layout.ranks_of(stage.index)[0]].get("device")) for stage in prepared.plan.stages]
        lines = header(prepared, spec.options, [kind.partition(":")[0] for kind in kinds])
        lines += machine_notes(prepared, machine_of)
        for line in lines:
            _tell(line)
    if not is_launched:
        if spec.options.checkpoint is not None:
            refuse_own_folders(store, member.rank, member.world_size, Path(spec.options.checkpoint))
        with holding_checkpoints(spec.options.checkpoint if member.rank == 0 else None):
            return _run_and_tell(context, connect())
    return _run_part(context)


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run_part(context: RankContext) -> Result:
    if context.prepared.places[context.rank].stages:
        return run_stage_rank(context)
    checkpoint, steps = steps_to_run(context)
    return run_server_rank(context, checkpoint, steps)


def _run_and_tell(context: RankContext, store: "Store") -> Result:
    """Run, and have rank 0 do what the launcher does elsewhere: the live view, the log, the summary."""
    folder, without = _telemetry_folder(context)
    context = replace(context, spec=replace(context.spec, telemetry=folder))
    if context.rank in without:
        with closing(TelemetrySender(store, folder, context.rank)):
            return _run_part(context)
    if context.rank != 0:
        result = _run_part(context)
        end_telemetry(store, context.rank)
        return result
    collector = TelemetryCollector(store, folder, without)
    with RunReport(context.prepared, context.options, folder, sys.stderr) as show, show.following(collector):
        result = _run_part(context)
        collector.wait_for_last(context.member.world_size)
    if context.spec.prints_summary:
        print_summary(Console(file=sys.stdout, markup=False, highlight=False, width=_WIDTH), result, show)
    return result


def _telemetry_folder(context: RankContext) -> tuple[Path, list[int]]:
    """Return where this rank tells of its steps, and the ranks that do not share the folder of rank 0."""
    store, rank, options = context.store, context.rank, context.options
    if rank == 0:
        if options.telemetry is None:
            folder = _make_telemetry_folder(context)
        else:
            clear_telemetry(folder := Path(options.telemetry))
        store.set(_TELEMETRY_KEY, str(folder))
    folder = Path(options.telemetry or read_word(store, _TELEMETRY_KEY, _RUN_FOLDER, "the folder of a run"))
    without = ranks_without(store, rank, context.member.world_size, folder, "telemetry")
    return _make_telemetry_folder(context) if rank in without else folder, without


def _make_telemetry_folder(context: RankContext) -> Path:
    folder, _ = make_run_folder()  # held until this process ends
    remove = partial(shutil.rmtree, folder, ignore_errors=True)
    context.watch.before_end(remove)
    atexit.register(remove)
    return folder


def _join_group(member: Membership, store: "Store") -> None:
    """Join the world of the run; its groups connect as they are made."""
    from heterps_compile.runtime.c10d import PrefixStore  # noqa: PLC0415 - torch only in the processes of a run

    join_world(PrefixStore("group", store), member.rank, member.world_size)


def start(directory: Path, rank: int) -> int:
    """Be a rank that the launcher started; gives its exit code.

    Raises:
        InputError: where the launcher's file cannot be read.
    """
    try:
        content = json.loads((directory / CONFIG_NAME).read_text("utf-8"))
        options = options_from_json(json.dumps(content["options"]))
        parent, world_size = int(content["parent"]), int(content["world_size"])
        place = StorePlace(read_secret(directory), folder=directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {str(directory / CONFIG_NAME)!r}: {error}") from error
    end_with_parent(parent)
    telemetry = Path(content["telemetry"]) if content.get("telemetry") else None
    progress_file = directory / PROGRESS_NAME.format(rank=rank)
    spec = RankSpec(
        options,
        parent=parent,
        telemetry=telemetry,
        progress_file=progress_file,
        checked_sha256=str(content["plan"]),
        store=place,
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
