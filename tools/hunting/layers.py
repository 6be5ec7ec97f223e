"""Layers of ``torch.nn``, alone and with hooks, and parameters of a module's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch gives it

from .table import Draw, Drawn, UnfitError, op


def _linear(draw: Draw) -> Drawn:
    x = draw.float32(1, 2, 3, 4)
    return (x,), {
        "out": draw.choose(draw.shape(x)[-1], 4, 6, 8),
        "bias": draw.flip(0.7),
        "kind": draw.choose("plain", "plain", "plain", "weight_norm", "spectral_norm"),
    }


def _make_linear(values: list[Any], out: int, bias: bool, kind: str) -> nn.Module:
    made = nn.Linear(values[0].shape[-1], out, bias=bias)
    if kind == "weight_norm":
        return nn.utils.parametrizations.weight_norm(made)
    return nn.utils.parametrizations.spectral_norm(made) if kind == "spectral_norm" else made


def _conv(draw: Draw) -> Drawn:
    x = draw.float32(3, 4)
    shape = draw.shape(x)
    channels, size = shape[1], min(shape[2:])
    kernel = draw.choose(*[k for k in (1, 2, 3) if k <= size])
    groups = draw.choose(1, 1, 2, channels)
    if channels % groups:
        groups = 1
    options = {
        "kernel": kernel,
        "stride": draw.choose(1, 1, 2),
        "padding": draw.choose(0, 1, "same"),
        "groups": groups,
        "out": groups * draw.choose(1, 2, 3),
        "kind": draw.choose("conv", "conv", "transposed", "reflect", "circular"),
    }
    if options["padding"] == "same" and (options["stride"] != 1 or options["kind"] == "transposed"):
        options["padding"] = 0
    if options["padding"] == 1 and size < 2:
        options["kind"] = "conv"
    return (x,), options


def _make_conv(
    values: list[Any], kernel: int, stride: int, padding: Any, groups: int, out: int, kind: str
) -> nn.Module:
    flat = values[0].dim() == 3
    channels = values[0].shape[1]
    if kind == "transposed":
        made = nn.ConvTranspose1d if flat else nn.ConvTranspose2d
        return made(channels, out, kernel, stride=stride, padding=0, groups=groups)
    plain: Any = nn.Conv1d if flat else nn.Conv2d
    mode = "zeros" if kind == "conv" else kind
    return plain(channels, out, kernel, stride=stride, padding=padding, groups=groups, padding_mode=mode)  # type: ignore[no-any-return]


_NORMS: tuple[str, ...] = (
    "batch",
    "batch",
    "batch_none",
    "batch_plain",
    "batch_average",
    "layer",
    "group",
    "instance",
    "instance_stats",
    "rms",
    "local",
)


def _norm(draw: Draw) -> Drawn:
    x = draw.float32(2, 3, 4)
    rank = len(draw.shape(x))
    kind = draw.choose(*_NORMS)
    if (rank == 2 and kind in {"group", "instance", "instance_stats", "local"}) or draw.shape(x)[0] < 2:
        kind = "layer"
    return (x,), {"kind": kind}


def _make_norm(values: list[Any], kind: str) -> nn.Module:
    x = values[0]
    channels, flat = x.shape[1], x.dim() < 4
    batch: Any = nn.BatchNorm1d if flat else nn.BatchNorm2d
    instance: Any = nn.InstanceNorm1d if flat else nn.InstanceNorm2d
    made: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: batch(channels),
        "batch_none": lambda: batch(channels, track_running_stats=False),
        "batch_plain": lambda: batch(channels, affine=False, momentum=0.3),
        "batch_average": lambda: batch(channels, momentum=None),
        "layer": lambda: nn.LayerNorm(x.shape[-1], elementwise_affine=channels % 2 == 0),
        "group": lambda: nn.GroupNorm(2 if channels % 2 == 0 else 1, channels),
        "instance": lambda: instance(channels, affine=True),
        "instance_stats": lambda: instance(channels, track_running_stats=True),
        "rms": lambda: nn.RMSNorm(x.shape[-1]),
        "local": lambda: nn.LocalResponseNorm(2),
    }
    return made[kind]()


def _dropout(draw: Draw) -> Drawn:
    return (draw.float32(2, 3, 4),), {
        "kind": draw.choose(
            "plain", "plain", "plain", "channels", "alpha", "feature_alpha", "rrelu", "functional", "inplace"
        ),
        "p": draw.choose(0.1, 0.5, 0.0),
    }


class _FunctionalDropout(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.p, training=self.training)


class _InplaceDropout(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        return F.dropout(input * 1.0, self.p, self.training, inplace=True)


def _make_dropout(values: list[Any], kind: str, p: float) -> nn.Module:
    channels: Any = {2: nn.Dropout, 3: nn.Dropout1d, 4: nn.Dropout2d}[values[0].dim()]
    made: dict[str, Callable[[], nn.Module]] = {
        "plain": lambda: nn.Dropout(p),
        "channels": lambda: channels(p),
        "alpha": lambda: nn.AlphaDropout(p),
        "feature_alpha": lambda: nn.FeatureAlphaDropout(p),
        "rrelu": nn.RReLU,
        "functional": lambda: _FunctionalDropout(p),
        "inplace": lambda: _InplaceDropout(p),
    }
    return made[kind]()


def _ids(draw: Draw) -> Drawn:
    ids = draw.one(lambda v: v.dtype == torch.int64 and v.dim() in {1, 2} and int(v.min()) >= 0 and int(v.max()) < 10)
    kind = draw.choose("plain", "plain", "padding", "max_norm", "bag_mean", "bag_sum", "bag_max", "sparse")
    if kind.startswith("bag") and len(draw.shape(ids)) != 2:
        kind = "plain"
    return (ids,), {"kind": kind, "width": draw.choose(4, 6)}


def _make_embedding(_values: list[Any], kind: str, width: int) -> nn.Module:
    if kind.startswith("bag"):
        return nn.EmbeddingBag(12, width, mode=kind.removeprefix("bag_"))
    return nn.Embedding(
        12,
        width,
        padding_idx=1 if kind == "padding" else None,
        max_norm=1.0 if kind == "max_norm" else None,
        sparse=kind == "sparse",
    )


class _Recurrent(nn.Module):
    """A recurrent layer that gives its output and its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made, state = self.layer(x)
        return made, state[0] if isinstance(state, tuple) else state


