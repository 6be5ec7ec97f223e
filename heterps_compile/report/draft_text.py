"""A draft after a pass as plain text, for ``--print-after``: what the pass filled in, one line a thing.

The text is stable: the same draft gives the same text, whatever the terminal.

Left out: times spent.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from heterps_compile.cost.finders import finder
from heterps_compile.cost.objective import OBJECTIVES, plans_of_the_problem
from heterps_compile.cost.problem import Problem
from heterps_compile.escape import printable
from heterps_compile.passes.contract import Pass, steps_of
from heterps_compile.passes.drafts import (
    Annotated,
    Draft,
    Emitted,
    Fused,
    Layered,
    Placed,
    Posed,
    Provisioned,
    Scheduled,
    filled_in,
)
from heterps_compile.plan.planned_schedule import readings_of
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.stage_sync import own_words, rule_name
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, alone_words, steady_words
from heterps_compile.units import counted, format_bytes, format_count, format_money, format_seconds


def draft_text(step: Pass, draft: Draft) -> str:
    """Return what a pass filled in, under a heading with its name.

    Args:
        step: The pass that has just run.
        draft: The draft it gave.
    """
    return fields_text(step.name, filled_in(*steps_of(step)), draft)


def fields_text(name_of_pass: str, names: Iterable[str], draft: Draft) -> str:
    """Return some fields of a draft, under a heading with the name of a pass."""
    lines = [f"after {name_of_pass}"]
    for name in names:
        shown = SECTIONS[name](draft) if name in SECTIONS else [f"{name} is a {type(getattr(draft, name)).__name__}"]
        lines += [f"  {printable(line)}".rstrip() for line in shown]
    return "\n".join(lines) + "\n"


def _layers(draft: Layered) -> Iterator[str]:
    nodes = draft.layers.graph.nodes
    yield f"{counted(len(draft.layers.layers), 'layer')} of {counted(len(nodes), 'node')}"
    yield from _columns(
        [f"{index}", layer.name, layer.kind.value, " ".join(nodes[i].name for i in layer.nodes)]
        for index, layer in enumerate(draft.layers.layers)
    )


def _costs(draft: Annotated) -> Iterator[str]:
    yield from _columns(
        [
            layer.name,
            f"{format_count(cost.flops)} FLOP",
            f"moves {format_bytes(cost.moved_bytes)}",
            f"holds {format_bytes(cost.parameter_bytes)}",
            cost.label,
            cost.reason,
        ]
        for layer, cost in zip(draft.layers.layers, draft.costs, strict=True)
    )


def _times(draft: Posed) -> Iterator[str]:
    yield from draft.times.notes()


def _problem(draft: Posed) -> Iterator[str]:
    problem = draft.problem
    yield (
        f"{counted(problem.layer_count, 'layer')}, {counted(problem.type_count, 'device type')}, "
        f"{len(problem.edge_producer)} values between layers, batch {problem.batch}"
    )
    yield from _columns(
        [name, *(_on_type(problem, i, t) for t in range(problem.type_count))]
        for i, name in enumerate(problem.layer_names)
    )


def _on_type(problem: Problem, layer: int, device: int) -> str:
    name = problem.type_names[device]
    if not problem.allowed[layer, device]:
        return f"{name}: forbidden"
    compute_s, data_s = problem.compute_s[layer, device], problem.data_s[layer, device]
    return f"{name}: compute {format_seconds(compute_s)}, data {format_seconds(data_s)}"


def _search(draft: Placed) -> Iterator[str]:
    search, problem = draft.search, draft.problem
    objective = OBJECTIVES[problem.objective]
    value, bound = (
        objective.describe(number, problem.batch, draft.cluster.currency) if number > 0 else "0"
        for number in (search.value, search.bound)
    )
    plans = plans_of_the_problem(problem.layer_count, in_any_order=search.bound_of_all_orders >= search.bound)
    yield (
        f"{search.method}, seed {search.seed}: {value}, bound {bound} for every {plans}, "
        f"gap {100 * search.gap:.3g} %, "
        f"{search.evaluations:,} placements"
    )
    if search.found_by:
        yield f"found by {finder(search.found_by)}"
    yield from _columns(
        [name, problem.type_names[kind]] for name, kind in zip(problem.layer_names, search.placement.types, strict=True)
    )
    if search.placement.cuts:
        yield "also cut before " + ", ".join(problem.layer_names[p] for p in search.placement.cuts)


def _tried(draft: Placed) -> Iterator[str]:
    objective = OBJECTIVES[draft.problem.objective]
    for row in draft.tried:
        value = objective.describe(row.value, draft.problem.batch, draft.cluster.currency) if row.value > 0 else "0"
        yield f"{row.method} by itself: {row.fault or value}"


def _other(draft: Placed) -> Iterator[str]:
    if draft.other is not None:
        objective, units = OBJECTIVES[draft.other.objective], draft.other.units.items()
        value = objective.describe(draft.other.value, draft.problem.batch, draft.cluster.currency)
        yield f"--objective {objective.name}: {value}, on {', '.join(f'{count} x {name}' for name, count in units)}"


def _stages(draft: Fused) -> Iterator[str]:
    yield from _columns(_stage(stage, draft.cluster.currency) for stage in draft.stages)


def _stage(stage: PlannedStage, currency: str) -> list[str]:
    cells = [f"stage {stage.index}", stage.device_words]
    if stage.replicas:
        cells += [
            f"x{stage.replicas_words}",
            f"compute {format_seconds(stage.compute_s)}",
            f"data {format_seconds(stage.data_s)}" + _all_reduce(stage) + _own(stage) + _rows(stage),
            f"in {format_bytes(stage.received_bytes)}",
            f"out {format_bytes(stage.sent_bytes)}",
            f"memory {stage.memory_words}" if stage.memory else "",
            f"{format_money(stage.price_per_hour)} {currency}/h",
        ]
    return [*cells, " ".join(stage.layers)]


def _all_reduce(stage: PlannedStage) -> str:
    shown = stage.sync is not None or stage.all_reduce_s > 0
    return f", {rule_name(stage)} {format_seconds(stage.all_reduce_s)}" if shown else ""


def _own(stage: PlannedStage) -> str:
    words = own_words(stage)
    return f", {words}" if words else ""


def _rows(stage: PlannedStage) -> str:
    rows = stage.rows
    return f", rows of servers {format_seconds(rows.rows_s + rows.requests_s)} one way" if rows is not None else ""


def _parameter_servers(draft: Provisioned) -> Iterator[str]:
    servers = draft.parameter_servers
    if servers.count:
        price = f"{format_money(servers.price_per_hour)} {draft.cluster.currency}/h"
        yield f"parameter servers x{servers.count}, {price}"


def _tables(draft: Provisioned) -> Iterator[str]:
    tables = draft.tables
    if tables is not None:
        price = f"{format_money(tables.price_per_hour)} {draft.cluster.currency}/h"
        yield f"{counted(len(tables.names), 'table')} on {counted(tables.servers, 'server')}, {price}"


def _open_tables(draft: Posed) -> Iterator[str]:
    if draft.open_tables:
        yield f"{counted(len(draft.open_tables), 'table')} may lie on servers"


def _schedule(draft: Scheduled) -> Iterator[str]:
    schedule = draft.schedule
    readings = readings_of(draft.graph.batch, draft.stages, schedule)
    yield f"{schedule.name}, micro-batches {schedule.micro_batches}"
    yield f"{STEADY_STATE}: {steady_words(readings.steady_state)}"
    yield f"{ONE_BATCH_ALONE}: {alone_words(readings.one_batch_alone)}"
    yield schedule.reason


def _partition(draft: Emitted) -> Iterator[str]:
    yield from _columns(
        [
            f"stage {cut.index}",
            counted(len(cut.nodes), "node"),
            f"takes {' '.join(cut.inputs)}",
            f"gives {' '.join(cut.outputs)}",
            f"holds {' '.join(cut.parameters)}",
        ]
        for cut in draft.partition.stages
    )


def _runnable(draft: Emitted) -> Iterator[str]:
    for index, stage in enumerate(draft.runnable):
        yield f"stage {index} is a {type(stage).__name__}"


SECTIONS: Mapping[str, Callable[[Any], Iterator[str]]] = MappingProxyType(
    {
        "layers": _layers,
        "costs": _costs,
        "times": _times,
        "problem": _problem,
        "search": _search,
        "tried": _tried,
        "other": _other,
        "stages": _stages,
        "parameter_servers": _parameter_servers,
        "tables": _tables,
        "open_tables": _open_tables,
        "schedule": _schedule,
        "partition": _partition,
        "runnable": _runnable,
    }
)
"""How each field of a draft is written; a test holds it against the fields there are."""


def _columns(rows: Iterable[list[str]]) -> Iterator[str]:
    """Align cells; the last of a row is not padded."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*(row[:-1] for row in cells), strict=True)]
    for row in cells:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
