"""Trace PyTorch's recurrent layers as one node, whatever the number of steps.

PyTorch finds the shapes of such a layer by running it step by step. That fixes the number of steps, and takes minutes
for hundreds of them. Here an op with the same schema stands for the layer while a stage is traced, and its shapes are
computed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

_NAMES = ("gru", "lstm", "rnn_tanh", "rnn_relu")
_DOMAIN = "heterps_compile_recurrent"
_library: Any = torch.library  # parts of which have no types
_LIBRARY = _library.Library(_DOMAIN, "DEF")


def _shapes(x: Tensor, start: Tensor | Sequence[Tensor], weights: Sequence[Tensor], *_: Any) -> tuple[Tensor, ...]:
    """Return what a layer of one level returns, x being (time, batch, size)."""
    starts = [start] if isinstance(start, Tensor) else start
    directions, batch, hidden = starts[0].shape
    return (x.new_empty([x.shape[0], batch, directions * hidden]), *(s.new_empty(s.shape) for s in starts))


LAYERS: dict[Any, Any] = {}
"""PyTorch's ops by those that stand for them."""
for _name in _NAMES:
    _op = getattr(torch.ops.aten, _name).input
    _LIBRARY.define(f"{_name}{str(_op._schema).partition('.input')[2]}")
    _library.register_fake(f"{_DOMAIN}::{_name}", _shapes, lib=_LIBRARY)
    LAYERS[getattr(getattr(torch.ops, _DOMAIN), _name).default] = _op


def layer_of(name: str, x: Tensor) -> Callable[..., Any]:
    """Return a recurrent layer: PyTorch's, or what stands for it while shapes alone are computed."""
    is_traced = torch.compiler.is_exporting() or isinstance(x, FakeTensor)
    found: Callable[..., Any] = getattr(getattr(torch.ops, _DOMAIN) if is_traced else torch, name)
    return found
