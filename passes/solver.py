"""Runs HiGHS within a deadline: the only place that starts it.

HiGHS heeds its own time limit, but for steps before the first nodes (of its presolve above all) that it does not
interrupt. These grow with the programme as writing it down does, and on a busy machine both take longer by the same
factor: so it is started only where some multiple of the time that the writing took is left.

It works in a thread of its own. Nobody can make HiGHS stop at once: it asks whether to go on every second or so, and
within a heuristic after several. Who cancels, or presses Ctrl-C, gets away at once; the thread ends where HiGHS asks.

While it works, this thread may go on with another search (``Budget.meanwhile``).

Left out: what is to be solved (``placement/proof/path_programme.py``).
"""

from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillWorkingError
from threading import Event, Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_compile.progress import LEAST_S, check

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
        CancelledError: where the caller of the compilation cancelled it, within 0.1 s.
    """
    if deadline.left_s() <= _STEPS_TO_WRITING * (now_s() - begun_s):
        raise TimeUpError
    is_left = Event()
    for asks in (solver.cbMipInterrupt, solver.cbSimplexInterrupt, solver.cbIpmInterrupt):
        asks.subscribe(lambda event: event.interrupt() if is_left.is_set() else None)
    solver.setOptionValue("time_limit", min(deadline.left_s(), most_s, _LONGEST_S))  # it counts from run
    ended: Future[None] = Future()
    # Python waits for it when the process ends: HiGHS would not bear to be torn down while it works
    Thread(target=_run, args=(solver, ended), name="HiGHS").start()
    try:
        while not ended.done():
            if deadline.work_meanwhile():
                continue
            try:
                ended.result(LEAST_S / 2)
            except StillWorkingError:
                check()
        ended.result()
    finally:
        is_left.set()


def _run(solver: Any, ended: "Future[None]") -> None:
    """Run the solver, and note how that ended."""
    try:
        solver.run()
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        ended.set_exception(error)
    else:
        ended.set_result(None)


def run_small(solver: Any, model: Any) -> NDArray[np.float64]:
    """Solve a linear programme of milliseconds in this thread; return the values of its columns."""
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(model)
    solver.run()
    return np.asarray(solver.getSolution().col_value, np.float64)
