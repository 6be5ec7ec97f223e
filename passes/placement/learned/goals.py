"""The throughputs that the policy aims at, since how far above the floor the best plan runs is not known before.

Left out: which of them turned out best (``rl.py``).
"""

from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Problem


@dataclass(frozen=True, slots=True)
class Goals:
    """Throughputs relative to the floor, or where there is none to what is known.

    Attributes:
        above_floor: Times the floor.
        around: Times the throughput of the best simple plan, or of all layers one after the other.
    """

    above_floor: tuple[float, ...]
    around: tuple[float, ...]

    def of(self, problem: Problem, best_throughput: float) -> list[float]:
        """Return the throughputs worth aiming at: from the floor up, or without one around the best simple plan's.

        What is to be fast begins at the best simple plan; a plan of low latency may be as slow as it likes.

        Args:
            problem: The problem.
            best_throughput: Samples/s of the best plan known; 0 where there is none.
        """
        is_fast = problem.objective not in ("cost", "price")
        base = max(problem.min_throughput, best_throughput if is_fast else 0.0)
        if base > 0:
            is_fixed = OBJECTIVES[problem.objective].sums_at_floor
            return [base * factor for factor in ((1,) if is_fixed else self.above_floor)]
        base = best_throughput
        if base <= 0:
            once_s = np.where(np.isfinite(problem.compute_s), problem.compute_s, 1e9).min(axis=1)
            base = problem.batch / max(float(once_s.sum()), 1e-12)
        return [base * factor for factor in self.around]


EVERY_GOAL = Goals(
    (1, 1.04, 1.1, 1.2, 1.35, 1.6, 2, 3, 5, 9, 16, 32), (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 1, 1.4, 2, 4, 8, 16)
)
