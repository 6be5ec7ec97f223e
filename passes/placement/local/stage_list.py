"""A plan as stages between positions, and moves that put other stages in the place of some of its own.

Left out: which moves are worth making (``polish.py``), positions (``segment_table.py``).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Ints


@dataclass(frozen=True, slots=True, eq=False)
class StageList:
    """A plan as stages between positions.

    Attributes:
        bounds: [S + 1], indices of positions, ascending; the first is 0, the last P - 1.
        types: [S].
    """

    bounds: Ints
    types: Ints

    def spread(self) -> tuple[Ints, Bools]:
        """Return [P - 1], the type between a position and the next, and whether a stage begins there."""
        types = np.repeat(self.types, np.diff(self.bounds))
        begins = np.zeros(len(types), np.bool_)
        begins[self.bounds[:-1]] = True
        return types, begins


@dataclass(frozen=True, slots=True)
class Move:
    """Put stages with these inner bounds and types in the place of stages first .. end - 1."""

    gain: float
    first: int
    end: int
    inner: list[int]
    types: list[int]


def apart(moves: Iterable[Move]) -> list[Move]:
    """Return the moves, in their order, that do not overlap an earlier one."""
    chosen: list[Move] = []
    for move in moves:
        if all(move.end <= other.first or other.end <= move.first for other in chosen):
            chosen.append(move)
    return chosen


def apply(stages: StageList, moves: Iterable[Move]) -> tuple[StageList, Ints]:
    """Make moves that do not overlap.

    Returns:
        The new plan, and [S] which stage of the old one each of its stages is, -1 for a new one.
    """
    bounds, types, came_from = stages.bounds, stages.types, np.arange(len(stages.types))
    for move in sorted(moves, key=lambda move: -move.first):
        bounds = np.concatenate([bounds[: move.first + 1], np.array(move.inner, np.int64), bounds[move.end :]])
        types = np.concatenate([types[: move.first], np.array(move.types, np.int64), types[move.end :]])
        new = np.full(len(move.types), -1)
        came_from = np.concatenate([came_from[: move.first], new, came_from[move.end :]])
    return StageList(bounds, types), came_from
