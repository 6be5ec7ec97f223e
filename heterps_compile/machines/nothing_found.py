"""What is said where no set of machines keeps what was asked: which comes nearest, and what would let it in.

Left out: the search (``search.py``).
"""

import math
from collections.abc import Mapping, Sequence

from heterps_compile.errors import InfeasibleError
from heterps_compile.units import format_bytes, format_duration, format_money, plain_number

from .goal import HOUR_S, Goal, described
from .machine_set import MachineSet
from .option import Option, excess
from .step_times import NO_ROOM, PART

NAME_OF_PART = f"'{PART}0'"
"""What a reason calls the units of a set of one kind."""


def nothing_found(found: Mapping[tuple[MachineSet, int], Option | str], goal: Goal) -> InfeasibleError:
    """Return the error that says what comes nearest, and what would help."""
    plans = [option for option in found.values() if isinstance(option, Option)]
    if not plans:
        return _nothing_fits(found)
    nearest = min(plans, key=lambda option: excess(option, goal))
    outlook = nearest.outlook
    limits = {
        "deadline": f"takes {format_duration(outlook.most_s)} in nine of ten runs (--deadline {hours(outlook.most_s)})",
        "budget": f"costs {format_money(outlook.most_money)} USD in nine of ten runs "
        f"(--budget '{whole(outlook.most_money)} USD')",
    }
    faults = " and ".join(limits[name] for name in nearest.fails)
    is_full = nearest.machines.count >= goal.most_machines < 256 and "deadline" in nearest.fails
    more = ", or more machines (--max-machines)" if is_full else ""
    return InfeasibleError(
        f"no set was found for {described(goal)}: the nearest, {nearest.machines.title}, {faults}; allow that{more}"
        f"{_one_limit_alone(plans)}"
    )


def _nothing_fits(found: Mapping[tuple[MachineSet, int], Option | str]) -> InfeasibleError:
    """Return the error that says why there is no plan, of the set whose units have the most memory."""
    reasons = [(machines, reason) for (machines, _), reason in found.items() if isinstance(reason, str)]
    alone = [each for each in reasons if len(each[0].parts) == 1] or reasons
    said = f"the model fits none of the sets of machines looked at ({len(found):,})"
    if not alone:
        return InfeasibleError(f"{said}; allow others (--gpu, --region, --provider, --catalogue)")
    machines, reason = max(alone, key=lambda each: min(d.memory_bytes for d in each[0].pool().device_types))
    if NAME_OF_PART not in reason and reason != NO_ROOM:
        return InfeasibleError(f"{said}: of {machines.title}, {reason}")
    memory = format_bytes(min(device.memory_bytes for device in machines.pool().device_types))
    why = reason.partition("; ")[0].replace(NAME_OF_PART, f"that of {machines.title}")
    why = f"on {machines.title}, {NO_ROOM} ({memory} each)" if reason == NO_ROOM else why
    return InfeasibleError(
        f"{said}: {why}; look at offers with more memory, at a smaller batch (--batch), or at an optimizer that holds "
        "less (--optimizer)"
    )


def _one_limit_alone(plans: Sequence[Option]) -> str:
    """Return what it takes to meet one limit where the other is kept; "" where no plan keeps one and breaks another."""
    late_s = min((each.outlook.most_s for each in plans if each.fails == ("deadline",)), default=None)
    dear = min((each.outlook.most_money for each in plans if each.fails == ("budget",)), default=None)
    if late_s is None or dear is None:
        return ""
    return f"; with this budget --deadline {hours(late_s)} is met, with this deadline --budget '{whole(dear)} USD'"


def hours(seconds: float) -> str:
    """Return a time as ``--deadline`` takes it, rounded up."""
    hundredths = math.ceil(seconds * 100 / HOUR_S)
    while hundredths / 100 * HOUR_S < seconds:  # by what dividing and multiplying round off
        hundredths += max(1, hundredths >> 52)
    return f"{plain_number(hundredths / 100)}h"


def whole(money: float) -> str:
    """Return money as ``--budget`` takes it, rounded up."""
    hundredths = math.ceil(money * 100)
    while hundredths / 100 < money:
        hundredths += max(1, hundredths >> 52)
    return f"{hundredths / 100:.2f}"
