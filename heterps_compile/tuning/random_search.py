"""Random search: every trial is drawn from the whole space and trained whole."""

from .ask_tell import Method, Trial


class RandomSearch(Method):
    """Draw every configuration uniformly from the cube of the space."""

    def propose(self) -> Trial:
        """Return a draw."""
        return self.next_trial(self.draw_new(self.fidelity.most), self.fidelity.most)

    def learn(self, trial: Trial, loss: float) -> None:
        """Learn nothing."""
