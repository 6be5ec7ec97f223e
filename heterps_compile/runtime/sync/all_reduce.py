"""``all-reduce``: gradients are summed, so that replicas are what one process would be.

Gradients that another rule had not sent before a checkpoint are added in the first step after it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import ALL_REDUCE, Capabilities
from .contract import Flat, Rule, Shared, Work
from .residuals import Residuals


class AllReduce(Rule):
    """Sums gradients over the ranks."""

    can: ClassVar[Capabilities] = ALL_REDUCE

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        super().__init__(shared, asked)
        self._works: list[Work] = []
        self._residuals = Residuals(may_skip=shared.is_scaled)

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Lay out what another rule has left."""
        self._residuals.prepare(flats)

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Begin to sum."""
        for place, flat in enumerate(flats):
            self._residuals.add_to(place, flat.tensor, scale)
            self._residuals.forget(place)
        self._works += [self.shared.group.sum(flat.tensor) for flat in flats]

    def finish(self) -> None:
        """Wait for the sums."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Forget what another rule has left, once it is added."""
        self._residuals.settle(is_skipped=is_skipped)

    def state(self) -> dict[str, Tensor]:
        """Return what another rule has left, until it is added."""
        return self._residuals.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what another rule has left."""
        self._residuals.load(state)
