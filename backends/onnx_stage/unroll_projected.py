"""Unroll an LSTM with ``proj_size``, which ONNX has no op for, into products and sums for each step.

``torch.export`` fixes the length of an LSTM's input, so the number of steps is known.

Not covered: other recurrent modules, which ONNX has.
"""

import torch
from torch import fx
from torch._decomp.decompositions import lstm_impl
from torch.export import ExportedProgram

from heterps_compile.errors import BackendError
from heterps_compile.escape import printable

from .quiet_export import quiet_export

_LSTM = torch.ops.aten.lstm.input
_MOST_STEPS = 512  # about ten nodes each, by layer and direction


def unroll_projected(program: ExportedProgram) -> ExportedProgram:
    """Unroll a program's LSTMs if one has ``proj_size``, except one that drops between its layers.

    Raises:
        BackendError: naming an LSTM with too many steps.
    """
    nodes = [node for node in program.graph.nodes if node.target is _LSTM and _is_projected(node)]
    for node in nodes:
        steps = node.args[0].meta["val"].shape[1 if node.args[8] else 0]
        if not isinstance(steps, int) or steps > _MOST_STEPS:
            raise BackendError(
                f"proj_size of the LSTM {printable(node.name)!r} takes {steps} steps; expected at most {_MOST_STEPS}, "
                f"since ONNX has no projection. Fix: take the backend torch, or an LSTM and a Linear layer"
            )
    if not nodes:
        return program
    with quiet_export():
        unrolled: ExportedProgram = program.run_decompositions({_LSTM: lstm_impl})
    return unrolled


def _is_projected(node: fx.Node) -> bool:
    hidden, cell = (state.meta["val"] for state in node.args[1])  # type: ignore[union-attr]  # a list of two nodes
    drops = node.args[5] and node.args[6]  # rewrite_training.py refuses it by name
    return bool(hidden.shape[-1] != cell.shape[-1]) and not drops
