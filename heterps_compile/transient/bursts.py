"""How transient machines come and go, with losses that come in bursts, counted as it is seen.

A step's *level* is the index of the cheapest way that is there, its *calm* how long no way was broken::

    calm         0: now    1: a step    2: 2-3 steps    3: 4-7 steps    4: 8 and more

In every step some way is broken with a probability that depends on the calm. Then, and else, the level changes with
probabilities that depend on the level. All are shares of what was counted since the first step, beside a prior. The
calm moves on by chance, after as many steps as it lasts in the mean, so that it needs no clock.

Left out: who else holds machines; hours and days; that one way's breaks say more of it than of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Chances = NDArray[np.floating[Any]]

CALMS = 5
_LASTS = (1, 1, 2, 4, 1)  # steps of each calm; the last one has no end
_OF_STEPS = (0, 1, 2, 2, 3, 3, 3, 3)


@dataclass(frozen=True, slots=True)
class Prior:
    """What is taken to have been seen before the first step.

    Attributes:
        lasts: Steps for which a level lasts, and between breaks twice as many.
        weight: Of how many changes of level and breaks.
        bucket_weight: For how many steps of each calm the rate of all of them counts.
        early: How many times as many breaks there are as at all times, by calm.
    """

    lasts: float = 60.0
    weight: float = 0.5
    bucket_weight: float = 40.0
    early: tuple[float, ...] = (2.0, 2.0, 2.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Law:
    """The probabilities of a step, for a job that holds one way.

    A state is ``level * CALMS + calm``.

    Attributes:
        kept: [ways + 1, states, states], to each state without a break of the way; the last row is of a job that waits.
        broken: [ways, states, levels], to each level with the way broken, whose calm is 0 then.
    """

    kept: Chances
    broken: Chances


@dataclass(slots=True)
class Watch:
    """Counts what is seen of some ways, the last of which stays.

    Attributes:
        ways: How many there are.
        prior: What was seen before.
    """

    ways: int
    prior: Prior = field(default_factory=Prior)
    state: int = -1
    _since: int = len(_OF_STEPS)
    _breaks: Chances = field(default_factory=lambda: np.zeros((CALMS, 2)))
    _calm_moves: Chances = field(default_factory=lambda: np.zeros((1, 1)))
    _break_moves: Chances = field(default_factory=lambda: np.zeros((1, 1, 2, 1)))

    def __post_init__(self) -> None:
        self._calm_moves = np.zeros((self.ways, self.ways))
        self._break_moves = np.zeros((self.ways, self.ways, 2, self.ways))

    def see(self, level: int, broken: Sequence[bool]) -> None:
        """Count a step: the index of the cheapest way that is there, and which ways are broken."""
        is_break = any(broken)
        if self.state >= 0:
            before, calm = divmod(self.state, CALMS)
            self._breaks[calm] += (is_break, 1)
            if is_break:
                for way, is_broken in enumerate(broken):
                    self._break_moves[way, before, int(is_broken), level] += 1
            else:
                self._calm_moves[before, level] += 1
        self._since = 0 if is_break else self._since + 1
        self.state = level * CALMS + (_OF_STEPS[self._since] if self._since < len(_OF_STEPS) else CALMS - 1)

    def law(self) -> Law:
        """Return the probabilities by all that was seen."""
        prior, ways = self.prior, self.ways
        breaks, steps = self._breaks.sum(axis=0).tolist()
        mean = (breaks + prior.weight / 2) / (steps + prior.weight * prior.lasts)
        rates = mean * np.array(prior.early)
        rate = (self._breaks[:, 0] + prior.bucket_weight * rates) / (self._breaks[:, 1] + prior.bucket_weight)
        rate = np.minimum(rate, 0.95)
        calm_moves = self._calm_moves + np.full((ways, ways), prior.weight / max(ways - 1, 1))
        calm_moves[np.diag_indices(ways)] += prior.weight * (prior.lasts - 1 / max(ways - 1, 1))
        return law_of(rate, calm_moves, self._break_moves + self._prior_breaks())

    def _prior_breaks(self) -> Chances:
        """Return by way, level, whether the way is broken, and level then: what a break is taken to have done before.

        It breaks a way that is there and takes it away, or not, alike.
        """
        found = np.zeros_like(self._break_moves)
        for way in range(self.ways):
            for level in range(self.ways):
                may_break = level <= way < self.ways - 1
                found[way, level, int(may_break)] = 1 / self.ways
        return found


def law_of(rate: Chances, calm_moves: Chances, break_moves: Chances) -> Law:
    """Return the probabilities of a step.

    Args:
        rate: [calms], of a break.
        calm_moves: [levels, levels], weights of the level after a step without a break.
        break_moves: [ways, levels, 2, levels], weights of what a break does: by way, level before, whether it breaks
            the way, and level after.
    """
    ways = len(calm_moves)
    calm_moves = calm_moves / calm_moves.sum(axis=1, keepdims=True)
    break_moves = break_moves / break_moves.sum(axis=(2, 3), keepdims=True)
    quiet = np.einsum("lm,c,cd->lcmd", calm_moves, 1 - rate, calm_chances())
    kept = np.repeat(quiet[None], ways + 1, axis=0)
    of_others = np.concatenate([break_moves[:, :, 0], break_moves[-1:].sum(axis=2)])  # a job that waits holds none
    kept[..., 0] += np.einsum("wlm,c->wlcm", of_others, rate)
    broken = np.einsum("wlm,c->wlcm", break_moves[:, :, 1], rate)
    states = ways * CALMS
    return Law(kept.reshape(ways + 1, states, states), broken.reshape(ways, states, ways))


def calm_chances() -> Chances:
    """Return [calm, calm]: from each to the next one, in a step without a break."""
    found = np.zeros((CALMS, CALMS))
    for calm, lasts in enumerate(_LASTS):
        found[calm, min(calm + 1, CALMS - 1)] += 1 / lasts
        found[calm, calm] += 1 - 1 / lasts
    return found
