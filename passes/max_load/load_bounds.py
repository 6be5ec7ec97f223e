"""Lower bounds on the largest load: a simple one of every split, and one of non-contiguous splits from prices.

The simple bound needs no search, and holds for every split, contiguous or not:

1. Every block runs somewhere: no less than the longest of all blocks' times on the device that suits it best.
2. All work is done by somebody: at a largest load T, k accelerators do k * T, and l CPUs take over at most what a
   fractional knapsack of capacity l * T can hold; blocks that only CPUs can run fill those first.

The other one puts prices on the blocks. Whatever prices blocks have: in a split whose largest load is T, the k
accelerators hold no more of them than k times what the fullest one can (``fullest.py``), and the CPUs no more than a
fractional knapsack of their time. Where that is less than all the prices together, there is no such split::

    k * fullest(T) + knapsack(CPUs * T)  <  sum of prices      =>      every split's largest load is above T

Every set of the knapsack pays for the nets it cuts, which the linear relaxation (``split_programme.py``) does not see:
there every device holds a part of every block. The best prices give the bound that column generation over the loads of
single devices would come to.

Prices begin at the times of the blocks, and follow a subgradient: blocks that the fullest set leaves out become dearer,
those in it cheaper, since k devices would all hold it. Steps are multiplications, of exponents that average over
rounds and are halved where the bound no longer rises.

Left out: memory limits, which devices in particular (they are alike).
"""

import numpy as np

from heterps_compile.passes.deadline import Deadline, TimeUpError

from .best_chain import Relief
from .blocks import Blocks, Floats
from .fullest import MOST_PRICE, Fullest, states_of

_ROUNDS = 100
"""Most of what there is to gain comes early; the rest of the time is better spent elsewhere."""
_FIRST_STEP = 0.1
"""Exponent of a round: a block left out becomes dearer by that factor of e."""
_AVERAGED = 0.7
"""How much of the last rounds' direction a round keeps."""
_PATIENCE = 8
"""Rounds without a better bound before steps are halved."""
_LEAST_PRICE = 1e-6
"""Of the dearest block; prices change by factors, and one of 0 would stay there."""


def simple_bound(blocks: Blocks) -> float:
    """Return the better of the two bounds, in ms."""
    accelerator_ms = np.where(blocks.on_accelerator, blocks.accelerator_ms, np.inf)
    cpu_ms = np.where(blocks.on_cpu, blocks.cpu_ms, np.inf)
    longest_ms = float(np.minimum(accelerator_ms, cpu_ms).max(initial=0.0))
    work_ms = float(blocks.accelerator_ms.sum())
    cpu_only_ms = float(blocks.cpu_ms[~blocks.on_accelerator].sum())
    relief = Relief(blocks)

    def fits(limit_ms: float) -> bool:
        spare_ms = blocks.cpus * limit_ms - cpu_only_ms
        return spare_ms >= 0 and work_ms <= blocks.accelerators * limit_ms + relief(spare_ms)

    low_ms, high_ms = 0.0, work_ms + float(blocks.cpu_ms.sum())
    for _ in range(60):
        middle_ms = (low_ms + high_ms) / 2
        low_ms, high_ms = (low_ms, middle_ms) if fits(middle_ms) else (middle_ms, high_ms)
    return max(longest_ms, low_ms) * (1 - 1e-12)


def price_bound(blocks: Blocks, value_ms: float, deadline: Deadline) -> float:
    """Return a lower bound on every split's largest load, in ms; 0 where there are too many states, or no time.

    Args:
        blocks: n blocks with their pool.
        value_ms: The largest load of a known split; the bound does not exceed it.
        deadline: Stop then, with the best bound so far.
    """
    if blocks.accelerators == 0 or value_ms <= 0 or not blocks.accelerator_ms.any():
        return 0.0
    bound_ms = 0.0
    try:
        states = states_of(blocks, deadline)
        if states is None:
            return 0.0
        fullest = Fullest(blocks, states, value_ms, deadline)
        dearest_ms = float(blocks.accelerator_ms.max())
        price = np.where(blocks.on_accelerator, np.maximum(blocks.accelerator_ms, _LEAST_PRICE * dearest_ms), 0.0)
        direction = np.zeros(blocks.count)
        step, idle = _FIRST_STEP, 0
        for _ in range(_ROUNDS):
            if bound_ms >= value_ms * (1 - 1e-9):
                break
            load = _least_possible(blocks, fullest, price)
            reached_ms = min(load * fullest.step_ms * (1 - 1e-12), value_ms)
            idle = 0 if reached_ms > bound_ms * (1 + 1e-9) else idle + 1
            bound_ms = max(bound_ms, reached_ms)
            if idle == _PATIENCE:
                step, idle = step / 2, 0
            gradient = np.ones(blocks.count)
            gradient[fullest.best_set(load)] -= blocks.accelerators
            direction = _AVERAGED * direction + (1 - _AVERAGED) * gradient
            price *= np.exp(step * direction)
            price /= price.sum()
    except TimeUpError:
        pass  # the bound so far holds
    return bound_ms


def _least_possible(blocks: Blocks, fullest: Fullest, price: Floats) -> int:
    """Return the least load, in steps, from which on the devices could hold all prices.

    Raises:
        TimeUpError: where the deadline comes first.
    """
    whole = np.round(price / price.sum() * MOST_PRICE).astype(np.int32)
    total = int(whole.sum(dtype=np.int64))
    most = fullest(whole)
    relief = Relief(blocks, whole.astype(np.float64))
    cpu_only_ms = float(blocks.cpu_ms[~blocks.on_accelerator].sum())

    def is_possible(load: int) -> bool:
        spare_ms = blocks.cpus * (load + 1) * fullest.step_ms - cpu_only_ms  # of every T below the next step
        return spare_ms >= 0 and blocks.accelerators * int(most[load]) + relief(spare_ms) >= total

    low, high = -1, fullest.steps
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_possible(middle) else (middle, high)
    return high
