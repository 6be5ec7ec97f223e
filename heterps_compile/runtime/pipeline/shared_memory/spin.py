"""How long a rank that waits looks for its message before it sleeps.

A process that sleeps takes longer to wake than most messages are late, so looking is better where every rank has a core
of its own. Where something else computes on these cores too, looking keeps them from the very rank that is waited for.
A rank cannot know; it tries. Looks are long until one was in vain; then some are short. How many doubles with every
long look in vain, and halves with every one that was not::

    long look    found found vain                found vain
    short looks                   . . . . . . . .           . . . .

Left out: what is looked at (``neighbours.py``).
"""

_LONG_S = 2e-3
_SHORT_S = 20e-6
_MOST_SHORT = 256


class Look:
    """The looks of one rank, one after the other.

    Attributes:
        longest_s: How long the next one may take.
    """

    __slots__ = ("_after_next", "_left", "_long_s", "longest_s")

    def __init__(self, *, has_core: bool) -> None:
        """Begin with a long one; with none where ranks share cores."""
        self._long_s = _LONG_S if has_core else 0.0
        self.longest_s = self._long_s
        self._left, self._after_next = 0, 1

    def found(self) -> None:
        """Hear that what was looked for came while the rank looked."""
        if self._left:
            self._next_short()
        elif self._after_next > 1:
            self._after_next //= 2

    def in_vain(self) -> None:
        """Hear that it did not."""
        if self._left:
            self._next_short()
        elif self._long_s:
            self._left = self._after_next
            self._after_next = min(2 * self._after_next, _MOST_SHORT)
            self.longest_s = _SHORT_S

    def _next_short(self) -> None:
        self._left -= 1
        if not self._left:
            self.longest_s = self._long_s
