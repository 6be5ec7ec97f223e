"""Operations on elements, dtypes and random numbers."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch gives it

from .table import Draw, Drawn, UnfitError, function, op

_UNARY: dict[str, Any] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "softplus": F.softplus,
    "elu": F.elu,
    "selu": F.selu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "abs": torch.abs,
    "neg": torch.neg,
    "sin": torch.sin,
    "cos": torch.cos,
    "atan": torch.atan,
    "erf": torch.erf,
    "square": torch.square,
    "exp": lambda x: torch.exp(x.clamp(max=3)),
    "expm1": lambda x: torch.expm1(x.clamp(max=3)),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 0.1),
    "reciprocal": lambda x: torch.reciprocal(x.abs() + 0.5),
    "sign": torch.sign,
    "floor": torch.floor,
    "round": torch.round,
    "trunc": torch.trunc,
    "clamp": lambda x: x.clamp(-0.5, 1.0),
    "nan_to_num": torch.nan_to_num,
    "clone": torch.clone,
    "contiguous": lambda x: x.contiguous(),
    "detach": torch.detach,
    "identity": lambda x: x,
}
_BINARY: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": lambda x, y: x / (y.abs() + 0.5),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "atan2": lambda x, y: torch.atan2(x, y.abs() + 0.1),
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "hypot": lambda x, y: torch.hypot(x, y.abs() + 0.1),
    "fmod": lambda x, y: torch.fmod(x, y.abs() + 0.7),
    "remainder": lambda x, y: torch.remainder(x, y.abs() + 0.7),
    "pow": lambda x, y: torch.pow(x.abs() + 0.2, y.clamp(-2, 2)),
    "alpha": lambda x, y: torch.add(x, y, alpha=2),
}
_COMPARE: dict[str, Any] = {
    "gt": torch.gt,
    "le": torch.le,
    "ne": torch.ne,
}
_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
}


def _broadcast(draw: Draw) -> Drawn:
    """Choose two values that broadcast, most often of one shape."""
    x = draw.floating()
    if draw.flip(0.6):
        return (x, draw.like(x)), {"kind": draw.choose(*_BINARY)}
    shape, dtype = draw.shape(x), draw.values[x].dtype

    def fits(other: Tensor) -> bool:
        pairs = zip(reversed(shape), reversed(other.shape), strict=False)
        return other.is_floating_point() and other.dtype == dtype and all(a == b or 1 in (a, b) for a, b in pairs)

    return (x, draw.one(fits)), {"kind": draw.choose(*_BINARY)}


def _scalar(draw: Draw) -> Drawn:
    return (draw.floating(),), {
        "by": draw.choose(0.5, 2, -1.5, 3),
        "kind": draw.choose("add", "mul", "rsub", "div", "pow2"),
    }


_SCALAR: dict[str, Any] = {
    "add": lambda x, by: x + by,
    "mul": lambda x, by: x * by,
    "rsub": lambda x, by: by - x,
    "div": lambda x, by: x / by,
    "pow2": lambda x, by: x**2 * by,
}


def _number(draw: Draw) -> Drawn:
    places = [i for i, v in enumerate(draw.values) if isinstance(v, (int, float)) and not isinstance(v, bool)]
    if not places:
        raise UnfitError
    return (draw.floating(), draw.rng.choice(places)), {}


def _cast(draw: Draw) -> Drawn:
    x = draw.one(lambda v: v.dim() > 0)
    return (x,), {"to": draw.choose("float64", "float32", "float32", "int64", "int32", "bool")}


def _mask(draw: Draw) -> Drawn:
    mask = draw.one(lambda v: v.dtype == torch.bool)
    shape = draw.shape(mask)
    return (mask, draw.one(lambda v: v.is_floating_point() and tuple(v.shape) == shape)), {
        "kind": draw.choose("where", "fill", "times")
    }


_MASKED: dict[str, Any] = {
    "where": lambda mask, x: torch.where(mask, x, 0.25),
    "fill": lambda mask, x: x.masked_fill(mask, -1.0),
    "times": lambda mask, x: x * mask,
}


def _compare(draw: Draw) -> Drawn:
    x = draw.floating()
    return (x, draw.like(x)), {"kind": draw.choose(*_COMPARE)}


def _whole(draw: Draw) -> Drawn:
    return (draw.whole(),), {
        "kind": draw.choose("mod", "add", "mul", "div", "neg", "float", "shift"),
        "by": draw.choose(2, 3, 5),
    }


_WHOLE: dict[str, Any] = {
    "mod": lambda x, by: x % by,
    "add": lambda x, by: x + by,
    "mul": lambda x, by: x * by,
    "div": lambda x, by: x // by,
    "neg": lambda x, by: -x + by,
    "float": lambda x, by: x.float() / by,
    "shift": lambda x, by: (x >> 1) + by,
}


def _noise(x: Tensor, kind: str) -> Tensor:
    if kind == "bernoulli":
        return x * torch.bernoulli(torch.full_like(x, 0.5))
    return x + (torch.rand_like(x) if kind == "rand" else torch.randn_like(x))


op("unary", lambda d: ((d.floating(),), {"kind": d.choose(*_UNARY)}), function(lambda x, kind: _UNARY[kind](x)), 4)
op("binary", _broadcast, function(lambda x, y, kind: _BINARY[kind](x, y)), 5)
op("scalar", _scalar, function(lambda x, by, kind: _SCALAR[kind](x, by)), 1.5)
op("number", _number, function(lambda x, n: x * n + n), 2)
op("cast", _cast, function(lambda x, to: x.to(_DTYPES[to])), 1)
op("masked", _mask, function(lambda mask, x, kind: _MASKED[kind](mask, x)), 1.5)
op("compare", _compare, function(lambda x, y, kind: _COMPARE[kind](x, y)), 0.5)
op("whole", _whole, function(lambda x, by, kind: _WHOLE[kind](x, by)), 0.8)
op(
    "noise",
    lambda d: ((d.float32(),), {"kind": d.choose("rand", "randn", "bernoulli")}),
    function(_noise),
    0.15,
)
