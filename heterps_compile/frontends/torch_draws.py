"""Which nodes of a torch graph draw random numbers: they run in the order of the program, or draw others.

An op that may draw has PyTorch's own tag. Of those whose arguments say that they drop or draw nothing this time
(``train=False``, a probability of 0) nothing is asked. A sub-graph draws where a node in it does.

Of those that draw, :func:`drops` finds the dropouts.

Left out: modules and functions that are called as one (``torch_module.py`` watches them run).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_compile.ir.graph import Graph

_PROBABILITIES = ("p", "dropout_p", "dropout")
_SWITCHES = ("train", "training")
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
_LAYERS = {  # by op that drops between its layers: the place of their number among its arguments
    form: [argument.name for argument in form._schema.arguments].index("num_layers")
    for op in (torch.ops.aten.lstm, torch.ops.aten.gru, torch.ops.aten.rnn_tanh, torch.ops.aten.rnn_relu)
    for form in (op.input, op.data)
}
_DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def draws(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Say whether a node of a graph of ops draws random numbers.

    Args:
        node: The node.
        modules: The sub-graphs that the graph refers to, by target.
    """
    if node.op != "call_function":
        return False
    if isinstance(node.target, torch._ops.OpOverload):
        return op_draws(node.target, node.args, node.kwargs)
    return any(_drawing_inside(modules.get(str(n.target))) for n in node.all_input_nodes if n.op == "get_attr")


def op_draws(op: torch._ops.OpOverload, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Say whether an op draws random numbers when it is called so."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    given = {argument.name: argument.default_value for argument in op._schema.arguments if argument.has_default_value()}
    given |= {argument.name: value for argument, value in zip(op._schema.arguments, args, strict=False)} | dict(kwargs)
    switched_off = any(given.get(name) is False for name in _SWITCHES)
    drops = [given[name] for name in _PROBABILITIES if name in given]
    # bernoulli's probability may be a tensor, and 0 of it still draws
    return not switched_off and not (drops and "bernoulli" not in str(op) and all(p == 0 for p in drops))


def _drawing_inside(module: nn.Module | None) -> bool:
    if not isinstance(module, fx.GraphModule):
        return False
    inner = dict(module.named_modules())
    return any(draws(node, inner) for node in module.graph.nodes)


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has not annotated it
    """Notes whether anything that runs under it draws random numbers."""

    supports_higher_order_operators = True  # which run what they hold under it too

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not annotated it
        self.drew = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op as it is."""
        if isinstance(func, torch._ops.OpOverload):
            self.drew = self.drew or op_draws(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _ratio(module: nn.Module) -> float:
    """Return the share that a module which is called as one drops in training mode."""
    if isinstance(module, _DROPOUT_MODULES):
        return float(module.p)
    if isinstance(module, nn.RNNBase):
        return float(module.dropout) if module.num_layers > 1 else 0.0
    return float(module.dropout) if isinstance(module, nn.MultiheadAttention) else 0.0


def drops(graph: Graph, node: fx.Node) -> bool:
    """Say whether a node of the traced model drops at random, as it is called."""
    if node.op == "call_module":
        module = graph.source.modules[str(node.target)]
        return module.training and bool(_ratio(module))
    if node.target in _ATTENTION:
        return bool(node.kwargs.get("dropout_p", node.args[_RATIO] if len(node.args) > _RATIO else 0.0))
    if isinstance(node.target, torch._ops.OpOverload) and node.target in _LAYERS:
        layers: Any = node.args[_LAYERS[node.target]]
        return layers > 1 and op_draws(node.target, node.args, node.kwargs)
    if node.target not in _DROPOUT:
        return False
    _, ratio, training = (*node.args, *(None,) * 3)[:3]
    ratio = node.kwargs.get("p", 0.5) if ratio is None else ratio
    is_functional = not isinstance(node.target, torch._ops.OpOverload)
    return bool(ratio) and bool(node.kwargs.get("training", is_functional) if training is None else training)
