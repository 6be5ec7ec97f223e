"""Run a small ONNX model on arrays through the op table, as ONNX's own node tests ask of a backend.

Left out: stages, and models whose weights should not be copied.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from numpy.typing import NDArray

from .from_onnx import ModelConstants, convert_model
from .onnx_ops.dtypes import as_array, as_tensor
from .onnx_ops.table import declared_ops

__all__ = ["declared_ops", "run_onnx"]


def run_onnx(model: onnx.ModelProto, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Run a model on arrays in the order of its inputs; give its outputs in order.

    Raises:
        UnsupportedOpError: naming the first node that the table cannot run.
        BackendError: naming the node that cannot be run.
    """
    inferred = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))
    values = ir.convenience.create_value_mapping(inferred.graph)
    numbers = {name: value.dtype.value for name, value in values.items() if value.dtype is not None}
    stage = convert_model(inferred, ModelConstants(lambda _: None, lambda name: numbers.get(name, 0)))
    with torch.no_grad():
        results = stage(*(as_tensor(np.asarray(array)) for array in inputs))
    return [as_array(t, numbers[name]) for name, t in zip(stage.outputs, results, strict=True)]
