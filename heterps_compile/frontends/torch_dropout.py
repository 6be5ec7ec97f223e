"""Which nodes of a PyTorch model drop elements at random.

Left out: dropout between recurrent layers, and other draws (``backends/comparable.py``).
"""

import torch
from torch import fx, nn

from heterps_compile.ir.graph import Graph

_DROPOUT = frozenset(  # each (x, ratio, whether in training)
    {
        torch.ops.aten.dropout.default,
        torch.ops.aten.dropout_.default,
        torch.ops.aten.feature_dropout.default,
        torch.ops.aten.alpha_dropout.default,
        torch.ops.aten.feature_alpha_dropout.default,
        nn.functional.dropout,
        nn.functional.dropout1d,
        nn.functional.dropout2d,
        nn.functional.dropout3d,
        nn.functional.alpha_dropout,
        nn.functional.feature_alpha_dropout,
    }
)
_ATTENTION = (torch.ops.aten.scaled_dot_product_attention.default, nn.functional.scaled_dot_product_attention)
_RATIO = 4  # the place of dropout_p in it
_DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def drops(graph: Graph, node: fx.Node) -> bool:
    """Say whether a node of the traced model drops at random, as it is called."""
    if node.op == "call_module":
        module = graph.source.modules[str(node.target)]
        return isinstance(module, _DROPOUT_MODULES) and module.training and bool(module.p)
    if node.target in _ATTENTION:
        return bool(node.kwargs.get("dropout_p", node.args[_RATIO] if len(node.args) > _RATIO else 0.0))
    if node.target not in _DROPOUT:
        return False
    _, ratio, training = (*node.args, *(None,) * 3)[:3]
    ratio = node.kwargs.get("p", 0.5) if ratio is None else ratio
    is_functional = not isinstance(node.target, torch._ops.OpOverload)
    return bool(ratio) and bool(node.kwargs.get("training", is_functional) if training is None else training)
