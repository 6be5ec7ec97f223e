"""Hyperband (Li et al., JMLR 2018): brackets of random configurations, the best of each rung trained on."""

from .ask_tell import Fidelity, Method, Trial
from .brackets import Brackets
from .space import Space, Vector


class Hyperband(Method):
    """Draw the first rung of every bracket, and promote the best of a rung from their checkpoints."""

    def __init__(self, space: Space, fidelity: Fidelity, seed: int) -> None:
        super().__init__(space, fidelity, seed)
        self._brackets = Brackets(fidelity)
        self._vectors: dict[int, Vector] = {}

    def propose(self) -> Trial:
        """Return a draw, or the next best of the rung below."""
        bracket, rung = self._brackets.start()
        fidelity = self._brackets.levels[bracket.first_level + rung]
        continues = None
        if rung:
            below = sorted(bracket.results[rung - 1], key=lambda told: (told[1], told[0]))
            continues = below[bracket.started[rung] - 1][0]
        vector = self.draw_new(fidelity) if continues is None else self._vectors[continues]
        trial = self.next_trial(vector, fidelity, continues, (bracket.index, rung))
        self._vectors[trial.number] = vector
        return trial

    def learn(self, trial: Trial, loss: float) -> None:
        """Count the trial for its rung."""
        bracket, rung = trial.place
        self._brackets.tell(bracket, rung, trial.number, loss)
