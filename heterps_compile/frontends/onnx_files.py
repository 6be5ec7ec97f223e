"""Read an ONNX model from wherever it is, trusting nothing in it.

A file is protobuf of at most 2 GiB; weights beyond that lie in external data, which is mapped into memory, not
read. Where each tensor says its data lies is checked before any of it is read: inside the model's folder, also
after links are followed, and long enough.

Left out: textual ONNX formats, models in archives, maps and sparse tensors between nodes.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from heterps_compile.errors import GraphError, InputError
from heterps_compile.escape import one_line, short, shorten
from heterps_compile.plain_file import read_plain, refuse_special
from heterps_compile.units import format_bytes

from .onnx_bodies import every_node
from .onnx_inline import refuse_many_nodes
from .onnx_names import quote
from .onnx_rewrite import every_graph, rewrite
from .onnx_structure import quiet

_PROTOBUF_LIMIT = 2**31 - 1
_REASON_SHOWN = 300
_PLACES = ("offset", "length")
_NO_TENSORS = {"map_type": "a dictionary (ONNX's map)", "sparse_tensor_type": "a sparse tensor"}


def load_model(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> tuple[ir.Model, Path | None, list[str]]:
    """Return our own copy of a model, weights shared, the path it came from if any, and notes on what is rewritten.

    Raises:
        InputError: where it cannot be read, or its external data is missing, cut short or out of bounds.
        GraphError: where a name is made twice.
    """
    notes: list[str] = []
    if isinstance(model, ir.Model):
        try:
            loaded, path = model.clone(), None
        except (RuntimeError, ValueError) as e:
            raise GraphError(
                f"the model cannot be copied ({_root_cause(e)}); sort it first (model.graph.sort())"
            ) from e
    elif isinstance(model, onnx.ModelProto):
        (loaded, notes), path = _deserialize(model, "the model"), None
    else:
        path = Path(model).absolute()
        loaded, notes = _deserialize(_parse(path), str(path))
    folder = None if path is None else path.parent

    def checked(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if isinstance(tensor, ir.ExternalTensor):
            if folder is not None:
                tensor.base_dir = folder
            _check_external(tensor)
        return _own_inline(tensor) if isinstance(tensor, ir.TensorProtoTensor) else tensor

    _map_tensors(loaded, checked)
    return loaded, path, notes


def _parse(path: Path) -> Any:
    expected = "expected an ONNX file"
    if path.is_dir():
        raise InputError(f"{path} is a directory; {expected}")
    if not path.exists():
        more = "" if path.suffix else "; --help lists the commands"
        raise InputError(f"{path} does not exist; {expected}{more}")
    size_bytes = path.stat().st_size
    try:
        refuse_special(path, path.stat().st_mode)
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror}") from e
    if size_bytes == 0:
        raise InputError(f"{path} is empty (0 bytes); {expected}")
    if size_bytes > _PROTOBUF_LIMIT:
        raise InputError(
            f"{path} has {format_bytes(size_bytes)}, and an ONNX file holds 2 GiB at most; "
            f"save it with external data (onnx.save(..., save_as_external_data=True))"
        )
    try:
        proto: Any = onnx.load_model_from_string(read_plain(path), format="protobuf")
    except OSError as e:
        raise InputError(f"{path} cannot be read: {e.strerror}; {expected}") from e
    except DecodeError as e:
        if is_zipfile(path):
            raise InputError(
                f"{path} is a zip archive, as PyTorch writes, and no ONNX file; compile what was exported in Python, "
                f"heterps_compile.compile(torch.export.load({str(path)!r}), inputs), or write it with torch.onnx.export"
            ) from e
        raise InputError(
            f"{path} is no ONNX file, or is cut short: its {size_bytes} bytes do not parse; export it again"
        ) from e
    if not proto.HasField("graph"):
        raise InputError(f"{path} is no ONNX model: its {size_bytes} bytes hold no graph; export it again")
    return proto


def _deserialize(proto: Any, what: str) -> tuple[ir.Model, list[str]]:
    for kind, named in (("input", proto.graph.input), ("initializer", proto.graph.initializer)):
        seen: set[str] = set()
        for item in named:
            if item.name in seen:
                raise GraphError(f"{what} has two {kind}s named {quote(item.name)}; rename one")
            seen.add(item.name)
    refuse_many_nodes(proto)
    proto, notes = rewrite(proto, what)
    try:
        with quiet():
            return ir.serde.deserialize_model(proto), notes
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError) as e:
        _refuse_second_makers(proto.graph, what)
        _refuse_maps(proto.graph, what)
        _refuse_odd_places(proto, what)
        raise InputError(f"{what} is no valid ONNX model ({_root_cause(e)}); export it again") from e


def _root_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return shorten(one_line(str(error)), _REASON_SHOWN)


def _refuse_maps(graph: Any, what: str) -> None:
    """Raise where a value is no tensor or sequence: what reads such models is right, and they are valid."""
    for kind, values in (("input", graph.input), ("output", graph.output), ("value", graph.value_info)):
        for value in values:
            told = value.type.WhichOneof("value")
            inner = value.type.sequence_type.elem_type.WhichOneof("value") if told == "sequence_type" else None
            odd = next((t for t in (told, inner) if t in _NO_TENSORS), None)
            if odd is not None:
                raise InputError(
                    f"the {kind} {quote(value.name)} of {what} is {_NO_TENSORS[odd]}, and only tensors go between "
                    f"stages; export the model with tensors there"
                )


def _refuse_second_makers(graph: Any, what: str) -> None:
    makers = {item.name: "the model's inputs and initializers" for item in (*graph.input, *graph.initializer)}
    for node in graph.node:
        for out in filter(None, node.output):
            maker = f"node {quote(node.name)} ({node.op_type})"
            if out in makers:
                raise GraphError(f"{what} makes value {quote(out)} twice: in {makers[out]} and in {maker}; rename one")
            makers[out] = maker


def _refuse_odd_places(proto: Any, what: str) -> None:
    """Raise if the offset or length of external data is no whole number from 0."""
    for graph in (held for top in (proto.graph, *proto.functions) for held in every_graph(top)):
        named = getattr(graph, "initializer", ())  # a function has none
        made = (tensor for node in graph.node for a in node.attribute for tensor in (a.t, *a.tensors))
        for tensor in (*named, *made):
            for entry in tensor.external_data:
                if entry.key in _PLACES and not (entry.value.isascii() and entry.value.isdigit()):
                    shown = quote(tensor.name)
                    raise InputError(
                        f"the {entry.key} of the external data of tensor {shown} in {what} is {short(entry.value)}; "
                        f"expected a whole number of bytes, 0 or more. Fix: export the model again"
                    )


def _map_tensors(model: ir.Model, change: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Replace every tensor of a model: initialisers and attributes, in subgraphs and functions too."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    for holder in graphs:
        for graph in (holder, *holder.subgraphs()):
            for value in graph.initializers.values():
                if value.const_value is not None:
                    value.const_value = change(value.const_value)
        for node in every_node(holder):
            # not attribute.as_tensor(): it looks at a data type that need not be one
            for name, attribute in list(node.attributes.items()):
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    node.attributes[name] = ir.AttrTensor(name, change(attribute.value))
                elif attribute.type == ir.AttributeType.TENSORS:
                    node.attributes[name] = ir.AttrTensors(name, [change(held) for held in attribute.value])


def _check_external(tensor: ir.ExternalTensor) -> None:
    """Check where a tensor's data lies, without reading any."""
    name, location = quote(tensor.name), os.fspath(tensor.location)
    data = f"external data of tensor {name}"
    inside = "it must lie inside the model's folder; put the file there and export again"
    if not os.fspath(tensor.base_dir):
        raise InputError(f"{data} is relative to a folder nobody named; give the path of the ONNX file instead")
    if not location or "\0" in location:
        raise InputError(f"{data} has the path {quote(location)}; {inside}")
    if os.path.isabs(location):
        raise InputError(f"{data} has the absolute path {quote(location)}; {inside}")
    folder = Path(tensor.base_dir)
    if not Path(os.path.normpath(folder / location)).is_relative_to(os.path.normpath(folder)):
        raise InputError(f"{data} has the path {quote(location)}, which leaves {folder}; {inside}")
    path = (folder / location).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{data}, {quote(location)}, is a link that leaves {folder}; {inside}")
    if not path.is_file():
        raise InputError(f"{data} is missing: {quote(location)} in {folder} is no file; put it beside the model")
    if path.stat().st_nlink > 1:
        # onnx_ir refuses to read such a file: a hard link is another way to point out of the folder
        raise InputError(f"{data}, {quote(location)}, has a second hard link; replace it by a copy")
    try:
        offset, expected = tensor.offset or 0, tensor.nbytes
    except (ValueError, TypeError) as e:
        raise InputError(f"{data} is of no data type that has a size: {e}; export the model again") from e
    length = expected if tensor.length is None else tensor.length
    size_bytes = path.stat().st_size
    if offset < 0 or length != expected or offset + length > size_bytes:
        raise InputError(
            f"{data} is cut short or misplaced: it needs {expected} bytes and claims {length} at offset {offset} "
            f"of {quote(location)}, which has {size_bytes}; export the model again"
        )


def _own_inline(tensor: ir.TensorProtoTensor) -> ir.TensorProtocol:
    """Return a tensor's data as an array, so that all sessions share it and the protobuf can go."""
    dims, number = tensor.raw.dims, tensor.raw.data_type
    try:
        if any(dim < 0 for dim in dims):
            raise ValueError("a dimension is negative")
        array, dtype = tensor.numpy(), tensor.dtype
    except (ValueError, TypeError, KeyError, AssertionError) as e:  # whatever onnx_ir makes of odd data
        raise InputError(
            f"tensor {quote(tensor.name)} has data that does not fit its shape {short(list(dims))} and data type "
            f"{number}: {shorten(one_line(str(e)), _REASON_SHOWN)}; export the model again"
        ) from e
    if dtype is ir.DataType.STRING or dtype.bitwidth % 8:
        return tensor  # numpy needs more bytes for these than the protobuf
    return ir.Tensor(array, dtype=dtype, name=tensor.name)
