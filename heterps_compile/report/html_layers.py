"""What a page says of a layer that is chosen: its work, and what it takes and costs on every device type.

Left out: how the page shows it (``templates/report.js``).
"""

import json
import math
from collections.abc import Iterator
from typing import Any

from heterps_compile.cost.problem import Problem
from heterps_compile.escape import printable, shorten
from heterps_compile.units import format_bytes, format_count, format_money, format_seconds

from .findings import Findings
from .pictures import NAME_WIDTH

_MOST_TEXT = 400


def layer_facts(findings: Findings) -> dict[str, Any]:
    """Return what is embedded in the page: per layer its facts, its device types, and the edges of all."""
    plan = findings.plan
    layers = [
        {"name": _shown(view.name), "stage": view.stage, "device": _shown(view.device), "facts": []}
        for view in findings.views
    ]
    for entry, view in zip(layers, findings.views, strict=True):
        if view.change:
            entry["change"] = _shown(view.change)
    for entry, row in zip(layers, findings.rows, strict=False):
        cost = row.cost
        entry["facts"] = [
            ["kind", row.kind],
            ["parameters", format_count(row.parameters)],
            ["weights", format_bytes(cost.parameter_bytes)],
            ["computation", f"{format_count(cost.flops)}FLOP a batch"],
            ["memory traffic", f"{format_bytes(cost.moved_bytes)} a batch"],
            ["intensity", f"{cost.flop_per_byte:.3g} FLOP a byte"],
            ["bound by", cost.label],
            ["because", shorten(printable(cost.reason), _MOST_TEXT)],
        ]
    if findings.problem is not None and findings.problem.layer_count == len(layers):
        for index, entry in enumerate(layers):
            entry["types"] = list(_types(findings.problem, index, plan.currency))
    edges = [[first, last, format_bytes(size)] for first, last, size in findings.edges]
    return {"layers": layers, "edges": edges, "currency": plan.currency}


def _types(problem: Problem, layer: int, currency: str) -> Iterator[list[str]]:
    """Yield name, computation, data and price of a layer on every type: alone on one unit that it keeps busy."""
    for index, name in enumerate(problem.type_names):
        compute_s, data_s = float(problem.compute_s[layer, index]), float(problem.data_s[layer, index])
        if not math.isfinite(compute_s) or not problem.allowed[layer, index]:
            yield [_shown(name), "cannot run it" if not math.isfinite(compute_s) else "not allowed", "", ""]
            continue
        paid = max(compute_s, data_s) * float(problem.price_per_hour[index]) / 3600 / problem.batch * 1e6
        yield [_shown(name), format_seconds(compute_s), format_seconds(data_s), f"{format_money(paid)} {currency}"]


def _shown(name: str) -> str:
    return shorten(printable(name), NAME_WIDTH)


def for_script(value: Any) -> str:
    """Return JSON that may stand between script tags: no character of it can end them or begin a comment."""
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
