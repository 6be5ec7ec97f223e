"""Random search: every trial is drawn from the whole space and trained whole."""

from .ask_tell import Method, Proposal, Trial


class RandomSearch(Method):
    """Draw every configuration uniformly from the cube of the space."""

    def propose(self, number: int) -> Proposal:
        """Return a draw."""
        return Proposal(self.draw_new(self.fidelity.most), self.fidelity.most)

    def learn(self, trial: Trial, proposal: Proposal, loss: float) -> None:
        """Learn nothing."""
