"""Refuse what a PyTorch model does in training mode only: other runtimes keep no state and draw other numbers.

Left out: random ops that an evaluated model has too (verification finds those).
"""

import torch
from torch import fx, nn

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition

_DROPOUT = (
    torch.ops.aten.dropout.default,
    torch.ops.aten.dropout_.default,
    torch.ops.aten.feature_dropout.default,
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
)
_DROPOUT_MODULES = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


def refuse_training(graph: Graph, partition: Partition, runtime: str = "ONNX Runtime") -> None:
    """Check that no node changes a buffer or drops at random.

    Args:
        graph: Of a PyTorch model.
        partition: Its stages.
        runtime: What is to run them, for messages.

    Raises:
        BackendError: naming stage, node and op of one that does.
    """
    nodes = list(graph.source.graph.nodes)
    for cut in partition.stages:
        for index in cut.nodes:
            node = nodes[graph.nodes[index].origin]
            changed = [name for name in graph.source.writes.get(node.name, ()) if name in graph.parameters]
            fault = f"changes {printable(changed[0])!r} in place" if changed else ""
            if _drops(graph, node):
                fault = "drops elements at random"
            if fault:
                raise BackendError(
                    f"stage {cut.index}: node {printable(node.name)!r} ({graph.nodes[index].op}) {fault}, which "
                    f"{runtime} does not do; put the model in evaluation mode (model.eval()), or take the backend torch"
                )


def _drops(graph: Graph, node: fx.Node) -> bool:
    if node.op == "call_module":
        module = graph.source.modules[str(node.target)]
        return isinstance(module, _DROPOUT_MODULES) and module.training and bool(module.p)
    return node.target in _DROPOUT and len(node.args) == 3 and bool(node.args[2]) and bool(node.args[1])
