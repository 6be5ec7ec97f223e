"""Kicks: changes too large for the polish, after which it climbs anew.

::

    plan      | cpu  | gpu          | npu      |
    drawn     | npu     | cpu  | gpu           |         crossed: a window of the plan as drawn
    crossed   | cpu  |gpu| cpu  | gpu | npu    |

    plan      | gpu | gpu | gpu | gpu | cpu    |         divided: a run of stages on one type
    divided   | gpu   | gpu   | gpu   | cpu    |         in another number of equal ones

Left out: where plans are drawn from (``sampling.py``).
"""

import numpy as np

from heterps_compile.cost.problem import Floats

from .spans import Spans
from .stage_list import Cut, Move, apply

_CHANGES = (-2, -1, 1, 2)
_CHANGE_ODDS = (0.15, 0.35, 0.35, 0.15)


def cross(cut: Cut, drawn: Cut, generator: np.random.Generator) -> Cut:
    """Put a window of another plan in place of the plan's own; its two ends are cut."""
    count = int(cut.bounds[-1])
    low, high = np.sort(generator.integers(0, count + 1, 2))
    low = min(low, count - 1)
    high = max(high, low + 1)
    types, begins = cut.spread()
    drawn_types, drawn_begins = drawn.spread()
    types[low:high], begins[low:high] = drawn_types[low:high], drawn_begins[low:high]
    begins[low] = True
    begins[min(high, count - 1)] |= high < count
    bounds = np.flatnonzero(begins)
    return Cut(np.append(bounds, count), types[bounds])


def divide_run(spans: Spans, cut: Cut, generator: np.random.Generator) -> tuple[Cut, float]:
    """Divide a run of stages on one type into one or two stages more or fewer, of equal work.

    Returns:
        The plan, and the ratio of the new stages' work to that of the old ones.
    """
    edges = np.append(np.flatnonzero(np.append(True, cut.types[1:] != cut.types[:-1])), len(cut.types))
    run = int(generator.integers(len(edges) - 1))
    first, end = int(edges[run]), int(edges[run + 1])
    parts = max(1, end - first + int(generator.choice(_CHANGES, p=_CHANGE_ODDS)))
    low, high, type_ = int(cut.bounds[first]), int(cut.bounds[end]), int(cut.types[first])
    work = np.maximum(_since(spans.compute_s, low, high, type_), _since(spans.data_s, low, high, type_))
    inner = low + np.searchsorted(work, work[-1] * np.arange(1, parts) / parts)
    inner = np.unique(inner[(low < inner) & (inner < high)])
    count = len(inner) + 1
    divided, _ = apply(cut, [Move(0.0, first, end, inner.tolist(), [type_] * count)])
    return divided, (end - first) / count


def _since(sums: Floats, low: int, high: int, type_: int) -> Floats:
    return np.asarray(sums[low : high + 1, type_] - sums[low, type_])
