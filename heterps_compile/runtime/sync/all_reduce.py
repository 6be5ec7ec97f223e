"""``all-reduce``: gradients are summed, so that replicas are what one process would be.

Gradients that another rule had not sent before a checkpoint are added in the first step after it.
"""

from collections.abc import Sequence
from typing import ClassVar

from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import ALL_REDUCE, Capabilities
from .collective import Work
from .contract import Flat, Shared
from .residuals import AddsResiduals


class AllReduce(AddsResiduals):
    """Sums gradients over the ranks."""

    can: ClassVar[Capabilities] = ALL_REDUCE

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        super().__init__(shared, asked)
        self._works: list[Work] = []

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Begin to sum."""
        for place, flat in enumerate(flats):
            self.residuals.add_to(place, flat.tensor, scale)
            self.residuals.forget(place)
        self._works += [self.shared.group.sum(flat.tensor) for flat in flats]

    def finish(self) -> None:
        """Wait for the sums."""
        for work in self._works:
            work.wait()
        self._works.clear()
