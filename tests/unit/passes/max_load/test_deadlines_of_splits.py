"""A time limit bounds the search of a split by construction, whatever the machine is doing.

The clock is a counter here, as in ``test_deadlines.py``: it stands still until it has been asked so often, and then the
time is up. So it is up at every place in turn where the search asks, and nothing depends on the machine.
"""

import math
from types import SimpleNamespace
from typing import Any

import highspy
import pytest
from small_workloads import drawn

from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes import deadline as deadline_module
from heterps_compile.passes.deadline import Deadline
from heterps_compile.passes.max_load import contiguous, non_contiguous
from heterps_compile.passes.max_load.blocks import contract
from heterps_compile.passes.max_load.solve import METHODS, solve_max_load
from heterps_compile.passes.max_load.split import faults
from heterps_compile.passes.max_load.split_programme import solve_milp

LIMIT_S = 0.1
MOST_ASKED_AFTERWARDS = 40
GRACE_ASKED = 25
"""Looks that a second is worth once the time is up: what is granted to a first split, or to the reason for none."""


class Clock:
    """Stands at 0 until it has been asked ``patience`` times; then it is behind the limit, and each look takes long.

    The first looks, which begin the measuring and make the deadline, do not count.
    """

    def __init__(self, patience: int) -> None:
        self.patience, self.asked = patience + 2, 0

    def monotonic(self) -> float:
        self.asked += 1
        return 0.0 if self.asked <= self.patience else 1000.0 + self.asked / GRACE_ASKED

    @property
    def asked_afterwards(self) -> int:
        return max(0, self.asked - self.patience)


def branches(count: int, length: int, *, memory: float = 1e9, size: float = 0.0) -> Workload:
    """So many parallel branches, joined: far more down-sets than a search lists."""
    lines = ["1 1/9 out=1 -> " + " ".join(str(100 * branch) for branch in range(1, count + 1))]
    for branch in range(1, count + 1):
        ids = [100 * branch + i for i in range(length)]
        for i, identity in enumerate(ids):
            reader = ids[i + 1] if i + 1 < length else 2
            lines.append(f"{identity} {1 + (3 * branch + 5 * i) % 4}/60 out=0.5 size={size} -> {reader}")
    return drawn("\n".join([*lines, "2 1/9"]), accelerators=3, cpus=1, memory=memory)


WORKLOADS = {
    "few down-sets": branches(2, 6),
    "many down-sets": branches(6, 3),
    "tight memory": branches(3, 4, memory=50.0, size=10.0),
    "no split": branches(2, 6, memory=10.0, size=9.0),
}


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the clock, and note every time limit that HiGHS is started with, and when."""
    run = highspy.Highs.run
    monkeypatch.setattr(non_contiguous, "_MOST_STEPS", 60)
    monkeypatch.setattr(contiguous, "_ENDLESS", 1)
    monkeypatch.setattr(contiguous, "_ROUNDS", 1)
    monkeypatch.setattr(contiguous, "MAX_DOWN_SETS", 300)

    def set_clock(patience: int) -> tuple[Clock, list[int]]:
        clock, started = Clock(patience), list[int]()

        def counted(solver: Any) -> Any:
            started.append(clock.asked_afterwards)
            return run(solver)

        monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=clock.monotonic))
        monkeypatch.setattr(highspy.Highs, "run", counted)
        return clock, started

    return set_clock


def solve(workload: Workload, method: str, *, contiguous: bool) -> Any:
    try:
        return solve_max_load(workload, contiguous=contiguous, method=method, time_limit_s=LIMIT_S)
    except InfeasibleError as error:
        return error


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize(
    ("method", "is_contiguous"), [(method, is_contiguous) for method in METHODS for is_contiguous in (True, False)]
)
def test_whenever_the_time_is_up_no_solver_is_started_and_the_search_ends(name, method, is_contiguous, stop_after):
    workload = WORKLOADS[name]
    clock, _ = stop_after(10**9)
    whole = solve(workload, method, contiguous=is_contiguous)
    looks = clock.asked
    for patience in sorted({0, 1, 2, *(looks * part // 6 for part in range(2, 6, 2)), looks - 4}):
        clock, started = stop_after(patience)
        found = solve(workload, method, contiguous=is_contiguous)
        assert clock.asked_afterwards <= MOST_ASKED_AFTERWARDS + GRACE_ASKED, patience
        assert all(afterwards == 0 for afterwards in started), patience
        if isinstance(whole, InfeasibleError):
            assert isinstance(found, InfeasibleError)
            continue
        assert not isinstance(found, InfeasibleError), found
        assert list(faults(workload, found.assignment, contiguous=is_contiguous)) == []
        assert found.bound_ms <= whole.value_ms * (1 + 1e-9)
        assert whole.bound_ms <= found.value_ms * (1 + 1e-9)


def test_a_solver_is_not_started_where_writing_took_longer_than_what_is_left(monkeypatch):
    """Where a look takes a second: the programme is written, and what is left is less than that took."""
    now = [0.0]

    def monotonic() -> float:
        now[0] += 1.0
        return now[0]

    started = []
    monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(highspy.Highs, "run", lambda solver: started.append(solver))  # noqa: PLW0108 - gets itself
    blocks = contract(WORKLOADS["few down-sets"], None)
    for left_s, runs in ((4.0, 0), (100.0, 1)):
        now[0] = 0.0
        started.clear()
        result = solve_milp(blocks, None, (0.0, math.inf), Deadline(left_s))
        assert (len(started), result.devices) == (runs, None)
