"""Non-contiguous splits as a mixed-integer programme for HiGHS: a proof, and often a better split.

With x[b, d] = 1 where block b is on device d, y[h, d] = 1 where accelerator d holds net h in part, and z the
largest load::

    minimise z
    sum over d of x[b, d] = 1                                                    every block somewhere
    y[h, d] >= x[b, d] - x[b', d]      for neighbours b, b' around the net h     cut nets are charged
    sum over b of time[b, d] x[b, d] + sum over h of net_ms[h] y[h, d] <= z      every device's load
    sum over b of size[b] x[b, d] <= memory                                      accelerators

Charging around a ring of a net's blocks is enough: a net held in part has some neighbours on either side of the cut.
Devices of a kind are interchangeable, so the r-th longest block is kept to the first r of them. The bound of its
linear relaxation is weak; with a good split known (``annealing.py``) branching closes it all the same, because a block
whose move must exceed the known value is fixed.

Also a bound for contiguous splits, which are splits after all.

Left out: the contiguity constraints.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from heterps_compile.passes.deadline import Deadline, TimeUpError, now_s
from heterps_compile.passes.solver import run_solver

from .blocks import Blocks

_ASKED = 64
"""Nets written down between two looks at the clock."""
TOLERANCE = 1e-6
"""Relative; the solver's own feasibility tolerance and the gap at which it stops."""


@dataclass(frozen=True, slots=True)
class MilpResult:
    """What the solver came to.

    Attributes:
        devices: Device of every block in the best split it holds, None where it holds none.
        bound_ms: Below every split's largest load, the solver's tolerance taken off.
        is_infeasible: Whether it proved that there is no split at all.
    """

    devices: tuple[int, ...] | None
    bound_ms: float
    is_infeasible: bool


def solve_milp(
    blocks: Blocks,
    known: Sequence[int] | None,
    within_ms: tuple[float, float],
    deadline: Deadline,
    anchored: Collection[int] = (),
    *,
    most_s: float = math.inf,
) -> MilpResult:
    """Minimise the largest load with HiGHS.

    Args:
        blocks: n blocks with their pool.
        known: Device of every block in a valid split to start from.
        within_ms: A lower bound on every split's largest load, and that of the known one; inf where none is known.
        deadline: Stop then; what it takes to write the programme down counts too.
        anchored: Nets that also lie on a device outside the problem, and so are cut wherever they lie.
        most_s: Most seconds that HiGHS may take.
    """
    begun_s = now_s()
    try:
        return _Model(blocks, known, within_ms, anchored, deadline).solve(begun_s, most_s)
    except TimeUpError:
        return MilpResult(None, 0.0, False)


