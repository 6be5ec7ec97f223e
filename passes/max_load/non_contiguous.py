"""Non-contiguous splits: any node anywhere, colours and memory permitting.

1. The best contiguous split, where one is found quickly, is the first split.
2. Annealing, from random splits and from the best one, brings it close to the optimum (``annealing.py``).
3. Prices on the blocks give a bound (``load_bounds.py``).
4. HiGHS starts from both, and gives a better bound where it can, and what is left to gain (``split_programme.py``).
5. In a large workload it stops early, and what it came to is improved region by region (``regions.py``).

Left out: pipelining such a split, whose devices may need each other's results in turns.
"""

import math

import numpy as np

from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline

from .annealing import CHAINS, Cooling, anneal, random_starts
from .blocks import Blocks, contract
from .contiguous import MAX_BLOCKS, Best, split_contiguously
from .load_bounds import price_bound, simple_bound
from .split import evaluate_split

TIME_LIMIT_S = 60.0
"""How long the proof goes on where the caller set no limit: it may take for ever."""
_CONTIGUOUS_SHARE = 0.25
_ANNEALING_SHARE = 0.15
_PRICES_SHARE = 0.15
_REGIONS_SHARE = 0.25
_LARGE = 150
"""Blocks; below, HiGHS is at its best with the whole."""
_STEPS_PER_BLOCK, _MOST_STEPS = 200, 20_000
_ROUNDS = ((0.03, 3e-4, True), (0.004, 1e-4, False))
"""Hot and cold temperature of each round, and whether it starts from random splits rather than from the best."""


def split_freely(best: Best, rng: np.random.Generator, *, prove: bool) -> float:
    """Improve the best split among all splits.

    Args:
        best: Where splits go; its deadline is finite.
        rng: For sampling and annealing.
        prove: False to do without HiGHS.

    Returns:
        A proven lower bound on every split's largest load, in ms.

    Raises:
        InfeasibleError: where no split exists.
    """
    blocks = contract(best.workload, None)
    left_s = best.deadline.left_s()
    first = Best(best.workload, True, best.deadline.within(_CONTIGUOUS_SHARE * left_s))
    try:
        split_contiguously(first, rng, prove=prove)
        best.offer(first.assignment)
    except InfeasibleError:
        pass  # a split that is not contiguous may still exist, and is looked for below
    best.evaluations += first.evaluations
    bound_ms = simple_bound(blocks)
    _anneal(best, blocks, bound_ms, rng, best.deadline.within(_ANNEALING_SHARE * left_s))
    if blocks.count > MAX_BLOCKS:
        best.notes.append(f"over {MAX_BLOCKS:,} blocks of nodes: annealed alone, the bound is a simple one")
    elif prove:
        if best.assignment:
            prices = best.deadline.within(_PRICES_SHARE * left_s)
            bound_ms = max(bound_ms, price_bound(blocks, best.value_ms, prices))
        if not _is_met(best, bound_ms):
            bound_ms = max(bound_ms, _close(best, blocks, bound_ms, _REGIONS_SHARE * left_s))
    if not best.assignment:
        raise InfeasibleError(
            f"workload {best.workload.name!r}: no split was found in the time given that keeps every accelerator "
            "within its memory, and none was ruled out; give more time or more memory"
        )
    return bound_ms


def _is_met(best: Best, bound_ms: float) -> bool:
    return best.value_ms <= bound_ms * (1 + 1e-9)


def _anneal(best: Best, blocks: Blocks, bound_ms: float, rng: np.random.Generator, deadline: Deadline) -> None:
    """Run the rounds of annealing, each from random splits or from the best one."""
    steps = min(_STEPS_PER_BLOCK * blocks.count, _MOST_STEPS)
    for hot, cold, is_random in _ROUNDS:
        if _is_met(best, bound_ms) or deadline.is_over or blocks.count < 2:
            return
        starts = random_starts(blocks, CHAINS, rng)
        if best.assignment and not is_random:
            starts[:] = blocks.gather(best.assignment)
        found = anneal(blocks, starts, Cooling(steps, hot, cold), deadline, best_ms=best.value_ms, rng=rng)
        best.evaluations += found.evaluations
        if math.isfinite(found.value_ms):
            best.offer(blocks.spread(found.devices))


def _improve_regions(best: Best, blocks: Blocks) -> None:
    """Improve the best split region by region."""
    from .regions import improve_regions  # noqa: PLC0415 - HiGHS is loaded only where a proof is wanted

    loads_ms = evaluate_split(best.workload, best.assignment)
    devices = improve_regions(blocks, blocks.gather(best.assignment), loads_ms, best.deadline)
    best.offer(blocks.spread(devices))


def _close(best: Best, blocks: Blocks, bound_ms: float, regions_s: float) -> float:
    """Let HiGHS improve the best split and the bound; give its bound. A large workload keeps some time for regions."""
    if blocks.count <= _LARGE:
        return _solve(best, blocks, bound_ms, best.deadline)
    found_ms = _solve(best, blocks, bound_ms, Deadline(best.deadline.end_s - regions_s))
    if best.assignment and best.value_ms > max(bound_ms, found_ms) * (1 + 1e-5) and not best.deadline.is_over:
        _improve_regions(best, blocks)
    return found_ms


def _solve(best: Best, blocks: Blocks, bound_ms: float, deadline: Deadline) -> float:
    """Let HiGHS improve the best split; give its bound."""
    from .split_programme import solve_milp  # noqa: PLC0415 - HiGHS is loaded only where a proof is wanted

    known = blocks.gather(best.assignment) if best.assignment else None
    result = solve_milp(blocks, known, (bound_ms, best.value_ms), deadline)
    if result.is_infeasible:
        raise InfeasibleError(
            f"workload {best.workload.name!r}: no split keeps every accelerator within its memory; "
            "give the accelerators more, or add some"
        )
    if result.devices is not None:
        best.offer(blocks.spread(result.devices))
    return result.bound_ms
