"""A lower bound on the largest load of every split that needs no search.

1. Every block runs somewhere: no less than the longest of all blocks' times on the device that suits it best.
2. All work is done by somebody: at a largest load T, k accelerators do k * T, and l CPUs take over at most what a
   fractional knapsack of capacity l * T can hold; blocks that only CPUs can run fill those first.

Left out: memory limits, what is cut, which devices in particular (they are alike).
"""

import numpy as np

from .blocks import Blocks


class Relief:
    """The most accelerator time that a given CPU time can replace: a fractional knapsack."""

    def __init__(self, blocks: Blocks) -> None:
        both = blocks.on_accelerator & blocks.on_cpu
        worth = blocks.accelerator_ms[both]
        cpu_ms = blocks.cpu_ms[both]
        with np.errstate(divide="ignore", invalid="ignore"):
            order = np.argsort(-(worth / cpu_ms), kind="stable")  # nan, for 0 / 0, goes last: it is worth 0
        self._cpu_ms = np.concatenate([[0.0], np.cumsum(cpu_ms[order])])
        self._worth = np.concatenate([[0.0], np.cumsum(worth[order])])

    def __call__(self, cpu_ms: float) -> float:
        """Return the worth of what fits into so much CPU time."""
        at = int(np.searchsorted(self._cpu_ms, cpu_ms, side="right")) - 1
        if at + 1 == len(self._cpu_ms):
            return float(self._worth[-1])
        step_cpu_ms = self._cpu_ms[at + 1] - self._cpu_ms[at]
        step = self._worth[at + 1] - self._worth[at]
        return float(self._worth[at] + step * (cpu_ms - self._cpu_ms[at]) / step_cpu_ms)


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
