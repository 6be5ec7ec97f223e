"""Forwards in automatic mixed precision: what ``torch.autocast`` makes of the whole model, it makes of its stages.

What autocast computes in depends on the dtypes that enter an op, and a value is sent between stages in the dtype in
which autocast leaves it: so every op of every stage computes as it does in the whole model. One thing is not kept by
that alone. Within a forward, autocast keeps the narrow copy of a leaf that wants a gradient, so that the gradients of
all uses of the copy add up in the narrow dtype. It is meant for parameters; a float32 value that came from another
stage is a leaf as well, and none in the whole model. So it enters the stage as a view.

Left out: scaling the loss (``loss_scale.py``); a weight that stages share is cast once in each.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from heterps_compile.cost.precision import PRECISIONS, TF32
from heterps_compile.errors import RunError, UnknownNameError

Made = TypeVar("Made")


class Autocast:
    """The precision of a rank's forwards.

    Attributes:
        narrows: Whether it is another than float32.
        context: Makes the context of a forward.
        entering: Makes of values that came from other stages ones of which autocast keeps no narrow copy.
    """

    def __init__(self, precision: str, device: torch.device) -> None:
        """Prepare.

        Args:
            precision: One of ``PRECISIONS``.
            device: Where the rank computes.

        Raises:
            UnknownNameError: for another name.
            RunError: where this PyTorch has no autocast to it on such a device.
        """
        if precision not in PRECISIONS:
            raise UnknownNameError("precision", precision, PRECISIONS)
        if precision == TF32 and device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        dtype: torch.dtype = getattr(torch, PRECISIONS[precision])
        self.narrows = dtype is not torch.float32
        self.context: Callable[[], AbstractContextManager[Any]] = nullcontext
        self.entering: Callable[[Sequence[Any]], Sequence[Any]] = tuple
        if not self.narrows:
            return
        if not _is_taken(device.type, dtype):
            raise RunError(
                f"PyTorch {torch.__version__} has no autocast to {PRECISIONS[precision]} on {device.type}; take "
                f"another precision (--precision)"
            )
        self.context, self.entering = partial(torch.autocast, device.type, dtype), _as_views

    def around(self, function: Callable[..., Made]) -> Callable[..., Made]:
        """Return a function that runs in this precision, as the loss of a training does."""

        def call(*given: Any) -> Made:
            with self.context():
                return function(*given)

        return call


def _as_views(values: Sequence[Any]) -> Sequence[Any]:
    return [v.view_as(v) if isinstance(v, Tensor) and v.requires_grad else v for v in values]


def _is_taken(kind: str, dtype: torch.dtype) -> bool:
    """Tell whether autocast computes in a dtype on a kind of device; where it does not, it warns and does nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.autocast(kind, dtype):
                return bool(torch.is_autocast_enabled(kind))
        except RuntimeError:
            return False
