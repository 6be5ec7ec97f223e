"""Branch and bound, the lowest bound first: the one loop of every search tree.

::

    open    bound 3   bound 5   bound 9            best plan 8: the third is closed
              |
              +-- bound 4, bound 7                 branched; or no branch is left, and 3 stays the bound of the tree

Not covered: the trees, which are over times of a batch (``time_search.py``), types of layers (``linked_search.py``) and
numbers of machines (``machine_search.py``).
"""

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol, TypeVar

import numpy as np

from heterps_compile.passes.deadline import TimeUpError


class Node(Protocol):
    """A set of plans."""

    @property
    def bound(self) -> float:
        """Return a lower bound on the value of every plan in it."""
        ...


N = TypeVar("N", bound=Node)


def best_first(
    root: N,
    branch: Callable[[N], Sequence[N] | None],
    ceiling: Callable[[], float],
    report: Callable[[float], None] = lambda _: None,
    *,
    is_over: Callable[[], bool] = lambda: False,
    note_late: Callable[[], None] = lambda: None,
) -> float:
    """Branch nodes, the lowest bound first, until none is below the ceiling.

    Args:
        root: The first node.
        branch: Splits a node into parts that hold all its plans below the ceiling; None if it has to stay open. A
            :class:`~heterps_compile.passes.deadline.TimeUpError` ends the search.
        ceiling: Value from which on a node is closed; better plans lower it.
        report: Called with the bound of the tree before every branching.
        is_over: Whether to stop before the next branching.
        note_late: Called if the search ended for lack of time.

    Returns:
        A lower bound on the value of every plan below the ceiling; inf if there is none.
    """
    numbers, left = count(), np.inf
    open_ = [(root.bound, next(numbers), root)]
    while open_ and open_[0][0] < ceiling() and not is_over():
        bound, _, node = open_[0]
        report(min(bound, left))
        try:
            parts = branch(node)
        except TimeUpError:
            note_late()
            break
        heapq.heappop(open_)
        if parts is None:
            left = min(left, bound)
            continue
        for part in parts:
            heapq.heappush(open_, (part.bound, next(numbers), part))
    return float(min(left, open_[0][0] if open_ else np.inf))
