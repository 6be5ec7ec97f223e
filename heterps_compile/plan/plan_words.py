"""A plan in ten lines and in one, as ``print`` and ``repr`` show it.

Left out: the tables of the commands (``report/tables.py``), pictures (``report/notebook.py``).
"""

from collections.abc import Iterator

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable, shorten
from heterps_compile.ir.default_size import defaults_in_words
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import counted, format_money, format_seconds

from .idle_units import units_of
from .plan import NOT_VERIFIED, Plan, Verification, reading_rows, what_the_bound_proves
from .planned_stage import PlannedStage
from .table_words import tables_in_words

_STAGES_SHOWN = 3
_FOLDER = 200
_NAME = 32  # characters of a name
_KEY = len(ONE_BATCH_ALONE)


def plan_in_lines(plan: Plan, directory: str | None = None) -> str:
    """Return what a plan is, its stages, speed, price, proof and verification, in at most twelve lines.

    Args:
        plan: The plan.
        directory: Where it was written or loaded from; None where that is not known.
    """
    layers = counted(sum(len(stage.layers) for stage in plan.stages), "layer")
    rows = [
        (
            "model",
            f"{_name(plan.model)}, {plan.request.purpose}, batch {plan.batch}, {layers} in {_stage_count(plan)}",
        ),
        *([("defaults", defaults)] if (defaults := defaults_in_words(plan.bindings)) else []),
        *_stage_rows(plan),
        *reading_rows(plan),
        *([("tables", tables_in_words(plan))] if plan.tables is not None else []),
        ("price", _price(plan)),
        ("proven", what_the_bound_proves(plan) or "no bound is known"),
        ("verified", verified(plan)),
    ]
    if directory is not None:
        rows.append(("folder", _name(directory, _FOLDER)))
    return "\n".join(f"{key.ljust(_KEY)}  {text}" for key, text in rows)


def plan_in_one_line(plan: Plan) -> str:
    """Return a plan as ``repr`` shows it."""
    stages = " | ".join(_hardware(stage) for stage in plan.stages[:_STAGES_SHOWN])
    more = f" | {len(plan.stages) - _STAGES_SHOWN} more" if len(plan.stages) > _STAGES_SHOWN else ""
    return f"Plan({_name(plan.model)!r}, {plan.request.purpose}, {stages}{more}, {_per_hour(plan)})"


def verified(plan: Plan) -> str:
    """Say how far stages and whole model are apart, or that nobody looked."""
    if plan.verification is not None:
        return _found(plan.verification)
    return "no (see the notes)" if any(note.startswith(NOT_VERIFIED) for note in plan.notes) else "no (--no-verify)"


def reading_of_value(plan: Plan) -> str:
    """Name the reading that value and bound are of; "" for an objective that is a time of its own."""
    if not OBJECTIVES[plan.request.objective].has_readings:
        return ""
    return ONE_BATCH_ALONE if plan.request.minimises_step else STEADY_STATE


def _found(found: Verification) -> str:
    """Say how far they are apart, and what was compared beside one call's outputs."""
    beside = [f"{found.calls} calls in a row"] if found.calls > 1 else []
    if found.gradients:
        beside.append(f"{found.gradients} gradients, {found.gradients_max_rel:.3g} of their scale")
    if found.samples:
        beside.append(f"{found.samples} samples one by one, {found.samples_max_rel:.3g} of their scale")
    told = f"largest difference {found.max_abs:.3g}, {found.max_rel:.3g} of the output's scale"
    return "; ".join([told, *beside])


def _stage_rows(plan: Plan) -> Iterator[tuple[str, str]]:
    hidden = max(0, len(plan.stages) - _STAGES_SHOWN)
    shown = plan.stages if not hidden else plan.stages[: _STAGES_SHOWN - 2]
    yield from ((f"  stage {stage.index}", _stage(stage)) for stage in shown)
    if hidden:
        between = plan.stages[_STAGES_SHOWN - 2 : -1]
        yield f"  {between[0].index} to {between[-1].index}", _between(between)
        yield f"  stage {plan.stages[-1].index}", _stage(plan.stages[-1])


def _hardware(stage: PlannedStage) -> str:
    return " + ".join(f"{count} x {_name(device)}" for device, count in stage.units)


def _stage(stage: PlannedStage) -> str:
    ends = [_name(name, _NAME // 2) for name in dict.fromkeys((stage.layers[0], stage.layers[-1]))]
    time = format_seconds(stage.time_s)
    return f"{_hardware(stage)}, {time}: {' … '.join(ends)} ({len(stage.layers)})"


def _between(stages: tuple[PlannedStage, ...]) -> str:
    replicas = units_of(stages)
    units = ", ".join(f"{count} x {_name(device)}" for device, count in replicas.most_common(_STAGES_SHOWN))
    layers = sum(len(stage.layers) for stage in stages)
    return f"{units}{' and others' if len(replicas) > _STAGES_SHOWN else ''}: {counted(layers, 'layer')}"


def _stage_count(plan: Plan) -> str:
    return counted(len(plan.stages), "stage")


def _price(plan: Plan) -> str:
    cost = f"{format_money(plan.price_per_million_samples)} {plan.currency} per million samples"
    idle = "".join(f", {idle.count} x {_name(idle.device)} idle" for idle in plan.idle_units)
    return f"{_per_hour(plan)}{idle}, {cost} ({STEADY_STATE})"


def _per_hour(plan: Plan) -> str:
    return f"{format_money(plan.price_per_hour)} {plan.currency}/h"


def _name(name: str, width: int = _NAME) -> str:
    return shorten(printable(name), width)
