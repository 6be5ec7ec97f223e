"""The plan for people: tables of layers and stages, the totals, and every fallback and surprise.

Names come from models; each goes through :func:`~heterps_compile.escape.printable` into a ``Text``, so that neither
escape sequences nor rich's own markup reach the terminal.

Left out: progress (``cli/output.py``), pictures.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from heterps_compile.cluster.devices import Cluster
from heterps_compile.console import add_numbers, add_text, name_text, note_text, pairs_table, plain_table
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable
from heterps_compile.ir.default_size import defaults_in_words
from heterps_compile.plan.plan import (
    Plan,
    reading_of_value,
    reading_rows,
    recomputation_words,
    tables_in_words,
    verified,
    what_the_bound_proves,
)
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.stage_sync import rules_words
from heterps_compile.plan.table_words import how_to_run_tables
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import format_bytes, format_count, format_money, format_seconds, rate_number

from .rows import LayerRow

TIME_SPENT = "time spent"
LAYERS_SHOWN = 16  # of a longer table, first and last ones in equal parts
NARROW = 100  # columns; below, the tables leave out what the totals or the folder tell as well
_FILES_SHOWN = 6


def print_plan(
    console: Console, plan: Plan, rows: Sequence[LayerRow], *, directory: str | None, all_layers: bool
) -> None:
    """Print default sizes, layers, stages, totals and notes.

    Args:
        console: Where to.
        plan: The plan.
        rows: Its layers; none where they are not known.
        directory: The folder it was written to, or None.
        all_layers: Show every layer of a long table.
    """
    if line := defaults_line(plan):
        console.print(line)
        console.print()
    if rows:
        console.print(layer_table(rows, console.width, all_layers=all_layers))
        console.print()
    console.print(stage_table(plan, console.width))
    console.print()
    console.print(totals_table(plan, directory))
    for note in notes(plan):
        console.print(note_text(note))


def defaults_line(plan: Plan) -> Text | None:
    """Return the numbers of free dimensions that the user did not give, each with its option; None without any."""
    shown = defaults_in_words(plan.bindings)
    return Text(f"defaults: {shown}") if shown else None


def sha256_line(digest: str) -> Text:
    """Return the line with a plan's hash, to copy."""
    return Text(f"SHA-256 of plan.json, for --expect-sha256: {digest}")


