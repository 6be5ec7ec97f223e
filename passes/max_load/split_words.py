"""A solved workload, printed for people and for programs.

Left out: plans of models (``tables.py``, ``document.py``).
"""

import json
from typing import Any

from rich.console import Console
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, plain_table
from heterps_compile.cost.workload import Workload
from heterps_compile.escape import printable
from heterps_compile.passes.max_load.split import MaxLoadResult, to_split_json
from heterps_compile.units import format_bytes

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
        "method": result.method,
        "seed": result.seed,
        "objective": {"name": "max-load", "value": result.value_ms, "unit": "ms"},
        "bound": result.bound_ms,
        "bound_holds_for": f"every {_kind(result)} split",
        "gap": result.gap,
        "contiguous": result.contiguous,
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


def print_split(console: Console, workload: Workload, result: MaxLoadResult, directory: str | None) -> None:
    """Print devices, loads, and how far the largest load is from the least."""
    table = plain_table()
    add_text(table, "device")
    add_numbers(table, "nodes", "load ms", "memory")
    add_text(table, "node ids")
    split = to_split_json(workload, result.assignment)
    size_of = {node.id: node.size_bytes for node in workload.nodes}
    named = [(f"accelerator {i}", entry) for i, entry in enumerate(split["fpgas"])]
    named += [(f"cpu {i}", entry) for i, entry in enumerate(split["cpus"])]
    for name, entry in named:
        ids = entry["nodes"]
        more = f" and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else ""
        cells = [name, str(len(ids)), f"{entry['load']:.4f}", format_bytes(sum(size_of[i] for i in ids))]
        table.add_row(*map(Text, [*cells, ", ".join(map(str, ids[:_IDS_SHOWN])) + more]))
    console.print(table)
    by = f"more than {100 * result.gap:.3g} % " if result.gap else ""
    proof = f"no {_kind(result)} split is {by}better"
    console.print()
    console.print(Text(f"workload      {printable(workload.name)}, {len(workload.nodes)} nodes"))
    console.print(Text(f"largest load  {result.value_ms:.4f} ms ({_kind(result)})"))
    console.print(Text(f"proven bound  {result.bound_ms:.4f} ms: {proof}"))
    console.print(Text(f"method        {result.method}, in {result.search_s:.3g} s"))
    if directory is not None:
        console.print(Text(f"written to    {printable(directory)}: plan.json, split.json"))
    for note in result.notes:
        console.print(Text(f"note: {printable(note)}"))


def _kind(result: MaxLoadResult) -> str:
    return "contiguous" if result.contiguous else "non-contiguous"
