"""Open an ONNX Runtime session on a model in memory, of whatever size, without copying its weights.

Small initialisers go into the model's bytes, where ONNX Runtime reads shapes from them. Large ones are handed over
as arrays that share memory with the model, mapped from disk where the model's own are: so there is no limit of
2 GiB, and stages of one model share their weights until ONNX Runtime packs them for its kernels.

Left out: I/O binding, devices other than what the execution provider's name says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

CPU = "CPUExecutionProvider"

_ort: Any = onnxruntime  # it exports its names without telling type checkers
_compiled = import_module("onnxruntime.capi.onnxruntime_pybind11_state")

ORT_ERRORS: tuple[type[Exception], ...] = (
    *(kind for kind in vars(_compiled).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
)
"""Whatever ONNX Runtime raises: its exceptions have no root of their own."""

_LARGE_BYTES = 1024
OLDEST_IR = 4
"""The first version of ONNX's format in which initialisers need not be inputs too."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Session:
    """An ONNX Runtime session, and the weights it points at, kept alive."""

    session: Any
    weights: tuple[Array, ...]

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[Any]:
        """Run on inputs by name; give the named outputs in order."""
        results: list[Any] = self.session.run(list(outputs), dict(feeds))
        return results

    def describe(self, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[tuple[int, tuple[int, ...]]]:
        """Run, and give ONNX's number of the data type and the shape of every output; 0 for what is no tensor."""
        values = {name: _ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        results = self.session.run_with_ort_values(list(outputs), values)
        return [(v.element_type(), tuple(v.shape())) if v.is_tensor() else (0, ()) for v in results]


def open_session(model: ir.Model, provider: str = CPU) -> Session:
    """Open a session with graph optimisation on and ONNX Runtime's own thread counts.

    ONNX Runtime's messages stay off the terminal: what goes wrong comes back as an exception.
    """
    proto, large = skeleton(model)
    arrays, values = [], []
    for name, tensor in large.items():
        array = np.ascontiguousarray(tensor.numpy())
        if array.dtype.kind in "fiub" and array.dtype.isbuiltin == 1:
            value = _ort.OrtValue.ortvalue_from_numpy(array)
        else:  # bfloat16 and 8-bit floats are numpy's only through ml_dtypes: hand their bits over
            array = array.view(f"uint{8 * array.dtype.itemsize}")
            value = _ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.dtype.value)
        arrays.append(array)
        values.append(value)
        held = proto.graph.initializer.add(
            name=name, dims=tensor.shape.numpy(), data_type=tensor.dtype.value, data_location=onnx.TensorProto.EXTERNAL
        )
        held.external_data.add(key="location", value="memory")
    options = _session_options()
    options.add_external_initializers(list(large), values)
    data: bytes = cast(Any, proto).SerializeToString()
    session = _ort.InferenceSession(data, options, providers=[provider])
    return Session(session, tuple(arrays))


def available_providers() -> list[str]:
    """Give the names of what the installed ONNX Runtime can run on."""
    names: list[str] = _ort.get_available_providers()
    return names


def open_file(path: Path, provider: str = CPU) -> Session:
    """Open a session on an ONNX file, with the options of :func:`open_session`."""
    return Session(_ort.InferenceSession(str(path), _session_options(), providers=[provider]), ())


def _session_options() -> Any:
    options = _ort.SessionOptions()
    options.graph_optimization_level = _ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    return options


def skeleton(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Give a model's bytes to be without its large initialisers, and these by name."""
    graph = model.graph
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=graph,
        opset_imports=graph.opset_imports,
        name=graph.name or "graph",
    )
    proto = onnx.ModelProto(ir_version=max(model.ir_version, OLDEST_IR))
    ir.serde.serialize_graph_into(proto.graph, cast(Any, view))  # a view is what it takes, whatever its protocol says
    for domain, version in graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    large = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if _fits_a_byte(tensor.dtype) and tensor.nbytes > _LARGE_BYTES:
            large[name] = tensor
        else:
            ir.serde.serialize_tensor_into(proto.graph.initializer.add(), in_memory(tensor, name))
    return proto, large


def in_memory(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Give a tensor that serialises with its data: one in external data is mapped, not read."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    return tensor


def _fits_a_byte(dtype: ir.DataType) -> bool:
    return dtype is not ir.DataType.STRING and dtype.bitwidth % 8 == 0
