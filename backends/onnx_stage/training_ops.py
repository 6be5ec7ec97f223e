"""Three ops of a domain of our own, for what training asks of a PyTorch stage: BatchNorm, Dropout and Detach.

ONNX's own BatchNormalization moves the biased variance where PyTorch moves the unbiased one, its Dropout has no number
to tell its draws from others', and it has nothing that stops a gradient. Here are the ops as PyTorch traces them, and
as its exporter writes them; the jax table has rows for them.

Left out: what becomes them (``rewrite_training.py``), and running them in PyTorch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from onnx.defs import OpSchema
from onnxscript import values
from torch import Tensor

DOMAIN = "heterps_compile"

_library: Any = torch.library  # parts of which have no types
_LIBRARY = _library.Library(DOMAIN, "DEF")
_LIBRARY.define("dropout(Tensor x, float ratio, int draw) -> Tensor")
_LIBRARY.define("detach(Tensor x) -> Tensor")
_LIBRARY.define(
    "batch_norm(Tensor x, Tensor? scale, Tensor? bias, Tensor? mean, Tensor? var, float momentum, float epsilon)"
    " -> (Tensor, Tensor, Tensor)"
)


def _fake_dropout(x: Tensor, ratio: float, draw: int) -> Tensor:
    del ratio, draw
    return torch.empty_like(x)


def _fake_batch_norm(  # noqa: PLR0917 - the op's schema
    x: Tensor, scale: Any, bias: Any, mean: Any, var: Any, momentum: float, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    del scale, bias, momentum, epsilon
    channels = x.new_empty(x.shape[1])
    return (
        torch.empty_like(x),
        torch.empty_like(channels if mean is None else mean),
        torch.empty_like(channels if var is None else var),
    )


_library.register_fake(f"{DOMAIN}::dropout", _fake_dropout, lib=_LIBRARY)
_library.register_fake(f"{DOMAIN}::detach", torch.empty_like, lib=_LIBRARY)
_library.register_fake(f"{DOMAIN}::batch_norm", _fake_batch_norm, lib=_LIBRARY)
_OURS: Any = getattr(torch.ops, DOMAIN)
DROPOUT, BATCH_NORM, DETACH = _OURS.dropout.default, _OURS.batch_norm.default, _OURS.detach.default


def _op(name: str, inputs: str, outputs: str, **attributes: OpSchema.AttrType) -> values.Op:
    """Return an op of our domain; an input that ends in ``?`` may be absent."""
    floats = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]
    option = OpSchema.FormalParameterOption
    schema = OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[
            OpSchema.FormalParameter(
                given.rstrip("?"),
                f"T_{given.rstrip('?')}",
                param_option=option.Optional if "?" in given else option.Single,
            )
            for given in inputs.split()
        ],
        outputs=[OpSchema.FormalParameter(made, f"T_{made}") for made in outputs.split()],
        type_constraints=[(f"T_{one.rstrip('?')}", floats, "") for one in (*inputs.split(), *outputs.split())],
        attributes=[OpSchema.Attribute(key, kind) for key, kind in attributes.items()],
    )
    return values.Op(values.Opset(DOMAIN, 1), name, schema)


_FLOAT, _INT = OpSchema.AttrType.FLOAT, OpSchema.AttrType.INT
_WRITE_DROPOUT = _op("Dropout", "x", "y", ratio=_FLOAT, draw=_INT)
_WRITE_DETACH = _op("Detach", "x", "y")
_WRITE_BATCH_NORM = _op(
    "BatchNorm", "x scale? bias? mean? var?", "y moved_mean moved_var", momentum=_FLOAT, epsilon=_FLOAT
)


def _translate_dropout(x: Any, ratio: float, draw: int) -> Any:
    return _WRITE_DROPOUT(x, ratio=ratio, draw=draw)


def _translate_detach(x: Any) -> Any:
    return _WRITE_DETACH(x)


def _translate_batch_norm(  # noqa: PLR0917 - the op's schema
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, momentum: float, epsilon: float
) -> Any:
    return _WRITE_BATCH_NORM(x, scale, bias, mean, var, momentum=momentum, epsilon=epsilon)


TRANSLATIONS: Mapping[Callable[..., Any], Callable[..., Any]] = {
    DROPOUT: _translate_dropout,
    DETACH: _translate_detach,
    BATCH_NORM: _translate_batch_norm,
}
"""How PyTorch's exporter is to write our ops."""
