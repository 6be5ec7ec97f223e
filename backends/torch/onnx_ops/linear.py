"""Matrix products.

Left out: products of quantised matrices (``quantize.py``).
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import op


@op("MatMul", 1, widen=True)
def mat_mul(a: Tensor, b: Tensor) -> Tensor:
    return torch.matmul(a, b)


@op("Gemm", 7, widen=True)
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,  # noqa: N803 - ONNX's names
    transB: int = 0,  # noqa: N803
) -> Tensor:
    if transA:
        a = a.t()
    if transB and alpha == 1.0 and (c is None or (beta == 1.0 and c.dim() == 1 and c.shape[0] == b.shape[0])):
        return F.linear(a, b, c)
    product = torch.mm(a, b.t() if transB else b)
    if alpha != 1.0:
        product = alpha * product
    if c is None or beta == 0.0:  # where it may be NaN
        return product
    return product + (c if beta == 1.0 else beta * c)


@op("Einsum", 12)
def einsum(*xs: Tensor, equation: str) -> Tensor:
    return torch.einsum(equation, *xs)
