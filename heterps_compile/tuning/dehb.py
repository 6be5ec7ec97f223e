"""DEHB (Awad et al., IJCAI 2021): Hyperband's brackets, with differential evolution in every rung.

Each level of fidelity has a population, as large as the largest rung of that level. In the first round of brackets the
best of a level that were not tried at the next one yet are promoted, from their checkpoints. From then on a trial is a
new vector: of three that are drawn from the best of the level below, ``a + F (b - c)``, crossed with the individual
whose turn it is (rand/1/bin, F = CR = 0.5); what leaves the cube is drawn anew. It takes the place of that individual
where its loss is no higher. A vector whose configuration is forbidden, or was tried at this level, is made again, and
after twenty times drawn.

Left out: other strategies of mutation, an age after which individuals leave.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ask_tell import Fidelity, Method, Trial
from .brackets import Bracket, Brackets, rung_sizes
from .space import Space, Vector

SCALE = 0.5
CROSSED = 0.5
_PARENTS = 3
_TRIES = 20


@dataclass(slots=True)
class _Population:
    """The individuals of a level.

    Attributes:
        vectors: One a row.
        losses: Of each at this level; infinite where it was not tried here.
        trials: The number of the trial that had the loss, -1 where there was none.
        turn: Whose turn it is.
        promoted: Individuals of the level below (vector, trial) that wait to be tried here.
    """

    vectors: NDArray[np.float64]
    losses: NDArray[np.float64]
    trials: NDArray[np.int64]
    turn: int = 0
    promoted: list[tuple[Vector, int]] | None = None

    def next_turn(self) -> int:
        now = self.turn
        self.turn = (now + 1) % len(self.losses)
        return now

    def best(self, count: int) -> Vector:
        return self.vectors[np.argsort(self.losses, kind="stable")[:count]]


class Dehb(Method):
    """Evolve a population for every level of fidelity."""

    def __init__(self, space: Space, fidelity: Fidelity, seed: int) -> None:
        super().__init__(space, fidelity, seed)
        self._brackets = Brackets(fidelity)
        levels = len(self._brackets.levels)
        rungs = [rung_sizes(levels, fidelity.eta, bracket) for bracket in range(levels)]
        self._populations = [
            self._drawn(max(sizes[level - levels] for sizes in rungs if len(sizes) >= levels - level))
            for level in range(levels)
        ]

    def propose(self) -> Trial:
        """Return a promoted individual in the first round of brackets, and a new one afterwards."""
        bracket, rung = self._brackets.start()
        level = bracket.first_level + rung
        population = self._populations[level]
        slot = population.next_turn()
        place = (bracket.index, rung, slot)
        fidelity = self._brackets.levels[level]
        if rung and bracket.index < len(self._brackets.levels):
            vector, continues = self._promoted(level, bracket.sizes[rung])
            return self.next_trial(vector, fidelity, continues, place)
        return self.next_trial(self._child(bracket, rung, slot), fidelity, None, place)

    def learn(self, trial: Trial, loss: float) -> None:
        """Let the individual take its place, where it is no worse than the one that has it."""
        bracket, rung, slot = trial.place
        population = self._populations[self._brackets.running[bracket].first_level + rung]
        if loss <= population.losses[slot]:
            population.vectors[slot] = trial.vector
            population.losses[slot] = loss
            population.trials[slot] = trial.number
        self._brackets.tell(bracket, rung, trial.number, loss)

    def _drawn(self, size: int) -> _Population:
        vectors = np.array([self.space.draw(self.random) for _ in range(size)])
        return _Population(vectors, np.full(size, np.inf), np.full(size, -1))

    def _promoted(self, level: int, count: int) -> tuple[Vector, int | None]:
        """Return the best of the level below that was not tried at this one yet, and its trial there.

        Where there is none, since trials of it failed, it is a draw.
        """
        here, below, fidelity = self._populations[level], self._populations[level - 1], self._brackets.levels[level]
        if not here.promoted:
            tried = [int(i) for i in np.argsort(below.losses, kind="stable") if np.isfinite(below.losses[i])]
            new = [i for i in tried if self.is_new(self.space.config_at(below.vectors[i]), fidelity)]
            here.promoted = [(below.vectors[i].copy(), int(below.trials[i])) for i in new[:count]]
        if not here.promoted:
            return self.draw_new(fidelity), None
        return here.promoted.pop(0)

    def _child(self, bracket: Bracket, rung: int, slot: int) -> Vector:
        level = bracket.first_level + rung
        fidelity = self._brackets.levels[level]
        target = self._populations[level].vectors[slot]
        pool = self._populations[max(level - 1, bracket.first_level)].best(bracket.sizes[rung])
        for _ in range(_TRIES):
            vector = self._crossed(target, self._mutant(pool, target))
            config = self.space.config_at(vector)
            if self.space.is_allowed(config) and self.is_new(config, fidelity):
                return vector
        return self.draw_new(fidelity)

    def _mutant(self, pool: Vector, target: Vector) -> Vector:
        """Return a mutant of a pool; one that is too small is filled with mutants of all populations."""
        if len(pool) < _PARENTS:
            everyone = np.concatenate([population.vectors for population in self._populations])
            filled = [self._difference(everyone, target) for _ in range(_PARENTS - len(pool) + 1)]
            pool = np.concatenate([pool, filled])
        return self._difference(pool, target)

    def _difference(self, pool: Vector, target: Vector) -> Vector:
        others = pool[~np.all(pool == target, axis=1)]
        while len(others) < _PARENTS:
            others = np.concatenate([others, self.space.draw(self.random)[None]])
        one, two, three = others[self.random.choice(len(others), _PARENTS, replace=False)]
        return np.asarray(one + SCALE * (two - three))

    def _crossed(self, target: Vector, mutant: Vector) -> Vector:
        taken = self.random.random(len(target)) < CROSSED
        if not taken.any():
            taken[self.random.integers(len(target))] = True
        child = np.where(taken, mutant, target)
        outside = (child < 0) | (child > 1)
        child[outside] = self.random.random(int(outside.sum()))
        return child