class _Model:
    """Columns x, y, z; rows collected in compressed form; times in units of the known value."""

    def __init__(
        self,
        blocks: Blocks,
        known: Sequence[int] | None,
        within_ms: tuple[float, float],
        anchored: Collection[int],
        deadline: Deadline,
    ) -> None:
        self.blocks, self.anchored, self.deadline = blocks, frozenset(anchored), deadline
        self.n, self.k = blocks.count, blocks.accelerators
        self.devices = self.k + blocks.cpus
        self.bound_ms, self.scale_ms = within_ms
        if not math.isfinite(self.scale_ms):
            self.scale_ms = max(float(blocks.accelerator_ms.sum() + blocks.cpu_ms.sum()), 1e-9)
        nets = len(blocks.nets)
        self.x = np.arange(self.n * self.devices).reshape(self.n, self.devices)
        self.y = self.x.size + np.arange(nets * self.k).reshape(nets, self.k)
        self.z = self.x.size + self.y.size
        self.longest_first = np.argsort(-np.maximum(blocks.accelerator_ms, blocks.cpu_ms), kind="stable")
        self.known = None if known is None else self._relabel(known)
        self.starts, self.indices, self.values = [0], list[int](), list[float]()
        self.row_lower, self.row_upper = list[float](), list[float]()
        self._add_rows()

    def _relabel(self, devices: Sequence[int]) -> list[int]:
        """Rename devices of a kind in the order in which the longest blocks meet them."""
        names: dict[int, int] = {}
        met = [0, 0]
        for block in self.longest_first:
            device = devices[block]
            if device not in names:
                kind = int(device >= self.k)
                names[device] = met[kind] + kind * self.k
                met[kind] += 1
        return [names[device] for device in devices]

    def _row(self, indices: Sequence[int], values: Sequence[float], lower: float, upper: float) -> None:
        self.indices += [int(i) for i in indices]
        self.values += [float(v) for v in values]
        self.starts.append(len(self.indices))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def _add_rows(self) -> None:
        blocks, inf = self.blocks, highspy.kHighsInf
        for block in range(self.n):
            self._row(self.x[block].tolist(), [1.0] * self.devices, 1.0, 1.0)
        for h, net in enumerate(blocks.nets):
            if h % _ASKED == 0:
                self.deadline.check()
            for one, other in zip(net, net[1:] + net[:1], strict=True):
                for d in range(self.k):
                    if h in self.anchored:
                        self._row([self.y[h, d], self.x[one, d]], [1.0, -1.0], 0.0, inf)
                    else:
                        self._row([self.y[h, d], self.x[one, d], self.x[other, d]], [1.0, -1.0, 1.0], 0.0, inf)
        for d in range(self.devices):
            times_ms = blocks.accelerator_ms if d < self.k else blocks.cpu_ms
            indices, values = [*self.x[:, d].tolist(), self.z], [*(times_ms / self.scale_ms).tolist(), -1.0]
            if d < self.k:
                indices += self.y[:, d].tolist()
                values += (blocks.net_ms / self.scale_ms).tolist()
            self._row(indices, values, -inf, 0.0)
        if blocks.size_bytes.sum() > blocks.memory_bytes > 0:
            for d in range(self.k):
                self._row(self.x[:, d].tolist(), (blocks.size_bytes / blocks.memory_bytes).tolist(), -inf, 1.0)

    def _upper(self) -> list[float]:
        """Return the columns' upper bounds: what cannot run where, what can wait for another name, what is too long."""
        upper = np.ones(self.z + 1)
        upper[self.z] = 1.0 + TOLERANCE if self.known is not None else highspy.kHighsInf
        upper[self.x[~self.blocks.on_accelerator, : self.k]] = 0.0
        upper[self.x[~self.blocks.on_cpu, self.k :]] = 0.0
        for rank, block in enumerate(self.longest_first):
            upper[self.x[block, rank + 1 : self.k]] = 0.0
            upper[self.x[block, self.k + rank + 1 :]] = 0.0
        if self.known is not None:
            limit_ms = self.scale_ms * (1 + TOLERANCE)
            upper[self.x[self.blocks.accelerator_ms > limit_ms, : self.k]] = 0.0
            upper[self.x[self.blocks.cpu_ms > limit_ms, self.k :]] = 0.0
        return [float(bound) for bound in upper]

    def _start(self, known: Sequence[int]) -> list[float]:
        values = np.zeros(self.z + 1)
        values[self.x[np.arange(self.n), known]] = 1.0
        for h, net in enumerate(self.blocks.nets):
            touched = {known[block] for block in net}
            if len(touched) > 1 or h in self.anchored:
                values[[self.y[h, d] for d in touched if d < self.k]] = 1.0
        values[self.z] = 1.0
        return [float(value) for value in values]

    def solve(self, begun_s: float, most_s: float) -> MilpResult:
        """Run HiGHS; writing the programme down began at ``begun_s``.

        Raises:
            TimeUpError: where too little time is left for it.
        """
        highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy ships no types for it
        for option, value in (
            ("output_flag", False),
            ("mip_rel_gap", TOLERANCE),
            ("mip_abs_gap", TOLERANCE),
            ("mip_feasibility_tolerance", TOLERANCE),
            # Told as a target only: as a bound of z it would flatten the relaxation, and branching would lose its way.
            ("objective_target", self.bound_ms / self.scale_ms * (1 + TOLERANCE)),
        ):
            highs.setOptionValue(option, value)
        model = highspy.HighsLp()
        columns = self.z + 1
        model.num_col_, model.num_row_ = columns, len(self.row_lower)
        model.col_cost_ = [0.0] * self.z + [1.0]
        model.col_lower_, model.col_upper_ = [0.0] * columns, self._upper()
        model.row_lower_, model.row_upper_ = self.row_lower, self.row_upper
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_, model.a_matrix_.index_ = self.starts, self.indices
        model.a_matrix_.value_ = self.values
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger] * self.x.size + [kinds.kContinuous] * (self.y.size + 1)
        highs.passModel(model)
        if self.known is not None:
            start = highspy.HighsSolution()
            start.col_value = self._start(self.known)
            highs.setSolution(start)
        run_solver(highs, self.deadline, begun_s=begun_s, most_s=most_s)
        info = highs.getInfo()
        bound_ms = max(info.mip_dual_bound * (1 - TOLERANCE), 0.0) * self.scale_ms
        if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return MilpResult(None, 0.0, self.known is None)
        if info.primal_solution_status != int(highspy.SolutionStatus.kSolutionStatusFeasible):
            return MilpResult(None, bound_ms if math.isfinite(bound_ms) else 0.0, False)
        chosen = np.array(highs.getSolution().col_value)[self.x]
        return MilpResult(tuple(map(int, chosen.argmax(axis=1))), bound_ms, False)
