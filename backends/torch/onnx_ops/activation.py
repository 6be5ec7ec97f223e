"""Activations, softmax and its kin.

Left out: dropout (``training.py``).
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - as everyone calls it

from .table import op


@op("Relu", 6)
def relu(x: Tensor) -> Tensor:
    return torch.relu(x)


@op("LeakyRelu", 6)
def leaky_relu(x: Tensor, *, alpha: float) -> Tensor:
    return F.leaky_relu(x, alpha)


@op("PRelu", 7)
def prelu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x >= 0, x, x * slope)


@op("Elu", 6)
def elu(x: Tensor, *, alpha: float) -> Tensor:
    return F.elu(x, alpha)


@op("Celu", 12)
def celu(x: Tensor, *, alpha: float) -> Tensor:
    return F.celu(x, alpha)


@op("Selu", 6)
def selu(x: Tensor, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323) -> Tensor:
    return gamma * torch.where(x > 0, x, alpha * torch.expm1(x))


@op("Gelu", 20)
def gelu(x: Tensor, *, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


@op("Gelu", 1, domain="com.microsoft")
def exact_gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


@op("FastGelu", 1, domain="com.microsoft")
def fast_gelu(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.gelu(x if bias is None else x + bias, approximate="tanh")


@op("Sigmoid", 6)
def sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


@op("HardSigmoid", 6)
def hard_sigmoid(x: Tensor, *, alpha: float, beta: float) -> Tensor:
    return torch.clamp(alpha * x + beta, 0, 1)


@op("HardSwish", 14)
def hard_swish(x: Tensor) -> Tensor:
    return F.hardswish(x)


@op("Swish", 24)
def swish(x: Tensor, *, alpha: float) -> Tensor:
    return x * torch.sigmoid(alpha * x)


@op("Mish", 18)
def mish(x: Tensor) -> Tensor:
    return F.mish(x)


@op("Softplus", 1)
def softplus(x: Tensor) -> Tensor:
    return torch.logaddexp(x, torch.zeros_like(x))  # F.softplus is linear from 20 on


@op("Softsign", 1)
def softsign(x: Tensor) -> Tensor:
    return F.softsign(x)


@op("ThresholdedRelu", 10)
def thresholded_relu(x: Tensor, *, alpha: float) -> Tensor:
    return F.threshold(x, alpha, 0.0)


@op("Shrink", 9)
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, zero)).to(x.dtype)


@op("Softmax", 1)
def softmax_of_matrix(x: Tensor, *, axis: int) -> Tensor:
    """Before opset 13: over all dimensions from the axis on."""
    axis %= x.dim()
    return torch.softmax(x, axis) if axis == x.dim() - 1 else torch.softmax(x.flatten(axis), -1).reshape(x.shape)


@op("Softmax", 13)
def softmax(x: Tensor, *, axis: int) -> Tensor:
    return torch.softmax(x, axis)


@op("LogSoftmax", 1)
def log_softmax_of_matrix(x: Tensor, *, axis: int) -> Tensor:
    axis %= x.dim()
    return torch.log_softmax(x.flatten(axis), -1).reshape(x.shape)


@op("LogSoftmax", 13)
def log_softmax(x: Tensor, *, axis: int) -> Tensor:
    return torch.log_softmax(x, axis)


def _one_at_largest(x: Tensor) -> Tensor:
    return F.one_hot(x.argmax(-1), x.shape[-1]).to(x.dtype)


@op("Hardmax", 1)
def hardmax_of_matrix(x: Tensor, *, axis: int) -> Tensor:
    return _one_at_largest(x.flatten(axis % x.dim())).reshape(x.shape)


@op("Hardmax", 13)
def hardmax(x: Tensor, *, axis: int) -> Tensor:
    return _one_at_largest(x.movedim(axis, -1)).movedim(-1, axis)


@op("SwiGLU", 28)
def swiglu(a: Tensor, b: Tensor, *, alpha: float) -> Tensor:
    return a * torch.sigmoid(alpha * a) * b


@op("Binarizer", 1, domain="ai.onnx.ml")
def binarizer(x: Tensor, *, threshold: float) -> Tensor:
    return (x > threshold).to(x.dtype)
