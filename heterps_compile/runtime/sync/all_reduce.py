"""``all-reduce``: gradients are summed, so that replicas are what one process would be.

Gradients that another rule had not sent before a checkpoint are added in the first step after it.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import ALL_REDUCE, Capabilities
from .collective import Work
from .contract import RESIDUAL, Flat, Rule, Shared, of_kind, refuse_unadded


class AllReduce(Rule):
    """Sums gradients over the ranks."""

    can: ClassVar[Capabilities] = ALL_REDUCE

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        super().__init__(shared, asked)
        self._works: list[Work] = []
        self._left: dict[str, Tensor] = {}

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Check that everything left can be added.

        Raises:
            RunError: if a parameter has no dense gradient that its residual could be added to.
        """
        refuse_unadded(self._left, flats)

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Begin to sum."""
        for flat in flats if self._left else ():
            flat.tensor.add_(flat.of(self._left), alpha=scale)
        self._works += [self.shared.group.sum(flat.tensor) for flat in flats]

    def finish(self) -> None:
        """Wait for the sums."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Forget gradients that have been added."""
        if not is_skipped:
            self._left.clear()

    def state(self) -> dict[str, Tensor]:
        """Return gradients that are still to be added."""
        return {f"{RESIDUAL}:{name}": tensor for name, tensor in self._left.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take gradients that were not sent before a checkpoint."""
        self._left = of_kind(RESIDUAL, state)
