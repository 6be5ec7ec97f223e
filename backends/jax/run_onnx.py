"""Run a small ONNX model on arrays through the op table, as ONNX's own node tests ask of a backend.

The model is run under ``jax.jit`` with 64 bits enabled; inputs that shapes depend on are constants of what is compiled.

Left out: stages.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from .lower_onnx import lower_model
from .stage import JaxStage
from .table import declared_ops

__all__ = ["declared_ops", "run_onnx"]


def run_onnx(model: onnx.ModelProto, inputs: Sequence[Any]) -> list[Any]:
    """Run a model on arrays in the order of its inputs; give its outputs in order.

    Raises:
        UnsupportedOpError: naming the first node that the table cannot run.
        BackendError: naming the node that cannot be run.
    """
    stage = JaxStage.of(lower_model(ir.serde.deserialize_model(model)))
    return [np.asarray(value) for value in stage(*inputs)]
