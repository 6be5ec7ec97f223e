"""Losses.

Left out: nothing of ONNX.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import op


@op("NegativeLogLikelihoodLoss", 12)
def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    classes = target.to(torch.int64)
    return F.nll_loss(
        x, classes, weight, ignore_index=-100 if ignore_index is None else ignore_index, reduction=reduction
    )


@op("SoftmaxCrossEntropyLoss", 12)
def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    logs = torch.log_softmax(x, 1)
    return nll_loss(logs, target, weight, ignore_index=ignore_index, reduction=reduction), logs
