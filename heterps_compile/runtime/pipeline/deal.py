"""Which replica of a stage works on which micro-batch.

Replicas of one speed take turns. Replicas of different speeds get shares in proportion: the counts by the largest
remainder, each replica's micro-batches spread evenly over the step. Seven micro-batches::

    speeds 1, 1     | 0 1 0 1 0 1 0
    speeds 2, 1     | 0 1 0 0 0 1 0     shares 4.67 and 2.33: 5 and 2
    speeds 3, 2, 2  | 0 1 2 0 1 2 0     shares 3, 2 and 2
    speeds 1, 3     | 1 0 1 1 1 0 1     shares 1.75 and 5.25: 2 and 5

Left out: how fast a replica is.
"""

import math
from collections.abc import Sequence


def deal_micro_batches(count: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """Return the replica of every micro-batch.

    Args:
        count: Micro-batches in one step.
        speeds: Of every replica, in any unit; positive.
    """
    counts = largest_remainder(count, speeds)
    due = sorted(
        ((turn + 0.5) / own, replica) for replica, own in enumerate(counts) for turn in range(own)
    )  # among those due at once, the first replica first
    return tuple(replica for _, replica in due)


def largest_remainder(count: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide a count in proportion to weights: whole shares first, what is left to the largest remainders."""
    total = math.fsum(weights)
    shares = [count * weight / total for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - shares[i], i))
    for i in by_remainder[: count - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
