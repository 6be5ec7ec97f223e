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
        forbidden: [P, T], how many layers before a position the type may not run.
        moved_bytes: [P, P], what a stage between two positions receives and sends.
        talks: [P, P], 0, 1 or 2: whether it receives, plus whether it sends.
        memory_bytes: [P, P], what one replica holds; None where every type holds the whole model.
    """

    problem: Problem
    positions: Ints
    compute_s: Floats
    data_s: Floats
    sync_s: Floats
    forbidden: Ints
    moved_bytes: Floats
    talks: Floats
    memory_bytes: Floats | None

    def price_stages(self, first: Ints, end: Ints, types: Ints, batch_s: float) -> tuple[Floats, Floats]:
        """Price stages that must take at most ``batch_s`` for a batch.

        Args:
            first: [N], index of the position where a stage begins.
            end: [N], index of the position where it ends.
            types: [N].
            batch_s: The time of a batch.

        Returns:
            [N] the fewest replicas, inf where no number is enough or the stage does not fit; and [N] the unit-hours
            of work per hour, price included: what the stage would cost if replicas came in fractions and divided
            everything.
        """
        problem = self.problem
        work = StageWork(
            compute_s=self.compute_s[end, types] - self.compute_s[first, types],
            data_s=self.data_s[end, types]
            - self.data_s[first, types]
            + self.moved_bytes[first, end] * problem.seconds_per_byte[types]
            + self.talks[first, end] * problem.latency_s[types],
            sync_s=self.sync_s[end, types] - self.sync_s[first, types],
            compute_parallel=problem.compute_parallel[types],
            data_parallel=problem.data_parallel[types],
        )
        demand = work.demand()
        units = demand.units(np.full(len(first), batch_s))
        units[self.forbidden[end, types] > self.forbidden[first, types]] = np.inf
        if self.memory_bytes is not None:
            held = self.memory_bytes[first, end]
            units[held > problem.memory_bytes[types] * (1 + MEMORY_TOLERANCE)] = np.inf
        return units, problem.price_per_hour[types] * demand.once_s / batch_s


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
        forbidden=_before((~tables.usable).astype(np.float64))[positions].astype(np.int64),
        moved_bytes=received[0] + sent[0],
        talks=received[1] + sent[1],
        memory_bytes=_memory(problem, positions) if tables.memory_binds else None,
    )


def _before(amounts: Floats) -> Floats:
    return np.concatenate([np.zeros_like(amounts[:1]), np.cumsum(amounts, axis=0)])


def _count_rectangles(count: int, corners: tuple[Ints, Ints, Ints, Ints], sizes: Floats) -> tuple[Floats, Floats]:
    """Give [count, count], the sum of the sizes of the rectangles that cover a cell; and 1 where any does."""
    top, bottom, left, right = corners
    totals = []
    for amounts in (np.rint(sizes), (sizes > 0).astype(np.float64)):  # whole bytes: sums and differences are exact
        edges = np.zeros((count + 1, count + 1))
        for row, column, sign in ((top, left, 1), (top, right, -1), (bottom, left, -1), (bottom, right, 1)):
            np.add.at(edges, (row, column), sign * amounts)
        totals.append(np.cumsum(np.cumsum(edges, axis=0), axis=1)[:count, :count])
    return totals[0], np.minimum(totals[1], 1.0)


def _memory(problem: Problem, positions: Ints) -> Floats:
    """Give [P, P], the memory of a stage between two positions."""
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


def usable_positions(spans: Spans) -> Bools:
    """Give [L + 1], True where a stage may begin or end."""
    mask = np.zeros(spans.problem.layer_count + 1, np.bool_)
    mask[spans.positions] = True
    return mask
