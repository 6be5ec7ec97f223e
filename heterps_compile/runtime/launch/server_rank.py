"""A rank that serves embedding tables, and what ranks with stages need to reach it.

Left out: the tables and what travels (``servers/``).
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from torch.nn import Module

from heterps_compile.errors import RunError, UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.plan.served_tables import ServedTables
from heterps_compile.runtime.checkpoint.format import SERVERS_NAME, Checkpoint, open_checkpoint
from heterps_compile.runtime.checkpoint.table_states import tables_of_stages
from heterps_compile.runtime.pipeline.read_stage import RunnableStage
from heterps_compile.runtime.pipeline.recorder import Recorder
from heterps_compile.runtime.servers.client import Client
from heterps_compile.runtime.servers.optimizers import sparse_optimizer
from heterps_compile.runtime.servers.row_prefetch import RowPrefetch
from heterps_compile.runtime.servers.served_table import serve_tables
from heterps_compile.runtime.servers.server import serve_forever
from heterps_compile.runtime.servers.spec import Growth, ServerSpec, TableSpec
from heterps_compile.runtime.servers.trace_lookups import find_plan_tables
from heterps_compile.runtime.telemetry.rank_recorder import TelemetryRecorder

from .progress import SERVING
from .rank_context import RankContext, Result
from .server_options import ServerOptions
from .told_by_rank import tell_tables


def make_spec(context: RankContext, checkpoint: Checkpoint | None, steps: range) -> ServerSpec | None:
    """Return what the servers of a run hold, the same on every rank; None where there are none.

    Args:
        context: Of any rank.
        checkpoint: It goes on from; None where it starts at the beginning.
        steps: Of the run.

    Raises:
        RunError: where the plan has no tables that could be served.
    """
    prepared, options = context.prepared, context.options.servers
    if not options.count:
        return None
    folder, plan, layout = prepared.folder, prepared.plan, prepared.layout
    tables = find_plan_tables(folder, plan)
    if plan.tables is not None:
        tables = planned_tables(tables, plan.tables)
    files = {table.weights.name for table in tables}
    stages = [index for index, of_stage in enumerate(plan.artifacts) if any(one.file in files for one in of_stage)]
    if not stages:
        raise RunError(
            "no stage has an embedding table that servers could hold: one that is only looked up, and by one stage; "
            "run without --parameter-servers"
        )
    tables = growing(tables, options, context.options.seed)
    optimizer = sparse_optimizer(options.optimizer, options.learning_rate, options.weight_decay)
    weights = context.options.weights
    start = checkpoint if checkpoint is not None or weights is None else open_checkpoint(Path(weights))
    is_served = start is not None and start.state.servers > 0
    if start is not None and not is_served:
        tables = tables_of_stages(start, tables, optimizer, with_state=checkpoint is not None)
    return ServerSpec(
        workers=tuple(sorted({rank for stage in stages for rank in layout.ranks_of(stage)})),
        ranks=tuple(range(layout.world_size, prepared.world_size)),
        tables=tables,
        optimizer=optimizer,
        staleness=options.staleness,
        clips=context.options.clip_norm is not None,
        save_every=context.options.every,
        memory_bytes=options.memory_bytes,
        directory=Path(options.directory or tempfile.gettempdir()),
        wire=context.options.wire,
        first_step=steps.start,
        resume=start.path / SERVERS_NAME if start is not None and is_served else None,
        weights_only=checkpoint is None,
    )


def planned_tables(tables: Sequence[TableSpec], planned: ServedTables) -> tuple[TableSpec, ...]:
    """Return the tables that the plan has on servers; the others stay in their stages.

    Raises:
        RunError: where a stage does not look one up as servers could.
    """
    missing = [name for name in planned.names if name not in {table.name for table in tables}]
    if missing:
        raise RunError(
            f"the plan has the table {printable(missing[0])!r} on servers, and no single stage of PyTorch's looks rows "
            "up in it and does nothing else with it; compile with --tables held, for the backend torch, or with "
            "--max-stages 1 where several stages read it"
        )
    return tuple(table for table in tables if table.name in planned.names)


def growing(tables: Sequence[TableSpec], options: ServerOptions, seed: int) -> tuple[TableSpec, ...]:
    """Return tables, of which those that the options name may grow.

    Raises:
        UnknownNameError: where a pattern names none.
    """
    growth = Growth(
        admit_after=options.admit_after,
        unseen_steps=options.evict_unseen,
        least_shows=options.evict_below,
        decay=options.show_decay,
        every=options.evict_every,
        seed=seed,
    )
    grow = set[str]()
    for pattern in options.grow_tables:
        named = {table.name for table in tables if fnmatchcase(table.name, pattern)}
        if not named:
            raise UnknownNameError("table on parameter servers", pattern, [table.name for table in tables])
        grow |= named
    return tuple(replace(table, growth=growth) if table.name in grow else table for table in tables)


def serve_stages(
    context: RankContext,
    start: tuple[Checkpoint | None, range],
    stages: Mapping[int, RunnableStage],
    recorder: Recorder,
    telemetry: TelemetryRecorder | None,
) -> tuple[Client | None, RowPrefetch | None]:
    """Put served tables in place of those of a rank's stages; return what asks for their rows, None without any.

    Args:
        context: Of the rank.
        start: The checkpoint to go on from, and the steps to run.
        stages: Of the rank.
        recorder: Is told of waits.
        telemetry: Is told of what tables hold.
    """
    served = make_spec(context, *start)
    if served is None or context.rank not in served.workers:
        return None, None
    client = Client(served, context.rank, recorder=recorder)
    for stage in stages.values():
        if isinstance(stage, Module):
            serve_tables(stage, client)
    if client.is_first and telemetry is not None:
        client.on_counts = partial(tell_tables, telemetry, client, context.rank)
    return client, RowPrefetch(client, context.layout.actions(context.rank), start[1])


def run_server_rank(context: RankContext, checkpoint: Checkpoint | None, steps: range) -> Result:
    """Serve tables until every rank that looks rows up has what it needs.

    Raises:
        HeterpsError: where tables cannot be read, do not fit, or a request cannot be right.
    """
    served = make_spec(context, checkpoint, steps)
    if served is None:
        raise RunError(f"rank {context.rank} is a parameter server, and the run has none")

    def heard(step: int) -> None:
        context.progress.begin_step(step)
        context.progress.enter(SERVING)

    context.progress.enter(SERVING)
    serve_forever(served, context.rank, heard=heard)
    return Result(steps.start, steps.stop, context.layout.batch)
