"""A time limit bounds the search of a split by construction, whatever the machine is doing.

The clock is a counter here, as in ``test_deadlines.py``: it stands still until it has been asked so often, and then the
time is up. So it is up at every place in turn where the search asks, and nothing depends on the machine.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from small_workloads import drawn

from heterps_compile.cost.workload import Workload
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes import deadline as deadline_module
from heterps_compile.passes.max_load import contiguous
from heterps_compile.passes.max_load.solve import solve_max_load
from heterps_compile.passes.max_load.split import faults

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
    """Set the clock."""
    monkeypatch.setattr(contiguous, "_MOST_ROUNDS", 1)
    monkeypatch.setattr(contiguous, "MAX_DOWN_SETS", 300)

    def set_clock(patience: int) -> Clock:
        clock = Clock(patience)
        monkeypatch.setattr(deadline_module, "time", SimpleNamespace(monotonic=clock.monotonic))
        return clock

    return set_clock


def solve(workload: Workload) -> Any:
    try:
        return solve_max_load(workload, time_limit_s=LIMIT_S)
    except InfeasibleError as error:
        return error


@pytest.mark.parametrize("name", WORKLOADS)
def test_whenever_the_time_is_up_the_search_ends(name, stop_after):
    workload = WORKLOADS[name]
    clock = stop_after(10**9)
    whole = solve(workload)
    looks = clock.asked
    for patience in sorted({0, 1, 2, *(looks * part // 6 for part in range(2, 6, 2)), looks - 4}):
        clock = stop_after(patience)
        found = solve(workload)
        assert clock.asked_afterwards <= MOST_ASKED_AFTERWARDS + GRACE_ASKED, patience
        if isinstance(whole, InfeasibleError):
            assert isinstance(found, InfeasibleError)
            continue
        assert not isinstance(found, InfeasibleError), found
        assert list(faults(workload, found.assignment)) == []
        assert found.bound_ms <= whole.value_ms * (1 + 1e-9)
        assert whole.bound_ms <= found.value_ms * (1 + 1e-9)
