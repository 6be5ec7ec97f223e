"""Solves a workload: the one entry to the searches of this folder.

Left out: the searches themselves (``contiguous.py``), reading workloads, writing splits.
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.workload import Workload, verify_workload
from heterps_compile.errors import InputError
from heterps_compile.packages import SEARCH, need
from heterps_compile.passes.chain_search import CLOSE
from heterps_compile.passes.deadline import Deadline, now_s

from .contiguous import Best, split_contiguously
from .split import MaxLoadResult, evaluate_split


def solve_max_load(
    workload: Workload,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
) -> MaxLoadResult:
    """Spread a workload over its pool so that the largest load is least.

    The devices form one line along which data flows one way; see ``blocks.py``.

    Args:
        workload: What to place, and on what.
        seed: Of sampling; the proof needs no chance.
        time_limit_s: Stop with the best split and bound so far. None: as long as the proof takes, but 60 s
            where there are too many down-sets for one.

    Raises:
        InputError: where the workload breaks a rule.
        InfeasibleError: where no split exists; the message says what stands against it.
        MissingPackageError: where the solver is not installed.
    """
    need("solving a workload", SEARCH)
    if time_limit_s is not None and not time_limit_s > 0:
        raise InputError(f"a time limit of {time_limit_s} s must be above 0")
    verify_workload(workload)
    start_s = now_s()
    pool = _useful(workload)
    best = Best(pool, Deadline.after(time_limit_s))
    bound_ms = split_contiguously(best, np.random.default_rng(seed))
    # Bounds are proven up to rounding; one that touches the value is the value.
    if bound_ms > best.value_ms * (1 - 3 * CLOSE):
        bound_ms = best.value_ms
    if time_limit_s is not None and bound_ms < best.value_ms and best.deadline.is_over:
        best.notes.append(f"the time limit of {time_limit_s:g} s ended the search")
    skipped = workload.accelerators - pool.accelerators
    assignment = tuple(device if device < pool.accelerators else device + skipped for device in best.assignment)
    return MaxLoadResult(
        assignment=assignment,
        loads_ms=evaluate_split(workload, assignment),
        bound_ms=bound_ms,
        seed=seed,
        evaluations=best.evaluations,
        search_s=now_s() - start_s,
        notes=(*workload.assumptions, *best.notes),
    )


def _useful(workload: Workload) -> Workload:
    """Leave out devices that must stay empty, since there are fewer nodes."""
    most = len(workload.nodes)
    return replace(workload, accelerators=min(workload.accelerators, most), cpus=min(workload.cpus, most))
