"""What is left of a rank's gradients after a step has sent a part of them; the next step adds it.

It is kept as if losses were not scaled, so that the scale of float16 may move meanwhile, and a step that is skipped
leaves it as it was before that step: what was sent then moved no weight.

Left out: what is sent (``top_k.py``).
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from heterps_compile.sync_rules.rule import SyncRule

from .contract import RESIDUAL, Flat, Rule, Shared, of_kind, refuse_unadded


class Residuals:
    """The residuals of some flat buffers; none, and no memory, until there is one."""

    def __init__(self, *, may_skip: bool) -> None:
        """Begin without any.

        Args:
            may_skip: Whether steps may be skipped, for which what was before a step is kept until it is over.
        """
        self._may_skip = may_skip
        self._known: dict[str, Tensor] = {}
        self._flats: list[Flat] = []
        self._kept: list[Tensor | None] = []
        self._next: list[Tensor | None] = []

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Lay out what is known by name as gradients lie.

        Raises:
            RunError: where a parameter has no dense gradient that its residual could be added to.
        """
        refuse_unadded(self._known, flats)
        self._flats = list(flats)
        self._kept = [flat.of(self._known) if self._known.keys() & set(flat.names) else None for flat in flats]
        self._next = list(self._kept)
        self._known = {}

    def add_to(self, place: int, gradient: Tensor, scale: float) -> None:
        """Add a buffer's residual to its gradient."""
        kept = self._kept[place]
        if kept is not None:
            gradient.add_(kept, alpha=scale)

    def keep(self, place: int, rest: Tensor, scale: float) -> None:
        """Keep what is not sent; it counts once the step is taken."""
        if self._may_skip:
            self._next[place] = rest / scale
            return
        kept = self._next[place]
        if kept is None:
            kept = self._next[place] = self._kept[place] = torch.empty_like(rest)
        torch.div(rest, scale, out=kept)

    def forget(self, place: int) -> None:
        """Keep nothing of a buffer, all of which is sent."""
        self._next[place] = None

    def settle(self, *, is_skipped: bool) -> None:
        """End a step."""
        if is_skipped:
            self._next = list(self._kept)
        else:
            self._kept = list(self._next)

    def state(self) -> dict[str, Tensor]:
        """Return them by name."""
        if not self._flats:
            return {f"{RESIDUAL}:{name}": tensor for name, tensor in self._known.items()}
        found: dict[str, Tensor] = {}
        for flat, kept in zip(self._flats, self._kept, strict=True):
            parts = {} if kept is None else flat.by_name(kept)
            found |= {f"{RESIDUAL}:{name}": part for name, part in parts.items()}
        return found

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take them back before the first step."""
        self._known = of_kind(RESIDUAL, state)


class AddsResiduals(Rule):
    """A rule that adds what was not sent before, be it by itself or by the rule before a checkpoint, to its gradients.

    Attributes:
        residuals: What was not sent.
    """

    def __init__(self, shared: Shared, asked: SyncRule) -> None:
        """Begin without any."""
        super().__init__(shared, asked)
        self.residuals = Residuals(may_skip=shared.is_scaled)

    def prepare(self, flats: Sequence[Flat]) -> None:
        """Lay out what was not sent."""
        self.residuals.prepare(flats)

    def after_step(self, step: int, *, is_skipped: bool) -> None:
        """Have what is kept count, or what was before a step that was skipped."""
        self.residuals.settle(is_skipped=is_skipped)

    def state(self) -> dict[str, Tensor]:
        """Return what has not been sent yet."""
        return self.residuals.state()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what had not been sent; what is not kept again is added in the next step."""
        self.residuals.load(state)
