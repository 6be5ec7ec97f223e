"""Brackets of Hyperband (Li et al., JMLR 2018): many short trials, of which ever fewer train ever longer.

::

    levels 1 3 9      bracket 0:  9 trials of 1 -> 3 of 3 -> 1 of 9
                      bracket 1:            3 trials of 3 -> 1 of 9
                      bracket 2:                      3 trials of 9,  then bracket 3 as bracket 0, and so on

The sizes are those of HpBandSter and DEHB: ``floor(L / (s+1)) eta^s`` trials in the first rung of ``s+1``, of L levels.
A rung begins when the one before it is told whole; meanwhile the next bracket begins.

Left out: which trials go on (``hyperband.py``, ``dehb.py``).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from .ask_tell import Fidelity


def rung_sizes(levels: int, eta: int, bracket: int) -> tuple[int, ...]:
    """Return how many trials each rung of a bracket has; its last one is of the highest level."""
    halvings = levels - 1 - bracket % levels
    first = levels // (halvings + 1) * eta**halvings
    return tuple(max(first // eta**rung, 1) for rung in range(halvings + 1))


def trials_to_longest(levels: int, eta: int) -> int:
    """Count the trials up to the first that can be of the highest level."""
    sizes = [rung_sizes(levels, eta, bracket) for bracket in range(levels)]
    return 1 + min(sum(size[0] for size in sizes[:begun]) + sum(sizes[begun][:-1]) for begun in range(levels))


@dataclass(slots=True)
class Bracket:
    """A bracket that runs.

    Attributes:
        index: From 0 on.
        sizes: Trials in each rung.
        first_level: Index of the level of the first rung.
        started: Trials asked for, by rung.
        results: Number and loss of the trials told, by rung, in the order told.
    """

    index: int
    sizes: Sequence[int]
    first_level: int
    started: Counter[int] = field(default_factory=Counter)
    results: defaultdict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

    def next_rung(self) -> int | None:
        """Return the rung of the next trial; None where the bracket waits or is through."""
        for rung, size in enumerate(self.sizes):
            if self.started[rung] < size:
                return rung if rung == 0 or len(self.results[rung - 1]) == self.sizes[rung - 1] else None
        return None

    @property
    def is_told(self) -> bool:
        """Whether every trial of it is told."""
        return all(len(self.results[rung]) == size for rung, size in enumerate(self.sizes))


class Brackets:
    """Brackets one after another, several at a time where trials run at once."""

    def __init__(self, fidelity: Fidelity) -> None:
        self.levels = fidelity.levels
        self.eta = fidelity.eta
        self.running: dict[int, Bracket] = {}
        self._begun = 0

    def start(self) -> tuple[Bracket, int]:
        """Return the bracket and the rung of the next trial, and count it as started."""
        for bracket in self.running.values():
            rung = bracket.next_rung()
            if rung is not None:
                break
        else:
            sizes = rung_sizes(len(self.levels), self.eta, self._begun)
            bracket, rung = Bracket(self._begun, sizes, len(self.levels) - len(sizes)), 0
            self.running[bracket.index] = bracket
            self._begun += 1
        bracket.started[rung] += 1
        return bracket, rung

    def tell(self, index: int, rung: int, number: int, loss: float) -> None:
        """Take the loss of a trial; a bracket that is through is forgotten."""
        bracket = self.running[index]
        bracket.results[rung].append((number, loss))
        if bracket.is_told:
            del self.running[index]
