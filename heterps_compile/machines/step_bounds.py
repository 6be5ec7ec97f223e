"""Bounds on steps of sets of machines of one kind, by the fewest units that the stages of a step need.

A step of M micro-batches that lasts at most T has only segments whose own bound is at most T
(``passes/placement/steps/step_segments.py``), each with the fewest replicas that reach it. The cheapest path over those
is the least number of units of a plan, ``need(T)``, which falls as T grows. A set of fewer units has a longer step::

    need(T) |‾‾|___                 of u units, no step is within the last T of the grid with need(T) > u;
          u |- - - |- - -           the least of that over all M bounds every plan
            |      |____
            +------o-------- T

Left out: sets of two kinds, and whole machines, which prices have.
"""

import numpy as np

from heterps_compile.cost.problem import Floats, Ints
from heterps_compile.passes.placement.steps.step_closing import is_listed
from heterps_compile.passes.placement.steps.step_segments import StepSegments, class_times
from heterps_compile.schedule.load import ROUNDS_OF_REPLICAS, USUAL_MICRO_BATCHES

from .sets import Kind
from .step_times import QUICK_CLOSING, StepTimes

_RATIO = 1.01  # of the times of the grid
_LONGER = 8.0  # than the longest of the given bounds no bound is looked for
_SHORTEST_S = 1e-15  # a model may have nothing to compute
_SURE = 1 - 1e-9  # of a bound, for what rounding makes of equal numbers


def least_steps_s(segments: StepSegments, units: Floats, low_s: Floats) -> Floats:
    """Bound the steps of plans on some units of one type.

    Args:
        segments: Of a problem with at least as many units.
        units: [C].
        low_s: [C], bounds in seconds that are known.

    Returns:
        [C], bounds in seconds, none below those that are known.
    """
    of, found = segments.of, np.full(len(units), np.inf)
    for count in sorted(of.all_counts, key=lambda count: abs(np.log(count / USUAL_MICRO_BATCHES))):
        parts = of.parts(count)
        whole_s = float((parts.forward_s + np.minimum(parts.backward_s, parts.accumulate_s)).sum())
        begin_s = max(float(low_s.min()), whole_s, _SHORTEST_S)
        most_s = min(float(low_s.max()) * _LONGER, float(found.max()))
        if begin_s >= most_s:  # of so many micro-batches no bound lowers what was found
            within_s = np.full(len(units), most_s)
        else:
            grid_s = begin_s * _RATIO ** np.arange(np.ceil(np.log(most_s / begin_s) / np.log(_RATIO)) + 1)
            needed = _units_needed(segments, count, grid_s)
            place = np.searchsorted(-needed, -units)
            within_s = np.where(place > 0, grid_s[place - 1] * _SURE, 0.0)
        found = np.minimum(found, within_s)
    return np.asarray(np.maximum(found, low_s), np.float64)


def _units_needed(segments: StepSegments, count: int, grid_s: Floats) -> Floats:
    """Find the fewest units for steps within ascending times, shape [J]; inf for none.

    More than the usual number of micro-batches are only taken with a stage of at least an eighth as many replicas.
    """
    times = class_times(segments, count)
    place = np.searchsorted(grid_s, np.minimum.accumulate(times.least_s, axis=1))
    fewest, rows = np.full((len(grid_s) + 1, len(place)), np.inf), np.arange(len(place))
    for each in range(place.shape[1] - 1, -1, -1):
        fewest[place[:, each], rows] = times.fewest[0, each]
    needed = segments.least_to_end(np.minimum.accumulate(fewest[:-1], axis=0))[:, 0]
    return np.asarray(
        np.maximum(needed, 1 if count <= USUAL_MICRO_BATCHES else -(-count // ROUNDS_OF_REPLICAS)), np.float64
    )


def bound_steps(times: StepTimes, kind: Kind, batch: int, machines: Ints, low_s: Floats) -> Floats:
    """Bound the steps on machines of a kind.

    Units of one machine talk inside it, so that it is a problem of its own.

    Args:
        times: Steps of the model.
        kind: Of the machines.
        batch: Samples in a step.
        machines: [C], how many of them.
        low_s: [C], bounds in seconds that are known.

    Returns:
        [C], bounds in seconds; those that are known where a problem has too many segments.
    """
    found = low_s.copy()
    for here in (np.flatnonzero(machines == 1), np.flatnonzero(machines > 1)):
        largest = int(machines[here].max(initial=0))
        orders = times.segments_of(kind.device, largest * kind.units, batch) if largest else ()
        if orders and all(len(each.type) and is_listed(each, QUICK_CLOSING) for each in orders):
            units = machines[here].astype(np.float64) * kind.units
            found[here] = np.minimum.reduce([least_steps_s(each, units, low_s[here]) for each in orders])
    return found
