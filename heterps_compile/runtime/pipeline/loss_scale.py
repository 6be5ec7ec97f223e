r"""Loss scaling for float16, as ``torch.amp.GradScaler`` does it, over all ranks of a pipeline.

Gradients smaller than 6e-8 are zero in float16, so the loss is multiplied by a scale S before the backward, and the
gradients by 1/S after it. Where one of them is not finite, on any rank, no rank steps its optimiser::

    every gradient finite     step; after `growth_interval` such steps in a row  S <- S * growth_factor
    one is not                skip the step                                      S <- S * backoff_factor

Whether it is, is told to all by one all-reduce of one number, which travels while the rank waits for its sends to
arrive. A norm to clip by is asked of all gradients anyway, and tells it as well.

Left out: the optimiser, which the caller steps or not.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError

from .rank_group import RankGroup
from .scaling import Scaling
from .world import make_group

_LEAST_SCALE = 2.0**-24
"""Below this scale the gradients that float16 can hold are larger than any that a training step has use of."""


class LossScale:
    """The scale of one rank's losses, the same on every rank.

    Attributes:
        state: As it is for the next step; a resumed run puts that of its checkpoint there.
    """

    def __init__(self, state: Scaling, parameters: Iterable[nn.Parameter], ranks: int) -> None:
        """Join the others; every rank of the pipeline does so.

        Args:
            state: To begin with.
            parameters: The trained ones of this rank.
            ranks: The number of ranks of the pipeline.

        Raises:
            RunError: where a parameter is float16, whose gradients cannot be scaled back.
        """
        self.state = state
        self._parameters = list({id(p): p for p in parameters}.values())
        if any(parameter.dtype is torch.float16 for parameter in self._parameters):
            raise RunError(
                "a parameter is float16, so that its gradient would overflow when it is scaled back; --precision fp16 "
                "is for models whose parameters are float32: train this one without it"
            )
        self._group = make_group(range(ranks)) if ranks > 1 else None
        self._found: Tensor | None = None

    def seed(self, loss: Tensor, divisor: float) -> Tensor:
        """Return the gradient that the backward of a micro-batch's loss begins with, which is divided by a number."""
        return torch.full_like(loss, self.state.scale) / divisor

    def unscale(self) -> Tensor:
        """Multiply the summed gradients of this rank by 1/S; return 1 where one of them is not finite, else 0."""
        inverse = 1.0 / self.state.scale
        by_kind: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for parameter in self._parameters:
            if parameter.grad is None:
                continue
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            gradient = parameter.grad._values() if parameter.grad.is_sparse else parameter.grad
            by_kind.setdefault((gradient.device, gradient.dtype), []).append(gradient)
        found = torch.zeros(1)
        for (device, _), gradients in by_kind.items():
            on_device = torch.zeros((), device=device)
            factor = torch.full((), inverse, dtype=torch.float32, device=device)
            torch.ops.aten._amp_foreach_non_finite_check_and_unscale_(gradients, on_device, factor)
            found += on_device.cpu()
        return found

    def start_agreeing(self, found: Tensor) -> "Agreement":
        """Begin to tell all ranks what :meth:`unscale` found here."""
        return Agreement(found, self._group)

    def update(self, *, is_finite: bool) -> None:
        """Move the scale after a step.

        Raises:
            RunError: where it has fallen so far that float16 cannot hold this model's gradients.
        """
        self.state = self.state.after(is_finite=is_finite)
        if self.state.scale < _LEAST_SCALE:
            raise RunError(
                f"gradients are not finite at a loss scale of {self.state.scale:.3g} either: "
                f"{self.state.skipped} steps have been skipped; float16 does not hold this model's numbers, or its "
                f"loss is not finite: look at the data, or take bfloat16 (--precision bf16)"
            )


class Agreement:
    """Whether the gradients of all ranks are finite, on its way."""

    def __init__(self, found: Tensor, group: RankGroup | None) -> None:
        self._found = found
        self._work = None if group is None else group.maximum(found)

    def is_finite(self) -> bool:
        """Wait, and tell whether they are."""
        if self._work is not None:
            self._work.wait()
        return not bool(self._found.item())