def layer_table(rows: Sequence[LayerRow], width: int, *, all_layers: bool) -> Table:
    """Draw what every layer is and costs, and whether data or computation dominates it.

    Args:
        rows: The layers.
        width: Columns there are; the table is narrower where it can be.
        all_layers: Show every layer of a long table.
    """
    table = plain_table()
    is_told = any(row.told not in ("", row.kind) for row in rows)
    add_text(table, "layer", min_width=width // (8 if is_told else 6))
    add_text(table, "kind", min_width=width // 4 if is_told else None, no_wrap=not is_told)
    if width >= NARROW:
        add_numbers(table, "stage")
    add_numbers(table, "params", "FLOPs", "bytes")
    add_text(table, "bound by", no_wrap=True)
    if width >= NARROW:
        add_text(table, "because", min_width=width // 5)
    else:
        add_numbers(table, "FLOP/B")
    hidden = 0 if all_layers else max(0, len(rows) - LAYERS_SHOWN)
    first = len(rows) if not hidden else LAYERS_SHOWN // 2
    for row in rows[:first]:
        table.add_row(*_layer_cells(row, width))
    if hidden:
        table.add_row(Text(f"… {hidden} more; -v shows all", style="dim"))
    for row in rows[first + hidden :]:
        table.add_row(*_layer_cells(row, width))
    return table


def _layer_cells(row: LayerRow, width: int) -> list[Text]:
    cost = row.cost
    return [
        name_text(row.name, width),
        Text(printable(row.told or row.kind)),
        *([Text(f"{row.stage}")] if width >= NARROW else []),
        Text(format_count(row.parameters)),
        Text(format_count(cost.flops)),
        Text(format_bytes(cost.moved_bytes)),
        Text(cost.label),
        Text(printable(cost.reason) if width >= NARROW else f"{cost.flop_per_byte:.3g}"),
    ]


def stage_table(plan: Plan, width: int) -> Table:
    """Draw what every stage holds, runs on, takes and costs, in so many columns."""
    table = plain_table()
    add_numbers(table, "stage")
    add_text(table, "layers", min_width=width // 6)
    add_text(table, "device", no_wrap=True)
    add_numbers(table, "replicas", "time", "samples/s", "memory", f"{plan.currency}/h")
    if width >= NARROW:
        add_text(table, "file")
    for stage in plan.stages:
        samples_per_s = rate_number(plan.batch / stage.time_s) if stage.time_s > 0 else "-"
        file = plan.artifacts[stage.index][0].file if plan.artifacts else "-"
        table.add_row(
            Text(f"{stage.index}"),
            _layers_of(stage, width),
            name_text(stage.device_words, width),
            Text(stage.replicas_words),
            Text(format_seconds(stage.time_s)),
            Text(samples_per_s),
            Text(format_bytes(stage.memory.total_bytes) if stage.memory else "-"),
            Text(format_money(stage.price_per_hour)),
            *([Text(file)] if width >= NARROW else []),
        )
    return table


def _layers_of(stage: PlannedStage, width: int) -> Text:
    first, *others = stage.layers
    if not others:
        return name_text(first, width)
    ends = (name_text(name, width // 2).plain for name in (first, others[-1]))
    return Text(f"{(' … ' if len(others) > 1 else ', ').join(ends)} ({len(stage.layers)})")


def totals_table(plan: Plan, directory: str | None) -> Table:
    """Draw what the whole plan reaches, costs and is proven to be close to."""
    return pairs_table(plan_totals(plan, directory))


def plan_totals(plan: Plan, directory: str | None = None) -> list[tuple[str, str]]:
    """Return what the whole plan reaches and costs, as pairs of what it is and how much."""
    budget, alone = plan.request.budget_per_hour, plan.readings.one_batch_alone
    schedule, recomputation = plan.schedule, recomputation_words(plan.stages)
    rules = rules_words(plan.stages)
    totals = [
        ("model", f"{printable(plan.model)}, {plan.request.purpose}, batch {plan.batch}"),
        *reading_rows(plan),
        (
            "price",
            f"{format_money(plan.price_per_hour)} {plan.currency}/h"
            + (f" (budget {format_money(budget)})" if budget else ""),
        ),
        *_objective(plan),
        *_servers(plan),
        *_idle(plan),
        (
            "per million samples",
            f"{format_money(plan.price_per_million_samples)} {plan.currency} ({STEADY_STATE}), "
            f"{format_money(plan.price_at(alone.throughput_samples_per_s))} {plan.currency} ({ONE_BATCH_ALONE})",
        ),
        ("proven bound", _bound(plan)),
        (
            "schedule",
            f"{printable(schedule.name)}, micro-batches {schedule.micro_batches}",
        ),
        *([("recomputation", recomputation)] if recomputation else []),
        *([("agreement", rules)] if rules else []),
        (
            "method",
            f"{printable(plan.search)}, placements tried {plan.evaluations:,}, in {format_seconds(plan.search_s)}",
        ),
        (
            "verified",
            verified(plan),
        ),
        (TIME_SPENT, format_seconds(plan.total_s)),
    ]
    if directory is not None:
        totals.append(("written to", printable(directory)))
        files = [artifact.file for artifacts in plan.artifacts for artifact in artifacts]
        more = f" and {len(files) - _FILES_SHOWN} more" if len(files) > _FILES_SHOWN else ""
        totals.append(("files", f"plan.json, README.md, {', '.join(files[:_FILES_SHOWN])}{more}"))
    return totals


def _objective(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of an objective that no other row shows."""
    if plan.request.objective not in ("latency", "max-load"):
        return []
    described = OBJECTIVES[plan.request.objective].describe(plan.value, plan.batch, plan.currency)
    undivided = ", undivided, computation and data one after the other" if plan.request.objective == "latency" else ""
    return [(plan.request.objective.replace("-", " "), described + undivided)]


def _servers(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of tables on servers, and of the cores that carry gradients."""
    rows = [("tables", f"{tables_in_words(plan)}; {how_to_run_tables(plan)}")] if plan.tables is not None else []
    servers = plan.parameter_servers.beside(plan.tables)
    if servers.count:
        text = f"{servers.count} parameter server cores, {format_money(servers.price_per_hour)} {plan.currency}/h"
        rows.append(("servers", text))
    return rows


def _idle(plan: Plan) -> list[tuple[str, str]]:
    return [
        (
            "idle units",
            f"{idle.count} {printable(idle.device)} in machines of {idle.units_per_machine}, "
            f"{format_money(idle.price_per_hour)} {plan.currency}/h of the price",
        )
        for idle in plan.idle_units
    ]


def _bound(plan: Plan) -> str:
    if plan.bound <= 0:
        return "none"
    reading = reading_of_value(plan)
    of_steady = ""
    if plan.request.minimises_step and plan.bound > plan.steady_bound > 0:
        objective = OBJECTIVES[plan.request.objective]
        shown = objective.describe(plan.steady_bound, plan.batch, plan.currency)
        of_steady = f"; the {STEADY_STATE} alone proves {shown}"
    return f"{bound_text(plan)}{f' ({reading})' * bool(reading)}: {what_the_bound_proves(plan)}{of_steady}"


def bound_text(plan: Plan) -> str:
    """Return the proven bound in the unit of the objective."""
    return OBJECTIVES[plan.request.objective].describe(plan.bound, plan.batch, plan.currency)


def notes(plan: Plan) -> list[str]:
    """Return as sentences every fallback, unused device and replicated parameter, and a plan that saves money."""
    found = list(plan.notes)
    if plan.unused_devices:
        found.append(f"no stage uses {', '.join(map(repr, plan.unused_devices))}")
    if plan.replicated:
        more = f" and {len(plan.replicated) - 3} more" if len(plan.replicated) > 3 else ""
        found.append(f"several stages hold {', '.join(map(repr, plan.replicated[:3]))}{more}")
    if plan.other is not None:
        other = plan.other.sentence(plan.price_per_hour, plan.valued.throughput_samples_per_s, plan.currency)
        found += [other] if other else []
    return found


def cluster_table(pool: Cluster, width: int) -> Table:
    """Draw the device types of a pool, in so many columns."""
    table = plain_table()
    add_text(table, "device", "kind", no_wrap=True)
    add_numbers(table, f"{pool.currency}/h", "units", "memory", "float32")
    if width >= NARROW:
        add_numbers(table, "memory bw", "network")
    add_text(table, "price from", min_width=width // 6)
    for device in pool.device_types:
        bandwidths = (device.memory_bytes_per_s, device.network_bytes_per_s) if width >= NARROW else ()
        table.add_row(
            name_text(device.name, width),
            Text(device.kind),
            Text(format_money(device.price_per_hour) if device.price_per_hour else "free"),
            Text(f"{device.max_units:,}"),
            Text(format_bytes(device.memory_bytes)),
            Text(f"{format_count(device.peak_flops['float32'])}FLOP/s"),
            *(Text(f"{format_count(bandwidth)}B/s") for bandwidth in bandwidths),
            Text(printable(device.price_source) + (f", {device.price_date}" if device.price_date else "")),
        )
    return table


def cluster_lines(pool: Cluster) -> list[str]:
    """Return what a pool has besides device types: links, and parameter servers."""
    lines = [
        f"link {' - '.join(link.between)}: {format_count(link.bytes_per_s)}B/s, {format_seconds(link.latency_s)}"
        for link in pool.links
    ]
    lines += [
        f"machines of {device.units_per_machine} {printable(device.name)}, which share its network: inside "
        f"{format_count(device.inner_bytes_per_s)}B/s, {format_seconds(device.inner_latency_s)}"
        f"{'; rented whole' if device.whole_machines else ''}"
        for device in pool.device_types
        if device.units_per_machine > 1
    ]
    if pool.parameter_server is not None:
        server = pool.parameter_server
        price = f"{format_money(server.price_per_hour)} {pool.currency}/h" if server.price_per_hour else "free"
        lines.append(
            f"parameter server, a core: {price}, {format_count(server.bytes_per_s)}B/s, "
            f"{format_bytes(server.memory_bytes)}, {format_seconds(server.per_table_s)} a table"
        )
    return lines
