"""A plan in one line, as ``repr`` shows it.

Left out: the view that ``print`` shows (``plan_view.py``).
"""

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable, shorten
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import format_money

from .plan import Plan
from .planned_stage import PlannedStage

_STAGES_SHOWN = 3
_NAME = 32  # characters of a name


def plan_in_one_line(plan: Plan) -> str:
    """Return a plan as ``repr`` shows it."""
    stages = " | ".join(_hardware(stage) for stage in plan.stages[:_STAGES_SHOWN])
    more = f" | {len(plan.stages) - _STAGES_SHOWN} more" if len(plan.stages) > _STAGES_SHOWN else ""
    price = f"{format_money(plan.price_per_hour)} {plan.currency}/h"
    return f"Plan({_name(plan.model)!r}, {plan.request.purpose}, {stages}{more}, {price})"


def reading_of_value(plan: Plan) -> str:
    """Name the reading that value and bound are of; "" for an objective that is a time of its own."""
    if not OBJECTIVES[plan.request.objective].has_readings:
        return ""
    return ONE_BATCH_ALONE if plan.request.minimises_step else STEADY_STATE


def _hardware(stage: PlannedStage) -> str:
    return " + ".join(f"{count} x {_name(device)}" for device, count in stage.units)


def _name(name: str) -> str:
    return shorten(printable(name), _NAME)
