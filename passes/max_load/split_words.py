"""A solved workload, printed for people and for programs.

Left out: plans of models (``plan_view.py``, ``report/document.py``).
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from heterps_compile.columns.column import BYTES, COUNT, FIGURES, LABEL, TEXT, TEXTS, Column, Medium
from heterps_compile.columns.glance import Glance, print_glance
from heterps_compile.columns.terminal import terminal_table
from heterps_compile.console import PlainConsole, note_text, pairs_table
from heterps_compile.cost.workload import Workload
from heterps_compile.passes.max_load.split import MaxLoadResult, to_split_json

FORMAT_VERSION = 1
_IDS_SHOWN = 6


def split_document(workload: Workload, result: MaxLoadResult, directory: str | None) -> dict[str, Any]:
    """Return the split as a JSON document; the keys of a compiled plan where they mean the same."""
    split = to_split_json(workload, result.assignment)
    kinds = [("accelerator", entry) for entry in split["fpgas"]] + [("cpu", entry) for entry in split["cpus"]]
    return {
        "format_version": FORMAT_VERSION,
        "workload": workload.name,
        "directory": directory,
        "seed": result.seed,
        "objective": {"name": "max-load", "value": result.value_ms, "unit": "ms"},
        "bound": result.bound_ms,
        "bound_holds_for": "every contiguous split",
        "gap": result.gap,
        "contiguous": True,
        "evaluations": result.evaluations,
        "search_s": result.search_s,
        "stages": [{"device": kind, "load_ms": entry["load"], "nodes": entry["nodes"]} for kind, entry in kinds],
        "notes": list(result.notes),
    }


def split_files(workload: Workload, result: MaxLoadResult) -> dict[str, str]:
    """Return the files of a solved workload: ``plan.json``, and ``split.json`` in the benchmark authors' own form."""
    plan = split_document(workload, result, None)
    for timed in ("directory", "search_s"):
        del plan[timed]
    split = to_split_json(workload, result.assignment)
    return {"plan.json": json.dumps(plan, indent=1) + "\n", "split.json": json.dumps(split) + "\n"}


def print_split(
    console: PlainConsole, workload: Workload, result: MaxLoadResult, directory: str | None, *, in_full: bool
) -> None:
    """Print devices, loads, and how far the largest load is from the least.

    Args:
        console: Where to.
        workload: What was split.
        result: The split.
        directory: Folder that it was written to; None for none.
        in_full: Print every device and note.
    """
    split = to_split_json(workload, result.assignment)
    size_of = {node.id: node.size_bytes for node in workload.nodes}
    named = [(f"accelerator {i}", entry) for i, entry in enumerate(split["fpgas"])]
    named += [(f"cpu {i}", entry) for i, entry in enumerate(split["cpus"])]
    rows = [
        DeviceRow(name, tuple(entry["nodes"]), entry["load"], sum(size_of[i] for i in entry["nodes"]))
        for name, entry in named
    ]
    by = f"more than {100 * result.gap:.3g} % " if result.gap else ""
    head = [("workload", f"{workload.name}, {len(workload.nodes)} nodes")]
    facts = [
        ("largest load", f"{result.value_ms:.4f} ms (contiguous)"),
        ("proven bound", f"{result.bound_ms:.4f} ms: no contiguous split is {by}better"),
        ("searched in", f"{result.search_s:.3g} s"),
        *([("written to", f"{directory}: plan.json, split.json")] if directory is not None else []),
    ]
    if in_full:
        console.print(terminal_table(DEVICES, rows, console.width, currency=""))
        console.print()
        console.print(pairs_table([*head, *facts]))
        for note in result.notes:
            console.print(note_text(note))
        return
    table = partial(terminal_table, DEVICES, rows, console.width, currency="", medium=Medium.GLANCE)
    print_glance(console, Glance(head, table, len(rows), facts, (), result.notes))


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A device of a split: its nodes by id, its load in ms, the bytes that it holds."""

    name: str
    nodes: tuple[int, ...]
    load_ms: float
    size_bytes: float


def _ids(row: DeviceRow) -> str:
    more = f" and {len(row.nodes) - _IDS_SHOWN} more" if len(row.nodes) > _IDS_SHOWN else ""
    return ", ".join(map(str, row.nodes[:_IDS_SHOWN])) + more


DEVICES: tuple[Column[DeviceRow], ...] = (
    Column("device", lambda row: row.name, LABEL, on=TEXTS),
    Column("nodes", lambda row: len(row.nodes), COUNT, on=TEXTS),
    Column("load ms", lambda row: f"{row.load_ms:.4f}", FIGURES, on=TEXTS),
    Column("memory", lambda row: row.size_bytes, BYTES, on=TEXTS),
    Column("node ids", _ids, TEXT, on=TEXTS),
)
