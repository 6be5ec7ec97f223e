"""A lower bound on the largest load of every split that needs no search.

1. Every block runs somewhere: no less than the longest of all blocks' times on the device that suits it best.
2. All work is done by somebody: at a largest load T, k accelerators do k * T, and l CPUs take over at most what a
   fractional knapsack of capacity l * T can hold; blocks that only CPUs can run fill those first.

Left out: memory limits, what is cut, which devices in particular (they are alike).
"""

import numpy as np

from .best_chain import Relief
from .blocks import Blocks


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
