r"""``local``: every replica steps on its own gradients; every so many steps all take the mean of their weights.

A replica steps on the mean over its own samples (``contract.py``): its buffer times M/m. Means of weights are weighted
by the shares m/M, so that one step of plain SGD with a mean behind it is the step of one process, whatever the shares::

    sum over r of  m_r/M (w - lr M/m_r g_r)   =   w - lr  sum over r of g_r

Momentum and all else that optimisers know stay with their replica, and so a checkpoint keeps them for each. A mean is
taken after the steps whose number, from 1, the period divides: a step that is skipped counts, a resumed run goes on as
it would have. Validations and the weights of checkpoints are of the mean; training goes on from each replica's own.

Left out: running statistics, which are those of all replicas in every step; sparse gradients, which stay with their
replica until weights are averaged; the predictors ``mm`` and ``mc``.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

from torch import Tensor

from heterps_compile.sync_rules import local_steps
from heterps_compile.sync_rules.rule import SyncRule

from .capabilities import LOCAL, Capabilities
from .contract import WEIGHT, Flat, Rule, Shared, flats_of, put, put_own, refuse_residuals


class LocalSteps(Rule):
    """Steps alone, and averages weights now and then."""

    can: ClassVar[Capabilities] = LOCAL

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        assert isinstance(asked, local_steps.LocalSteps)  # noqa: S101 - of that name
        super().__init__(shared, asked)
        self._steps = asked.steps
        self._is_agreed = True

    def after_backward(self, flats: Sequence[Flat], scale: float) -> None:
        """Make means over the samples of this rank of its gradients; scaled ones stay scaled."""
        for flat in flats:
            flat.tensor.div_(self.shared.share)

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Take the mean of the weights where it is due."""
        self._is_agreed &= is_skipped
        if (step + 1) % self._steps == 0 and not self._is_agreed:
            put(self.shared.parameters, self._mean())
            self._is_agreed = True

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """Let replicas hold the mean of their weights while a block runs."""
        if self._is_agreed:
            yield
            return
        own = flats_of(self.shared.parameters)
        put(self.shared.parameters, self._mean())
        try:
            yield
        finally:
            put(self.shared.parameters, own)

    def _mean(self) -> list[Flat]:
        found = flats_of(self.shared.parameters)
        works = [self.shared.group.sum(flat.tensor.mul_(self.shared.share)) for flat in found]
        for work in works:
            work.wait()
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the weights of this rank, where they are not everybody's."""
        if self._is_agreed:
            return {}
        return {f"{WEIGHT}:{name}": p.detach().clone() for name, p in self.shared.parameters.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on with the weights of this rank, where the checkpoint has them."""
        refuse_residuals(self.asked.name, self.shared.where, state)
        if put_own(self.shared.parameters, state):
            self._is_agreed = False


def mean_with(mean: Tensor, seen: int, model: Tensor) -> Tensor:
    """Return the mean of so many models with one more."""
    return mean + (model - mean) / (seen + 1)
