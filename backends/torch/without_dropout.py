"""Run a model of PyTorch in training mode, but for its dropout: what a backend that draws other masks is held against.

Left out: alpha dropout, random slopes (rrelu), and dropout between recurrent layers.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_aten: Any = torch.ops.aten
_IDENTITY: frozenset[Any] = frozenset(
    {
        *(functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d),
        *(torch.dropout, torch.dropout_, torch.feature_dropout, torch.feature_dropout_),
        *(_aten.dropout.default, _aten.dropout_.default),
        *(_aten.feature_dropout.default, _aten.feature_dropout_.default),
    }
)
_ATTENTION = (functional.scaled_dot_product_attention, _aten.scaled_dot_product_attention.default)
_RATIO = 4  # the place of dropout_p in them
_HEADS = functional.multi_head_attention_forward
_HEADS_SIGNATURE = inspect.signature(_HEADS)


class WithoutDropout(TorchFunctionMode):
    """A context in which nothing is dropped."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one function of PyTorch, or give its input where it would only drop."""
        del types
        given = dict(kwargs or {})
        if func in _IDENTITY:
            return args[0] if args else given["input"]
        if func in _ATTENTION:
            args = (*args[:_RATIO], *[0.0 for _ in args[_RATIO : _RATIO + 1]], *args[_RATIO + 1 :])
            given.pop("dropout_p", None)
        elif func is _HEADS:
            bound = _HEADS_SIGNATURE.bind(*args, **given)
            bound.arguments["training"] = False
            args, given = bound.args, bound.kwargs
        return func(*args, **given)
