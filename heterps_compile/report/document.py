"""The JSON document that ``--json`` prints: the plan for programs.

Its keys are a promise: keys may be added, none goes and none changes its meaning. Every number has its unit in its
name or beside it; a number that is not finite is null. Prices in ``price_usd_per_hour`` and
``usd_per_million_samples`` are null for a pool that is priced in another currency, which the same numbers without
"usd" in their names are in. Throughput, and prices of samples, without the name of a reading are of the steady state,
``schedule.step_s`` is one batch alone, and ``schedule.bubble`` is of the steady state in inference, of one batch alone
in training; ``steady_state`` and ``one_batch_alone`` have each reading whole.

Left out: what only the plan file has (``plan/file.py``): values that cross, hashes of artefacts.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from heterps_compile.columns.document import record
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.ir.default_size import defaults_of
from heterps_compile.plan.plan import Plan, what_the_bound_holds_for
from heterps_compile.plan.stage_columns import STAGES, stage_rows
from heterps_compile.plan.table_words import tables_in_words
from heterps_compile.plan.total_columns import TOTALS, Summary

from .rows import LayerRow

FORMAT_VERSION = 1


def to_document(plan: Plan, rows: Sequence[LayerRow], directory: str) -> str:
    """Write the document.

    Args:
        plan: With its artefacts named.
        rows: Its layers.
        directory: The folder the artefacts are in.
    """
    document = {
        "format_version": FORMAT_VERSION,
        "model": plan.model,
        "directory": directory,
        "cluster": plan.cluster,
        "currency": plan.currency,
        "mode": plan.request.mode,
        "precision": plan.request.precision,
        "backend": plan.backend,
        "method": plan.method,
        "found_by": plan.found_by,
        "seed": plan.request.seed,
        "batch": plan.batch,
        **(
            {"defaults": chosen} if (chosen := {n: int(size) for n, size in defaults_of(plan.bindings).items()}) else {}
        ),
        "min_throughput_samples_per_s": plan.request.min_throughput,
        "budget_per_hour": plan.request.budget_per_hour,
        "objective": {
            "name": plan.request.objective,
            "value": plan.value,
            "unit": OBJECTIVES[plan.request.objective].unit(plan.currency),
        },
        "bound": plan.bound,
        "bound_of_all_orders": plan.bound_of_all_orders,
        "bound_holds_for": what_the_bound_holds_for(plan) or None,
        "gap": plan.gap,
        "evaluations": plan.evaluations,
        **record(TOTALS, Summary(plan)),
        "stages": [record(STAGES, row) for row in stage_rows(plan)],
        "layers": [_layer(row) for row in rows],
        "schedule": {
            "name": plan.schedule.name,
            "micro_batches": plan.schedule.micro_batches,
            "step_s": plan.schedule.step_s,
            "bubble": plan.schedule_bubble,
            "reason": plan.schedule.reason,
        },
        "verification": None
        if plan.verification is None
        else {
            "max_abs": plan.verification.max_abs,
            "max_rel": plan.verification.max_rel,
            "tolerance": plan.verification.tolerance,
            "outputs": plan.verification.outputs,
            "calls": plan.verification.calls,
            "gradients": plan.verification.gradients,
            "gradients_max_rel": plan.verification.gradients_max_rel,
            "samples": plan.verification.samples,
            "samples_max_rel": plan.verification.samples_max_rel,
        },
        "parameter_servers": {
            "count": plan.parameter_servers.count,
            "price_per_hour": plan.parameter_servers.price_per_hour,
        },
        "tables": None if plan.tables is None else {**asdict(plan.tables), "words": tables_in_words(plan)},
        "unused_devices": list(plan.unused_devices),
        "idle_units": {idle.device: idle.count for idle in plan.idle_units},
        "other_objective": None if plan.other is None else plan.other.to_json(),
        "replicated_parameters": list(plan.replicated),
        "notes": list(plan.notes),
        "search_s": plan.search_s,
        "total_s": plan.total_s,
    }
    return json.dumps(_finite(document), indent=2, allow_nan=False)


def _layer(row: LayerRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "stage": row.stage,
        "device": row.device,
        "parameters": row.parameters,
        "parameter_bytes": row.cost.parameter_bytes,
        "flops": row.cost.flops,
        "moved_bytes": row.cost.moved_bytes,
        "flop_per_byte": row.cost.flop_per_byte,
        "intensity": row.cost.label,
        "reason": row.cost.reason,
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
