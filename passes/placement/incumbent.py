"""The best plan that searches know together: each offers what it finds, and each begins where the other is.

A search calls :meth:`Incumbent.exchange` wherever it has tried a plan, takes the better of the two, and prunes with it.
There too another search may get its turn (``best.py``), so that two work side by side in one thread.

A caller who wants only what is better than some value gives that value (``below``): plans that are no better count as
no plan at all, and the search is over as soon as nothing below it can exist.

Left out: who works when (``best.py``), and the searches.
"""

from collections.abc import Callable

import numpy as np

from heterps_compile.cost.problem import Placement, Problem
from heterps_compile.progress import tell


class Incumbent:
    """The best plan known of one problem.

    Attributes:
        problem: Whose plans these are.
        value: Of the best plan, in the unit of the objective; ``below`` before one is better, inf without that.
        placement: The best plan; None where none is below ``below``.
        found_by: Who came upon it: see ``SearchResult.found_by``.
        bound: A proven lower bound on the value of every placement; minus infinity before the first.
        is_late: Whether a proof of it ended for lack of time; some may be left, too little to begin a programme.
    """

    def __init__(self, problem: Problem, below: float = np.inf, *, tells: bool = False) -> None:
        """Begin without a plan; with ``tells`` the caller of the compilation is told of every better one."""
        self.problem, self._tells = problem, tells
        self.value, self.bound = below, -np.inf
        self.placement: Placement | None = None
        self.found_by, self.is_late = "", False
        self._turn: Callable[[int], None] | None = None

    def offer(self, placement: Placement, value: float, found_by: str) -> bool:
        """Keep a plan where it is better than the best; tell whether it is."""
        if not value < self.value:
            return False
        self.value, self.placement, self.found_by = value, placement, found_by
        if self._tells:
            tell(best=value)
        return True

    def raise_bound(self, bound: float) -> None:
        """Note a bound that holds for every placement, and report it."""
        self.bound = max(self.bound, min(bound, self.value))
        if self._tells:
            tell(bound=self.bound)

    def note_late(self) -> None:
        """Note that a proof ended for lack of time."""
        self.is_late = True

    def take_turns(self, turn: Callable[[int], None]) -> None:
        """Have a function called at every exchange, with the work done since the last one."""
        self._turn = turn

    def exchange(self, work: int) -> None:
        """Let another search have its turn; afterwards a better plan may be known.

        Args:
            work: Segments priced since the last call: what turns are measured by.
        """
        if self._turn is not None:
            self._turn(work)
