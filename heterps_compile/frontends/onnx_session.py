"""Open an ONNX Runtime session on a model in memory, of whatever size, without copying its weights.

Small initialisers go into the model's bytes, where ONNX Runtime reads shapes from them. Large ones in external data it
maps itself, and lets go of what it packs for its kernels; others are handed over as arrays, of which it makes a copy of
its own. So there is no limit of 2 GiB.

Left out: I/O binding, devices other than what the execution provider's name says.
"""

import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from heterps_compile.escape import one_line, shorten
from heterps_compile.progress import is_watched, stopping

from .onnx_budget import bounded_run, limited_cpu, running_loops, too_large
from .onnx_names import quote

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
_LONG_ATTRIBUTE = 4096
_REASON_SHOWN = 500
_OLDEST_FORMAT = 4  # from here on initialisers need not be inputs too
# where in its own source ONNX Runtime gave up: "/onnxruntime_src/core/graph.cc:12 void onnxruntime::f(int) "
_PLACE_IN_SOURCE = re.compile(r"/\S+\.(?:cc|h|cpp):\d+ .*?\) |\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ")

# of an arena; a node inside another comes last
_OVER_MEMORY = re.compile(r".*Name:'(.*?)' Status Message.*smaller than requested bytes of (\d+)", re.DOTALL)
_registering = Lock()  # of allocators, which are the whole process's; a session keeps the one that it finds

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Session:
    """An ONNX Runtime session, and the weights it points at, kept alive.

    Attributes:
        session: ONNX Runtime's own.
        weights: What it points at.
        loops: Descriptions of the loops of the model, which bound the time of a run while a model is compiled.
        most_bytes: Memory of the values of a run; 0 for no limit.
    """

    session: Any
    weights: tuple[Array, ...]
    loops: tuple[str, ...] = ()
    most_bytes: int = 0

    def run(self, outputs: Sequence[str], feeds: Mapping[str, Array], limit_s: float = inf) -> list[Any]:
        """Run on inputs by name; return the named outputs in order.

        Args:
            outputs: Names.
            feeds: Inputs by name.
            limit_s: Seconds of CPU time in this thread after which the run is ended.

        Raises:
            TimeoutError: where the limit ended the run.
            GraphError: where the run takes more memory than the session has.
        """
        results: list[Any] = self._call(self.session.run, outputs, feeds, limit_s)
        return results

    def describe(self, outputs: Sequence[str], feeds: Mapping[str, Array]) -> list[tuple[int, tuple[int, ...]]]:
        """Run, and return ONNX's number of the data type and the shape of every output; 0 for what is no tensor."""
        if any(array.dtype == object for array in feeds.values()):  # strings cannot be handed over as values
            arrays = self.run(outputs, feeds)
            return [(_number(array), array.shape) if isinstance(array, np.ndarray) else (0, ()) for array in arrays]
        values = {name: _ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
        results = self._call(self.session.run_with_ort_values, outputs, values, inf)
        return [(v.element_type(), tuple(v.shape())) if v.is_tensor() else (0, ()) for v in results]

    def _call(self, run: Callable[..., Any], outputs: Sequence[str], feeds: Mapping[str, Any], limit_s: float) -> Any:
        """Call ONNX Runtime within the limits on time and memory."""
        options = _ort.RunOptions()
        if self.most_bytes:
            options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        stop = partial(setattr, options, "terminate", True)
        loops = self.loops if is_watched() or self.most_bytes else ()
        with stopping(stop), bounded_run(loops, stop), limited_cpu(limit_s, stop) as is_ended:
            try:
                return run(list(outputs), dict(feeds), options)
            except ORT_ERRORS as error:
                if is_ended.is_set():
                    raise TimeoutError(f"the run took longer than {limit_s:g} s of CPU time") from error
                if self.most_bytes and (found := _OVER_MEMORY.search(str(error))):
                    raise too_large(quote(found[1]), int(found[2]), self.most_bytes) from error
                raise


def reason(error: Exception) -> str:
    """Return what ONNX Runtime says went wrong, on one line."""
    return shorten(one_line(_PLACE_IN_SOURCE.sub("", str(error))), _REASON_SHOWN)


def format_version(model: ir.Model) -> int:
    """Return the version of ONNX's format to write a model in: its own, where ONNX Runtime reads that."""
    return min(max(model.ir_version, _OLDEST_FORMAT), _newest_format())


@cache
def _newest_format() -> int:
    """Find by trial the newest version of the format that the installed ONNX Runtime reads; it has no call for it."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "probe", [value], [result])
    opsets = [onnx.helper.make_opsetid("", 13)]
    for version in range(onnx.IR_VERSION, _OLDEST_FORMAT, -1):
        probe: Any = onnx.helper.make_model(graph, ir_version=version, opset_imports=opsets)
        try:
            _ort.InferenceSession(probe.SerializeToString(), _session_options(), providers=[CPU])
        except ORT_ERRORS:
            continue
        return version
    return _OLDEST_FORMAT


def _number(array: Array) -> int:
    is_text = array.dtype == object
    return int(onnx.TensorProto.STRING if is_text else onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def open_session(model: ir.Model, provider: str = CPU, most_bytes: int = 0) -> Session:
    """Open a session with graph optimisation on, on ONNX Runtime's own number of threads or :func:`session_threads`.

    ONNX Runtime's messages stay off the terminal: what goes wrong comes back as an exception.

    Args:
        model: In memory.
        provider: That runs it.
        most_bytes: Memory of the values of a run, weights excluded; 0 for no limit.
    """
    proto, large = skeleton(model)
    folder = next((os.fspath(t.base_dir) for t in large.values() if isinstance(t, ir.ExternalTensor)), "")
    names, arrays, values = [], [], []
    for name, tensor in large.items():
        held = proto.graph.initializer.add(
            name=name, dims=tensor.shape.numpy(), data_type=tensor.dtype.value, data_location=onnx.TensorProto.EXTERNAL
        )
        if isinstance(tensor, ir.ExternalTensor) and os.fspath(tensor.base_dir) == folder:
            place = {"location": tensor.location, "offset": tensor.offset or 0, "length": tensor.nbytes}
            for key, value in place.items():
                held.external_data.add(key=key, value=str(value))
            continue
        held.external_data.add(key="location", value="memory")
        array = np.ascontiguousarray(tensor.numpy())
        if array.dtype.kind in "fiub" and array.dtype.isbuiltin == 1:
            value = _ort.OrtValue.ortvalue_from_numpy(array)
        else:  # bfloat16 and 8-bit floats are numpy's only through ml_dtypes: hand their bits over
            array = array.view(f"uint{8 * array.dtype.itemsize}")
            value = _ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, tensor.dtype.value)
        names.append(name)
        arrays.append(array)
        values.append(value)
    options = _session_options()
    options.add_external_initializers(names, values)
    if folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    data: bytes = cast(Any, proto).SerializeToString()
    with _limited_memory(options, most_bytes):
        session = _ort.InferenceSession(data, options, providers=[provider])
    return Session(session, tuple(arrays), running_loops(model.graph), most_bytes)


@contextmanager
def _limited_memory(options: Any, most_bytes: int) -> Iterator[None]:
    """Bound the memory of the session that the block opens."""
    if not most_bytes:
        yield
        return
    options.add_session_config_entry("session.use_env_allocators", "1")
    place = _ort.OrtMemoryInfo("Cpu", _ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, _ort.OrtMemType.DEFAULT)
    as_requested = {"arena_extend_strategy": 1}
    with _registering:
        _ort.create_and_register_allocator(place, _ort.OrtArenaCfg({"max_mem": most_bytes, **as_requested}))
        try:
            yield
        finally:
            _ort.create_and_register_allocator(place, _ort.OrtArenaCfg({"max_mem": 0, **as_requested}))


def available_providers() -> list[str]:
    """Return the names of what the installed ONNX Runtime can run on."""
    names: list[str] = _ort.get_available_providers()
    return names


def open_file(path: Path, provider: str = CPU) -> Session:
    """Open a session on an ONNX file, with the options of :func:`open_session`."""
    return Session(_ort.InferenceSession(str(path), _session_options(), providers=[provider]), ())


_threads: ContextVar[int] = ContextVar("threads", default=0)
_lean: ContextVar[bool] = ContextVar("lean", default=False)


@contextmanager
def lean_sessions() -> Iterator[None]:
    """Let sessions that are opened meanwhile use weights where they lie, and keep no other form of them.

    They are slower, and whoever holds one lets go of it after each run (:func:`are_sessions_lean`).
    """
    token = _lean.set(True)
    try:
        yield
    finally:
        _lean.reset(token)


def are_sessions_lean() -> bool:
    """Say whether sessions are opened lean now."""
    return _lean.get()


def release_pages(model: ir.Model) -> None:
    """Give back the memory of external data that was mapped and read; it is read again when it is needed."""
    for value in model.graph.initializers.values():
        raw = getattr(value.const_value, "raw", None)
        if isinstance(value.const_value, ir.ExternalTensor) and isinstance(raw, mmap.mmap):
            raw.madvise(mmap.MADV_DONTNEED)


@contextmanager
def session_threads(count: int) -> Iterator[None]:
    """Let sessions that are opened meanwhile compute on so many threads, the caller's among them; 0 for ONNX's own."""
    token = _threads.set(count)
    try:
        yield
    finally:
        _threads.reset(token)


def _session_options() -> Any:
    options = _ort.SessionOptions()
    options.intra_op_num_threads = _threads.get()
    options.graph_optimization_level = _ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 4
    if _lean.get():
        # packing and optimisation keep weights in another form beside the file's, an arena keeps what nobody uses
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.graph_optimization_level = _ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        # in the order of the model: by default all nodes that make something of weights alone come first
        options.execution_order = _ort.ExecutionOrder.PRIORITY_BASED
    # else the threads of one stage's session go on waiting for work where those of the next one want to run
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def skeleton(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return a model's bytes without its large initialisers, and these by name; those without a reader are left out.

    ONNX Runtime throws these out first, and opens no session that is then handed one of them.
    """
    graph = model.graph
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=cast(Any, [_Short(node) if any(map(_is_long, node.attributes.values())) else node for node in graph]),
        opset_imports=graph.opset_imports,
        name=graph.name or "graph",
    )
    proto = onnx.ModelProto(ir_version=format_version(model))
    ir.serde.serialize_graph_into(proto.graph, cast(Any, view))  # a view is what it takes, whatever its protocol says
    for written, node in zip(proto.graph.node, graph, strict=True):
        written.attribute.extend(_written_once(each) for each in node.attributes.values() if _is_long(each))
    for domain, version in graph.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    large = {}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or not (value.uses() or value.is_graph_output()):
            continue
        if _fits_a_byte(tensor.dtype) and tensor.nbytes > _LARGE_BYTES:
            large[name] = tensor
        else:
            ir.serde.serialize_tensor_into(proto.graph.initializer.add(), in_memory(tensor, name))
    return proto, large


class _Short:
    """A node without its long attributes, for serialisation."""

    def __init__(self, node: ir.Node) -> None:
        self._node = node
        self.attributes = {name: each for name, each in node.attributes.items() if not _is_long(each)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)


def _is_long(attribute: ir.Attr) -> bool:
    return isinstance(attribute.value, tuple) and len(attribute.value) > _LONG_ATTRIBUTE


def _written_once(attribute: ir.Attr) -> onnx.AttributeProto:
    """Serialise an attribute the first time, and keep that with it: trees have millions of numbers in theirs."""
    if "written" not in attribute.meta:
        attribute.meta["written"] = ir.serde.serialize_attribute(attribute)
    return cast(onnx.AttributeProto, attribute.meta["written"])


def in_memory(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Return a tensor that serialises with its data: one in external data is mapped, not read."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    return tensor


def _fits_a_byte(dtype: ir.DataType) -> bool:
    return dtype is not ir.DataType.STRING and dtype.bitwidth % 8 == 0