def _recurrent(draw: Draw) -> Drawn:
    return (draw.float32(3),), {
        "kind": draw.choose("LSTM", "GRU", "RNN"),
        "layers": draw.choose(1, 1, 2),
        "both": draw.flip(0.3),
        "first": draw.flip(0.7),
        "dropout": draw.choose(0.0, 0.0, 0.2),
    }


def _make_recurrent(values: list[Any], kind: str, layers: int, both: bool, first: bool, dropout: float) -> nn.Module:
    made: Any = getattr(nn, kind)
    return _Recurrent(
        made(
            values[0].shape[-1],
            4,
            layers,
            batch_first=first,
            bidirectional=both,
            dropout=dropout if layers > 1 else 0.0,
        )
    )


def _attention(draw: Draw) -> Drawn:
    x = draw.float32(3)
    if draw.shape(x)[-1] % 2:
        raise UnfitError
    return (x,), {
        "kind": draw.choose(
            "heads",
            "heads_weights",
            "sdpa",
            "causal",
            "masked",
            "masked_row",
            "encoder",
            "dropout",
            "float_mask",
            "decoder",
        )
    }


class _Attention(nn.Module):
    def __init__(self, width: int, length: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        chance = 0.3 if kind == "dropout" else 0.0
        self.heads: nn.Module | None = (
            nn.MultiheadAttention(width, 2, dropout=chance, batch_first=True)
            if kind in {"heads", "heads_weights", "dropout"}
            else None
        )
        self.layer: nn.Module | None = (
            nn.TransformerEncoderLayer(width, 2, 8, batch_first=True) if kind == "encoder" else None
        )
        self.decoder: nn.Module | None = (
            nn.TransformerDecoderLayer(width, 2, 8, batch_first=True, norm_first=True) if kind == "decoder" else None
        )
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        if kind == "masked_row":
            mask[0] = False
        self.register_buffer("mask", mask if kind != "float_mask" else torch.randn(length, length), persistent=False)

    def forward(self, x: Tensor) -> Any:
        if self.heads is not None:
            made, weights = self.heads(x, x, x, need_weights=self.kind == "heads_weights")
            return (made, weights) if weights is not None else made
        if self.layer is not None:
            return self.layer(x)
        if self.decoder is not None:
            return self.decoder(x, x)
        y = x.unflatten(-1, (2, -1)).transpose(1, 2)
        mask = self.mask if self.kind in {"masked", "masked_row", "float_mask"} else None
        made = F.scaled_dot_product_attention(y, y, y, attn_mask=mask, is_causal=self.kind == "causal")
        return made.transpose(1, 2).flatten(2)


def _pool(draw: Draw) -> Drawn:
    x = draw.float32(3, 4)
    if min(draw.shape(x)[2:]) < 2:
        raise UnfitError
    return (x,), {"kind": draw.choose("max", "avg", "adaptive", "adaptive_max", "indices", "ceil", "lp")}


def _make_pool(values: list[Any], kind: str) -> nn.Module:
    flat = values[0].dim() == 3
    made: dict[str, Callable[[], nn.Module]] = {
        "max": lambda: (nn.MaxPool1d if flat else nn.MaxPool2d)(2),
        "avg": lambda: (nn.AvgPool1d if flat else nn.AvgPool2d)(2, padding=1, count_include_pad=False),
        "adaptive": lambda: (nn.AdaptiveAvgPool1d if flat else nn.AdaptiveAvgPool2d)(2),
        "adaptive_max": lambda: (nn.AdaptiveMaxPool1d if flat else nn.AdaptiveMaxPool2d)(1),
        "indices": lambda: (nn.MaxPool1d if flat else nn.MaxPool2d)(2, return_indices=True),
        "ceil": lambda: (nn.MaxPool1d if flat else nn.MaxPool2d)(2, stride=2, ceil_mode=True),
        "lp": lambda: (nn.LPPool1d if flat else nn.LPPool2d)(2, 2),
    }
    return made[kind]()


class _OwnParameter(nn.Module):
    """A parameter outside of any layer: a number, a vector, one that is changed to another dtype, one used twice."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.scale = nn.Parameter(
            torch.tensor(0.7) if kind in {"number", "item_times"} else torch.randn(width) * 0.5 + 1
        )
        self.parts = nn.ParameterList([nn.Parameter(torch.randn(width)) for _ in range(2)] if kind == "list" else [])
        self.table = nn.ParameterDict({"a.b": nn.Parameter(torch.randn(width))} if kind == "dict" else {})

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "list":
            return x * self.parts[0] + self.parts[1] * self.scale
        if self.kind == "dict":
            return x * self.table["a.b"] + self.scale
        if self.kind == "twice":
            return torch.tanh(x * self.scale) * self.scale
        if self.kind == "expanded":
            return x + self.scale.expand_as(x).cumsum(-1) * 0.1
        return x * self.scale


def _own(draw: Draw) -> Drawn:
    return (draw.float32(),), {"kind": draw.choose("number", "vector", "list", "dict", "twice", "expanded")}


class _Nested(nn.Module):
    """Submodules under names that are awkward to print, used in another order than they were made."""

    def __init__(self, width: int, kind: str) -> None:
        super().__init__()
        self.add_module("class", nn.Linear(width, 4))
        self.add_module("0", nn.Linear(4, width))
        self.kind = kind
        self.block = nn.Sequential(nn.Linear(width, 4), nn.ReLU(inplace=True), nn.Linear(4, width))

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "block":
            return self.block(x) + x  # type: ignore[no-any-return]
        if self.kind == "twice":
            return self.block(self.block(x))  # type: ignore[no-any-return]
        inner, outer = self.get_submodule("class"), self.get_submodule("0")
        return outer(torch.relu(inner(x)))  # type: ignore[no-any-return]


def _scale_output(_module: nn.Module, _args: Any, result: Any) -> Any:
    return result * 1.5 if isinstance(result, Tensor) else None


def _scale_input(_module: nn.Module, args: Any) -> Any:
    return tuple(a * 0.5 if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def _scale_gradient(_module: nn.Module, gradients: Any, _out: Any) -> Any:
    return tuple(None if g is None else g * 10 for g in gradients)


def _scale_out_gradient(_module: nn.Module, gradients: Any) -> Any:
    return tuple(None if g is None else g * 3 for g in gradients)


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "forward_hook": lambda m: m.register_forward_hook(_scale_output),
    "forward_pre_hook": lambda m: m.register_forward_pre_hook(_scale_input),
    "backward_hook": lambda m: m.register_full_backward_hook(_scale_gradient),
    "backward_pre_hook": lambda m: m.register_full_backward_pre_hook(_scale_out_gradient),
    "parameter_hook": lambda m: [p.register_hook(lambda g: g * 2) for p in m.parameters() if p.requires_grad],
}

op("linear", _linear, _make_linear, 8)
op("conv", _conv, _make_conv, 5)
op("norm", _norm, _make_norm, 4)
op("dropout", _dropout, _make_dropout, 1.5)
op("embedding", _ids, _make_embedding, 5)
op("recurrent", _recurrent, _make_recurrent, 1)
op("attention", _attention, lambda v, kind: _Attention(v[0].shape[-1], v[0].shape[1], kind), 2)
op("pool", _pool, _make_pool, 1.5)
op("own_parameter", _own, lambda v, kind: _OwnParameter(v[0].shape[-1], kind), 1.5)
op(
    "nested",
    lambda d: ((d.float32(2, 3),), {"kind": d.choose("named", "block", "twice")}),
    lambda v, kind: _Nested(v[0].shape[-1], kind),
    1,
)
op("prelu", lambda d: ((d.float32(2, 3, 4),), {}), lambda v: nn.PReLU(v[0].shape[1]), 0.4)
op(
    "bilinear",
    lambda d: ((x := d.float32(2), d.like(x)), {}),
    lambda v: nn.Bilinear(v[0].shape[-1], v[1].shape[-1], 4),
    0.4,
)
