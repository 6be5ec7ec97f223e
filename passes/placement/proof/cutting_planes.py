"""Multipliers by cutting planes (Kelley): the highest point of what the paths found so far leave of a Lagrangian bound.

Every path p bounds the bound of multipliers m from above, and the planes of all of them are a small linear programme::

    maximise  z    subject to    z <= cost(p) + m @ excess(p) for every path p,    0 <= m <= box

Its optimum is far off while there are few planes. So the next multipliers lie half way between it and the best ones so
far, and the box is a few times these (Wentges, "Weighted Dantzig-Wolfe decomposition", 1997).

Not covered: the paths (``lagrangian.py``, ``interval_bound.py``).
"""

from typing import Any

import numpy as np

from heterps_compile.cost.problem import Floats
from heterps_compile.passes.solver import run_small

_BOX = 4.0  # times the best multipliers
_SAME = 1e-5  # relative; planes that leave no more room than that are done


class CuttingPlanes:
    """The planes of the paths found, and the best multipliers.

    Attributes:
        best: [C], the multipliers of the highest bound.
        bound: That bound.
    """

    def __init__(self, multipliers: Floats, bound: float, span: Floats) -> None:
        """Begin without planes.

        Args:
            multipliers: [C], one for each limit.
            bound: Theirs.
            span: [C], how far multipliers go in the first step; 0 keeps one as it is.
        """
        self.best, self.bound, self._span = multipliers, bound, span
        self._rows: list[Floats] = []
        self._costs: list[float] = []

    def add(self, multipliers: Floats, bound: float, excess: Floats) -> None:
        """Add the plane of the path that has the bound of some multipliers.

        Args:
            multipliers: [C].
            bound: Of the cheapest path, refund included.
            excess: [C], what the path uses beyond each limit.
        """
        if bound > self.bound:
            self.best, self.bound = multipliers, bound
        self._rows.append(excess)
        self._costs.append(bound - float(multipliers @ excess))

    def next(self) -> Floats | None:
        """Return the next multipliers, [C]; None if they would raise the bound by nothing worth a path."""
        highest, top = self._top()
        if highest <= self.bound + _SAME * abs(self.bound):
            return None
        return (self.best + top) / 2

    def _top(self) -> tuple[float, Floats]:
        """Return the optimum of the programme: its height and its multipliers."""
        import highspy  # noqa: PLC0415 - half a second that only coupled limits need

        rows, costs = np.array(self._rows), np.array(self._costs)
        box = np.where(self._span > 0, _BOX * self.best + self._span, self.best)
        scale = np.where(box > 0, box, 1.0)
        slopes = rows * scale
        height = max(float(np.abs(costs).max()), float(np.abs(slopes).max())) or 1.0
        count, limits = rows.shape
        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = limits + 1, count
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.append(np.zeros(limits), 1.0)
        model.col_lower_, model.col_upper_ = np.append(np.zeros(limits), -np.inf), np.append(box / scale, np.inf)
        model.row_lower_, model.row_upper_ = np.full(count, -np.inf), costs / height
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.arange(count + 1) * (limits + 1)
        model.a_matrix_.index_ = np.tile(np.arange(limits + 1), count)
        model.a_matrix_.value_ = np.hstack([-slopes / height, np.ones((count, 1))]).ravel()
        solver: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy ships no types for it
        found = run_small(solver, model)
        return float(found[-1]) * height, np.clip(found[:-1], 0.0, 1.0) * scale
