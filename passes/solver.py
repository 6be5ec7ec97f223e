"""Runs HiGHS within a deadline: the only place that starts it.

HiGHS heeds its own time limit, but for steps before the first nodes (of its presolve above all) that it does not
interrupt. These grow with the programme as writing it down does, and on a busy machine both take longer by the same
factor: so it is started only where some multiple of the time that the writing took is left.

Left out: what is to be solved (``max_load/split_programme.py``, ``placement/proof/path_programme.py``).
"""

from typing import Any

from heterps_compile.progress import check, is_watched

from .deadline import Deadline, TimeUpError, now_s

_LONGEST_S = 1e9  # what HiGHS takes for "no limit"
_STEPS_TO_WRITING = 15.0  # 23,000 columns: 0.06 s to write down, and 0.7 s until a limit of 0 s is heeded


def run_solver(solver: Any, deadline: Deadline, *, begun_s: float, most_s: float = _LONGEST_S) -> None:
    """Solve the programme that HiGHS holds, in what is left of the time.

    Args:
        solver: A ``highspy.Highs`` with its model.
        deadline: When it must stop.
        begun_s: When writing the programme down began, on the clock of the deadline.
        most_s: Most seconds it may take, where more are left.

    Raises:
        TimeUpError: where too little time is left to begin.
        CancelledError: where the caller of the compilation cancelled it; HiGHS asks every second or so.
    """
    if deadline.left_s() <= _STEPS_TO_WRITING * (now_s() - begun_s):
        raise TimeUpError
    if is_watched():  # what these raise, run raises
        for asks in (solver.cbMipInterrupt, solver.cbSimplexInterrupt, solver.cbIpmInterrupt):
            asks.subscribe(lambda _event: check())
    solver.setOptionValue("time_limit", min(deadline.left_s(), most_s, _LONGEST_S))  # it counts from run
    solver.run()
