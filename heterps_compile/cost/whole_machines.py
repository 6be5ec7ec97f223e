"""What units cost an hour where some types are rented as whole machines.

A machine is paid with all of its units, whether stages use them or not. Stages share the machines of their type, one
after the other, so that at most one machine of a type has units that nobody uses::

    three stages on machines of 4    |aaab|bbcc|cc..|    3 + 3 + 4 units used, 12 rented, 2 of them idle

    price per hour = sum over types of price_t * g_t * ceil(units_t / g_t)        g_t units that are rented together

That is never less than the price of the units used, so that whatever bounds plans whose units are rented one by one
bounds these too.

Left out: which stage gets which machine, machines with units of several types.
"""

from dataclasses import replace

import numpy as np

from .problem import Floats, Ints, Problem


def by_unit(problem: Problem) -> Problem:
    """Return the problem with every unit rented by itself: its plans are no dearer, so its bounds hold for both."""
    return problem if problem.rented_together is None else replace(problem, rented_together=None)


def rented_units(problem: Problem, used: Floats) -> Floats:
    """Return [.., T], the units that are rented where so many are used."""
    if problem.rented_together is None:
        return used
    return np.asarray(np.ceil(used / problem.rented_together) * problem.rented_together, np.float64)


def paid_per_hour(problem: Problem, types: Ints, owner: Ints, offsets: Ints, units: Floats) -> Floats:
    """Return [B], what the units [N] of the stages of B placements cost an hour.

    Args:
        problem: The problem.
        types: [N], of every stage.
        owner: [N], its placement.
        offsets: [B], the first stage of every placement.
        units: [N], inf where no number is enough.
    """
    if problem.rented_together is None:
        return np.asarray(np.add.reduceat(problem.price_per_hour[types] * units, offsets))
    used = units_by_type(problem.type_count, types, owner, units, len(offsets))
    return np.asarray(rented_units(problem, used) @ problem.price_per_hour)


def idle_price_per_hour(problem: Problem, types: Ints, units: Floats) -> float:
    """Return what the units cost an hour that are rented beside those [N] of the stages of one placement."""
    if problem.rented_together is None:
        return 0.0
    used = np.asarray(np.bincount(types, units, problem.type_count), np.float64)
    return float((rented_units(problem, used) - used) @ problem.price_per_hour)


def units_by_type(type_count: int, types: Ints, owner: Ints, units: Floats, owners: int) -> Floats:
    """Return [owners, T], the units of each type that each owner's stages take."""
    used = np.bincount(owner * type_count + types, units, owners * type_count)
    return np.asarray(used, np.float64).reshape(owners, type_count)
