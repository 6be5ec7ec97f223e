"""How long a rank that waits spins before it sleeps.

A process that sleeps takes longer to wake than most messages are late, so spinning is better where every rank has a
core of its own. Where something else computes on these cores too, spinning keeps them from the very rank that is waited
for. So the spin adapts: spins are long until one was in vain; then some are short. How many doubles with every long
spin in vain, and halves with every one that was not::

    long spin     found found vain                found vain
    short spins                    . . . . . . . .           . . . .

Left out: what is waited for (``neighbours.py``).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WaitPolicy:
    """How a rank waits: it spins, then sleeps until it is woken.

    Attributes:
        spin_s: The longest spin.
        short_spin_s: The longest one after a spin in vain.
        most_short: How many short ones follow a long one in vain, at most; 0 makes all of them long.
        first_sleep_s: Of the first sleep, which ends with a look: the writer may not have seen that it began.
        back_off_s: Between two looks of a sender whose message before has not been taken.
        patience_s: After which a rank that waits gives up; whoever launched the ranks notices long before.
    """

    spin_s: float = 2e-3
    short_spin_s: float = 20e-6
    most_short: int = 256
    first_sleep_s: float = 1e-3
    back_off_s: float = 100e-6
    patience_s: float = 1800.0


class Spin:
    """The spins of one rank, one after the other.

    Attributes:
        longest_s: How long the next one may take.
    """

    __slots__ = ("_after_next", "_left", "_long_s", "_policy", "longest_s")

    def __init__(self, policy: WaitPolicy, *, has_core: bool) -> None:
        """Begin with a long one; with none where ranks share cores."""
        self._policy = policy
        self._long_s = policy.spin_s if has_core else 0.0
        self.longest_s = self._long_s
        self._left, self._after_next = 0, 1

    def found(self) -> None:
        """Note that what was waited for came while the rank spun."""
        if self._left:
            self._next_short()
        elif self._after_next > 1:
            self._after_next //= 2

    def in_vain(self) -> None:
        """Note that it did not."""
        if self._left:
            self._next_short()
        elif self._long_s and self._policy.most_short:
            self._left = self._after_next
            self._after_next = min(2 * self._after_next, self._policy.most_short)
            self.longest_s = self._policy.short_spin_s

    def _next_short(self) -> None:
        self._left -= 1
        if not self._left:
            self.longest_s = self._long_s
