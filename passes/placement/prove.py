"""The exact search for whatever objective a problem has; values and bounds are the objective's own.

Left out: the searches (``interval_search.py`` by way of ``coarse.py``, ``fixed_time.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.cost.problem import Placement, Problem

from .chain import Chain
from .coarse import search_all
from .fixed_time import FixedTimeSearch
from .interval_search import per_million_samples
from .paths import Deadline


@dataclass(frozen=True, slots=True)
class Proof:
    """How far an exact search came.

    Attributes:
        placement: The best it came upon; None where there was none.
        best: Its value, inf without one.
        bound: A lower bound on the value of every placement; inf where it is proven that none is feasible.
        evaluations: Placements evaluated.
    """

    placement: Placement | None
    best: float
    bound: float
    evaluations: int

    @property
    def is_complete(self) -> bool:
        """Whether nothing better can exist."""
        return self.bound >= self.best


def prove(problem: Problem, deadline: Deadline, starts: Sequence[Placement] = ()) -> Proof:
    """Search for the optimum from some placements, to the proof or to the deadline."""
    if problem.objective == "cost":
        search = search_all(problem, deadline, starts)
        best, bound = (per_million_samples(problem, value) for value in (search.best, search.bound))
        return Proof(search.placement, best, best if search.bound >= search.best else bound, search.evaluations)
    timed = FixedTimeSearch(Chain(problem), deadline, starts)
    timed.run()
    return Proof(timed.placement, timed.best, timed.bound, timed.evaluations)
