"""Runs HiGHS within a deadline: the only place that starts it.

HiGHS heeds its own time limit, but for single steps (of its presolve above all) that it does not interrupt. These grow
with the programme as writing it down does, and on a busy machine both take longer by the same factor: so it is started
only where more time is left than the writing took.

Left out: what is to be solved (``max_load/milp.py``, ``placement/milp.py``).
"""

from typing import Any

from .deadline import Deadline, TimeUpError, now_s

_LONGEST_S = 1e9  # what HiGHS takes for "no limit"


def run_solver(solver: Any, deadline: Deadline, *, begun_s: float) -> None:
    """Solve the programme that HiGHS holds, in what is left of the time.

    Args:
        solver: A ``highspy.Highs`` with its model.
        deadline: When it must stop.
        begun_s: When writing the programme down began, on the clock of the deadline.

    Raises:
        TimeUpError: where too little time is left to begin.
    """
    if deadline.left_s() <= now_s() - begun_s:
        raise TimeUpError
    solver.setOptionValue("time_limit", min(deadline.left_s(), _LONGEST_S))  # it counts from run
    solver.run()
