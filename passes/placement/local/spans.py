"""What any run of layers would take as a stage on any type, looked up instead of summed: the ground of the polish.

Sums over layers are differences of running sums. The bytes that cross a stage's two ends depend on both of them; a
table over pairs of *positions* holds them. A position is a place where a stage may begin or end; a model with more
than 1,500 of them is seen through an even grid of 1,500.

Left out: replicas and prices of whole placements (``cost/evaluate.py`` is the truth about those).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints, Problem
from heterps_compile.cost.replicas import StageWork
from heterps_compile.cost.segments import MEMORY_TOLERANCE, problem_tables

MOST_POSITIONS = 1500


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Tables over the positions of a problem.

    Attributes:
        problem: The problem.
        positions: [P], layers where a stage may begin, ascending; the first is 0, the last L.
        compute_s, data_s, sync_s: [P, T], sums over the layers before a position.
        shared_s: Likewise; None where it is 0 for all.
        forbidden: [P, T], how many layers before a position the type may not run.
        moved_bytes: [P, P], what a stage between two positions receives and sends.
        talks: [P, P], 0, 1 or 2: whether it receives, plus whether it sends.
        memory_bytes: [P, P], what one replica holds; None where every type holds the whole model.
        synchronises: Whether any ``sync_s`` is above zero.
    """

    problem: Problem
    positions: Ints
    compute_s: Floats
    data_s: Floats
    sync_s: Floats
    shared_s: Floats | None
    forbidden: Floats
    moved_bytes: Floats
    talks: Floats
    memory_bytes: Floats | None
    synchronises: bool

    def work(self, first: Ints, end: Ints, types: Ints | None) -> tuple[StageWork, Bools]:
        """Look up the work of stages, and whether their types cannot have them at all.

        Args:
            first: [N], index of the position where a stage begins.
            end: [N], index of the position where it ends.
            types: [N]; None for every stage on every type: all results are [N, T] then.
        """
        problem, chosen = self.problem, slice(None) if types is None else types
        column = (slice(None), None) if types is None else slice(None)
        work = StageWork(
            compute_s=_total(self.compute_s, first, end, types),
            data_s=_total(self.data_s, first, end, types)
            + self.moved_bytes[first, end][column] * problem.seconds_per_byte[chosen]
            + self.talks[first, end][column] * problem.latency_s[chosen],
            sync_s=_total(self.sync_s, first, end, types) if self.synchronises else np.zeros(1),
            compute_parallel=problem.compute_parallel[chosen],
            data_parallel=problem.data_parallel[chosen],
            shared_s=None if self.shared_s is None else _total(self.shared_s, first, end, types),
        )
        unfit = _total(self.forbidden, first, end, types) > 0
        if self.memory_bytes is not None:
            most_bytes = problem.memory_bytes[chosen] * (1 + MEMORY_TOLERANCE)
            unfit |= self.memory_bytes[first, end][column] > most_bytes
        return work, unfit


def find_spans(problem: Problem) -> Spans:
    """Build the tables; O(P * (P + L) + readers)."""
    cuttable = ~problem.uncuttable
    cuttable[[0, -1]] = True
    positions = np.flatnonzero(cuttable)
    if len(positions) > MOST_POSITIONS:
        positions = positions[np.unique(np.linspace(0, len(positions) - 1, MOST_POSITIONS).astype(np.int64))]
    tables = problem_tables(problem)
    count = len(positions)
    # [first, end]: a value is received where read_after < first <= read_by < end,
    # and sent where first <= sent_by < end <= sent_until
    after, by = (np.searchsorted(positions, layers, "right") for layers in (tables.read_after, tables.read_by))
    received = _count_rectangles(count, (after, by, by, np.full_like(by, count)), tables.read_bytes)
    maker, until = (np.searchsorted(positions, layers, "right") for layers in (tables.sent_by, tables.sent_until))
    sent = _count_rectangles(count, (np.zeros_like(maker), maker, maker, until), tables.sent_bytes)
    return Spans(
        problem=problem,
        positions=positions,
        compute_s=_before(tables.compute_s)[positions],
        data_s=_before(tables.data_s)[positions],
        sync_s=_before(problem.sync_s)[positions],
        shared_s=None if problem.shared_s is None else _before(problem.shared_s)[positions],
        forbidden=_before((~tables.usable).astype(np.float64))[positions],
        moved_bytes=received[0] + sent[0],
        talks=received[1] + sent[1],
        memory_bytes=_memory(problem, positions) if tables.memory_binds else None,
        synchronises=tables.synchronises,
    )


def _total(sums: Floats, first: Ints, end: Ints, types: Ints | None) -> Floats:
    if types is None:
        return np.asarray(np.take(sums, end, axis=0) - np.take(sums, first, axis=0))
    return np.asarray(sums[end, types] - sums[first, types])


def _before(amounts: Floats) -> Floats:
    return np.concatenate([np.zeros_like(amounts[:1]), np.cumsum(amounts, axis=0)])


def _count_rectangles(count: int, corners: tuple[Ints, Ints, Ints, Ints], sizes: Floats) -> tuple[Floats, Floats]:
    """Return [count, count], the sum of the sizes of the rectangles that cover a cell; and 1 where any does."""
    top, bottom, left, right = corners
    totals = []
    for amounts in (np.rint(sizes), (sizes > 0).astype(np.float64)):  # whole bytes: sums and differences are exact
        edges = np.zeros((count + 1, count + 1))
        for row, column, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
            np.add.at(edges, (row, column), sign * amounts)
        totals.append(np.cumsum(np.cumsum(edges, axis=0), axis=1)[:count, :count])
    return totals[0], np.minimum(totals[1], 1.0)


def _memory(problem: Problem, positions: Ints) -> Floats:
    """Return [P, P], the memory of a stage between two positions."""
    weights = _before(problem.weight_bytes)[positions]
    memory = weights[None, :] - weights[:, None]
    starts, ends = positions[:, None], positions[None, :]
    for first, second, size_bytes in zip(problem.tied_first, problem.tied_second, problem.tied_bytes, strict=True):
        memory -= size_bytes * ((starts <= first) & (second < ends))
    if problem.keeps_activations:
        activations = _before(problem.activation_bytes)[positions]
        return np.asarray(memory + activations[None, :] - activations[:, None])
    for index, start in enumerate(positions[:-1]):
        largest = np.maximum.accumulate(problem.activation_bytes[start:])
        memory[index, index + 1 :] += largest[positions[index + 1 :] - 1 - start]
    return memory
