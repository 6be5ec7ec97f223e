"""Run a model of PyTorch in training mode, but for its dropout: what a backend that draws other masks is held against.

Left out: alpha dropout, random slopes (rrelu), and dropout between recurrent layers.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_aten: Any = torch.ops.aten
_FUNCTIONAL = ("input", "p", "training", "inplace")
_OF_ATEN = ("input", "p", "train")
_DROPOUTS: Mapping[Any, tuple[str, ...]] = MappingProxyType(
    {
        functional.dropout: _FUNCTIONAL,
        functional.dropout1d: _FUNCTIONAL,
        functional.dropout2d: _FUNCTIONAL,
        functional.dropout3d: _FUNCTIONAL,
        torch.dropout: _OF_ATEN,
        torch.dropout_: _OF_ATEN,
        torch.feature_dropout: _OF_ATEN,
        torch.feature_dropout_: _OF_ATEN,
        _aten.dropout.default: _OF_ATEN,
        _aten.dropout_.default: _OF_ATEN,
        _aten.feature_dropout.default: _OF_ATEN,
        _aten.feature_dropout_.default: _OF_ATEN,
    }
)
"""By function the names of its arguments, in order."""
_IN_PLACE = frozenset({torch.dropout_, torch.feature_dropout_, _aten.dropout_.default, _aten.feature_dropout_.default})
_ATTENTION = (functional.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default)
_RATIO = 4  # the place of dropout_p in them
_HEADS = functional.multi_head_attention_forward
_HEADS_SIGNATURE = inspect.signature(_HEADS)


class WithoutDropout(TorchFunctionMode):
    """A context in which nothing is dropped."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function of PyTorch, or return its input where it would only drop."""
        del types
        given = dict(kwargs or {})
        if func in _DROPOUTS:
            given |= dict(zip(_DROPOUTS[func], args, strict=False))
            return _undropped(given) if func not in _IN_PLACE else given["input"]
        if func in _ATTENTION:
            args = (*args[:_RATIO], *[0.0 for _ in args[_RATIO : _RATIO + 1]], *args[_RATIO + 1 :])
            given.pop("dropout_p", None)
        elif func is _HEADS:
            bound = _HEADS_SIGNATURE.bind(*args, **given)
            bound.arguments["training"] = False
            args, given = bound.args, bound.kwargs
        return func(*args, **given)


def _undropped(given: Mapping[str, Any]) -> Any:
    """Return what a dropout is given: a copy where it would drop, as what drops makes a tensor of its own."""
    x, is_on = given["input"], given.get("training", given.get("train", True))
    return x.clone() if is_on and given.get("p", 0.5) and not given.get("inplace", False) else x
