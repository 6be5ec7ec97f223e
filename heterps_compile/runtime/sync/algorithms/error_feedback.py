"""What a selection leaves out is kept and added to the next gradient (error feedback).

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018; the arithmetic that Shi et al. (MLSys 2021,
arXiv 2010.10458) train with. Values are sent as they are, so that nothing is rounded::

    input    = gradient + residual
    sent     = input at the chosen entries, 0 elsewhere
    residual = input elsewhere, 0 at the chosen entries          sent + residual == input, bit by bit

Left out: momentum correction and warm-up of Deep Gradient Compression (arXiv 1712.01887).
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from heterps_compile.errors import InputError

from .top_k import Selection

Select = Callable[[Tensor, int], Selection]
"""``select_exact``, ``select_threshold``, or another one."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What goes out of a gradient, and what stays.

    Attributes:
        selection: What is sent.
        residual: What is added to the next gradient, of the gradient's shape and dtype.
    """

    selection: Selection
    residual: Tensor


def send_with_feedback(gradient: Tensor, residual: Tensor | None, k: int, select: Select) -> Sent:
    """Select k entries of gradient plus residual; neither is changed.

    Args:
        gradient: Flat.
        residual: What the last step left, or None on the first.
        k: How many entries are sent.
        select: How they are chosen.

    Raises:
        InputError: Shapes or dtypes differ, or nothing can be selected (``select_exact``).
    """
    if residual is not None and (residual.shape != gradient.shape or residual.dtype != gradient.dtype):
        raise InputError(
            f"the residual of {residual.dtype} and {tuple(residual.shape)} is not of a gradient of {gradient.dtype} "
            f"and {tuple(gradient.shape)}; start without one where the stage or the precision changed"
        )
    whole = gradient.clone() if residual is None else gradient + residual
    selection = select(whole, k)
    whole[selection.indices] = 0
    return Sent(selection, whole)
