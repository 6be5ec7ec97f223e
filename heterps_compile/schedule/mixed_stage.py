"""Replicas of one stage that are not alike: which micro-batches each takes.

Six micro-batches, a fast replica and one that takes twice as long::

    equal shares     fast | 0 . 2 . 4 .          the stage takes 6
                     slow | 1-- 3-- 5--

    by speed         fast | 0 1 3 4              the stage takes 4
                     slow | 2-- 5--

Fed in equal shares, replica i takes every k-th micro-batch from i on, as the runtime deals them where nothing else is
said. By speed, a micro-batch goes to the replica that would be done with all of its own first, so that the slowest is
done as early as it can be; the last ones go to those that have none yet, as long as there are enough for all::

    as fast, as fast, ten times as slow     | 0 1 0 1 0 2

Left out: how long a replica takes (``problem_file/given_problem.py``), when it runs (``simulate.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

EQUAL, BY_SPEED = "equal", "speed"
FEEDS = (EQUAL, BY_SPEED)
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class MixedStage:
    """The replicas of a stage.

    Attributes:
        forward_s, backward_s: [k], one micro-batch on each replica.
        taken_by: [M], the replica of every micro-batch.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    taken_by: tuple[int, ...]

    @property
    def busiest_s(self) -> float:
        """Return the longest that a replica works on its micro-batches."""
        counts = [0] * len(self.forward_s)
        for replica in self.taken_by:
            counts[replica] += 1
        times_s = zip(counts, self.forward_s, self.backward_s, strict=True)
        return max(count * (forward_s + backward_s) for count, forward_s, backward_s in times_s)


def mixed_stage(forward_s: Sequence[float], backward_s: Sequence[float], micro_batches: int, feed: str) -> MixedStage:
    """Return the replicas of a stage with their micro-batches; O(micro-batches * replicas).

    Args:
        forward_s: [k], one micro-batch on each replica.
        backward_s: [k], as above.
        micro_batches: In the step.
        feed: A name of :data:`FEEDS`.
    """
    taken_by = share_out([sum(each) for each in zip(forward_s, backward_s, strict=True)], micro_batches, feed)
    return MixedStage(tuple(forward_s), tuple(backward_s), taken_by)


def share_out(times_s: Sequence[float], micro_batches: int, feed: str) -> tuple[int, ...]:
    """Return the replica of every micro-batch, as the module draws it; O(micro-batches * replicas).

    Args:
        times_s: [k], one micro-batch on each replica.
        micro_batches: In the step.
        feed: A name of :data:`FEEDS`.
    """
    count = len(times_s)
    if feed == EQUAL or min(times_s) == max(times_s):
        return tuple(i % count for i in range(micro_batches))
    slowest_s, taken = max(times_s), [0] * count
    dealt = []
    for i in range(micro_batches):
        idle = [each for each in range(count) if not taken[each]]
        among = idle if len(idle) == micro_batches - i and micro_batches >= count else range(count)
        # rounded, so that the order among equal ones does not hang on how their times were written
        replica = min(among, key=lambda each: (round((taken[each] + 1) * times_s[each] / slowest_s, _DIGITS), each))
        taken[replica] += 1
        dealt.append(replica)
    return tuple(dealt)
