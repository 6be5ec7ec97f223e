"""Refuse what a PyTorch model does in training mode only: ONNX Runtime keeps no state and draws other numbers.

Left out: random ops that an evaluated model has too (verification finds those).
"""

from collections.abc import Sequence

import torch
from torch import fx, nn

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut

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
# a session does these anew at every call: rows scaled again are the same rows, and a detached tensor has its elements
_IDEMPOTENT = (torch.ops.aten.embedding_renorm_.default, torch.ops.aten.detach_.default)
_RATIO = 4  # the place of dropout_p in it
_DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def refuse_training(graph: Graph, stages: Sequence[StageCut] = ()) -> None:
    """Check that no node changes a buffer or drops at random.

    Args:
        graph: Of a PyTorch model.
        stages: The stages whose nodes are checked; all nodes where there are none.

    Raises:
        BackendError: naming node and op of one that does, and its stage.
    """
    nodes = list(graph.source.graph.nodes)
    placed = [(f"stage {cut.index}", index) for cut in stages for index in cut.nodes]
    for where, index in placed or [(printable(graph.name), index) for index in range(len(graph.nodes))]:
        node = nodes[graph.nodes[index].origin]
        written = () if node.target in _IDEMPOTENT else graph.source.writes.get(node.name, ())
        changed = [name for name in written if name in graph.parameters]
        fault = f"changes {printable(changed[0])!r} in place" if changed else ""
        if _drops(graph, node):
            fault = "drops elements at random"
        if fault:
            raise BackendError(
                f"{where}: node {printable(node.name)!r} ({graph.nodes[index].op}) {fault}, which ONNX Runtime does "
                f"not do; put the model in evaluation mode (model.eval()), or take the backend torch or jax"
            )


def _drops(graph: Graph, node: fx.Node) -> bool:
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
