"""What any segment would take as a stage on any type, looked up instead of summed.

Sums over layers are differences of running sums. The bytes that cross a stage's two ends depend on both of them; a
table over pairs of positions holds them, built once from the :class:`~..geometry.Chain`. A model with more than 1,500
positions is seen through an even grid of 1,500.

Left out: replicas and prices of whole placements (``cost/evaluate.py`` is the truth about those).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.memory import MEMORY_TOLERANCE
from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.cost.replicas import LayerSums, StageWork
from heterps_compile.cost.segments import problem_tables
from heterps_compile.passes.placement.geometry import Chain

MOST_POSITIONS = 1500


@dataclass(frozen=True, slots=True, eq=False)
class SegmentTable:
    """Tables over the positions of a problem.

    Attributes:
        problem: The problem.
        positions: [P], layers where a stage may begin, ascending; the first is 0, the last L.
        sums: [P, T] each, over the layers before a position.
        forbidden: [P, T], how many layers before a position the type may not run.
        moved_bytes: [P, P], what a stage between two positions receives and sends.
        talks: [P, P], 0, 1 or 2: whether it receives, plus whether it sends.
        memory_bytes: [P, P], what one replica holds; None where every type holds the whole model.
    """

    problem: Problem
    positions: Ints
    sums: LayerSums
    forbidden: Floats
    moved_bytes: Floats
    talks: Floats
    memory_bytes: Floats | None

    def work(
        self, first: Ints, end: Ints, types: Ints | None, talking_s: Floats | None = None
    ) -> tuple[StageWork, Bools]:
        """Look up the work of stages, and whether their types cannot have them at all.

        Args:
            first: [N], index of the position where a stage begins.
            end: [N], index of the position where it ends.
            types: [N]; None for every stage on every type: all results are [N, T] then.
            talking_s: [N] or [N, T], what the stages pay to talk; None for the least they pay, whatever is beside them.
        """
        problem, chosen = self.problem, slice(None) if types is None else types
        column = (slice(None), None) if types is None else slice(None)
        if talking_s is None:
            talking_s = self.moved_bytes[first, end][column] * problem.seconds_per_byte[chosen]
            talking_s = talking_s + self.talks[first, end][column] * problem.latency_s[chosen]
        sums = self.sums.map(lambda sums: _total(sums, first, end, types))
        work = sums.with_traffic(problem, chosen, talking_s).work(problem, chosen)
        unfit = _total(self.forbidden, first, end, types) > 0
        if self.memory_bytes is not None:
            most_bytes = problem.memory_bytes[chosen] * (1 + MEMORY_TOLERANCE)
            unfit |= self.memory_bytes[first, end][column] > most_bytes
        return work, unfit


def segment_table(problem: Problem) -> SegmentTable:
    """Build the table; O(P * (P + L) + readers)."""
    chain = Chain(problem)
    if len(chain.borders) > MOST_POSITIONS:
        even = np.unique(np.linspace(0, chain.length, MOST_POSITIONS).astype(np.int64))
        chain = Chain(problem, chain.borders[even])
    positions, every = np.arange(chain.length + 1), np.arange(problem.type_count)[None, :]
    sums = chain.work_between(np.zeros((1, 1), np.int64), positions[:, None], every)
    traffic, tables = chain.whole_traffic(), problem_tables(problem)
    return SegmentTable(
        problem=problem,
        positions=chain.borders,
        sums=sums.map(np.ascontiguousarray),
        forbidden=np.ascontiguousarray(chain.blocked_before(positions).T),
        moved_bytes=np.where(np.isfinite(traffic.moved_bytes), traffic.moved_bytes, 0.0),
        talks=np.where(np.isfinite(traffic.talks), traffic.talks, 0.0),
        memory_bytes=chain.whole_memory() if tables.memory_binds else None,
    )


def _total(sums: Floats, first: Ints, end: Ints, types: Ints | None) -> Floats:
    if types is None:
        return np.asarray(np.take(sums, end, axis=0) - np.take(sums, first, axis=0))
    return np.asarray(sums[end, types] - sums[first, types])
