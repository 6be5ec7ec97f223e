"""Refuse what a PyTorch model does in training mode only: ONNX Runtime keeps no state and draws other numbers.

Left out: random ops that an evaluated model has too (verification finds those).
"""

from collections.abc import Sequence

import torch

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable
from heterps_compile.frontends.torch_buffers import changed_anew
from heterps_compile.frontends.torch_draws import drops
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import StageCut

_WITHOUT_EFFECT = (torch.ops.aten.detach_.default,)  # on elements


def refuse_training(graph: Graph, stages: Sequence[StageCut] = ()) -> None:
    """Check that no node changes a buffer or drops at random.

    Args:
        graph: Of a PyTorch model.
        stages: The stages whose nodes are checked; all nodes where there are none.

    Raises:
        BackendError: naming node and op of one that does, and its stage.
    """
    nodes, anew = list(graph.source.graph.nodes), changed_anew(graph)
    placed = [(f"stage {cut.index}", index) for cut in stages for index in cut.nodes]
    for where, index in placed or [(printable(graph.name), index) for index in range(len(graph.nodes))]:
        node = nodes[graph.nodes[index].origin]
        written = () if node.target in _WITHOUT_EFFECT else graph.source.writes.get(node.name, ())
        changed = [name for name in written if name in graph.parameters and name not in anew]
        fault = f"changes {printable(changed[0])!r} in place" if changed else ""
        if drops(graph, node):
            fault = "drops elements at random"
        if fault:
            raise BackendError(
                f"{where}: node {printable(node.name)!r} ({graph.nodes[index].op}) {fault}, which ONNX Runtime does "
                f"not do; put the model in evaluation mode (model.eval()) if it does without that there, or take the "
                f"backend torch or jax"
            )
