"""The hash of a model's weights: names, dtypes, shapes, bytes; every storage is read once, a tensor at a time.

Takes about a second for a gigabyte; memory for one tensor at most, none where the bytes lie in memory as they are, and
for a piece of external data.

Left out: weights that are not there, or not plain arrays (``meta`` and fake tensors, sparse layouts, subclasses): such
a model has no such hash.
"""

import hashlib
import mmap
import sys
from collections.abc import Callable, Iterator
from typing import Any

from heterps_compile.ir.graph import ONNX, TORCH, Graph

_PIECE_BYTES = 2**24


def hash_weights(graph: Graph) -> str | None:
    """Hash the weights of a graph's source; None where they have no bytes, or no way to read them is known."""
    reader = _READERS.get(graph.family)
    if reader is None or graph.source is None:
        return None
    digest = hashlib.sha256()
    for line in reader(graph.source):
        if line is None:
            return None
        digest.update(line.encode())
    return digest.hexdigest()


def weight_without_numbers(graph: Graph) -> str:
    """Return the name of a weight on torch's device ``meta``, which has shapes and no numbers; "" where all have."""
    if graph.family != TORCH or graph.source is None:
        return ""
    return next((name for name, tensor in graph.source.tensors.items() if tensor.is_meta), "")


def _onnx(source: Any) -> Iterator[str | None]:
    """Yield one line for every initialiser; constants inside nodes are part of the structure."""
    initializers = source.model.graph.initializers
    for name in sorted(initializers):
        tensor = initializers[name].const_value
        if tensor is None:
            yield None
            return
        content = hashlib.sha256()
        for piece in _onnx_bytes(tensor):
            content.update(piece)
        yield _line(name, tensor.dtype.name, tuple(tensor.shape.numpy()), content.hexdigest())


def _onnx_bytes(tensor: Any) -> Iterator[Any]:
    """Yield the bytes of a tensor, those in external data a piece at a time, and let go of each piece after it."""
    if tensor.dtype.name == "STRING":
        yield b"\0".join(tensor.string_data())
        return
    array = tensor.numpy()
    raw = getattr(tensor, "raw", None)
    if not isinstance(raw, mmap.mmap):
        is_plain = tensor.dtype.bitwidth % 8 == 0 and array.flags.c_contiguous and sys.byteorder == "little"
        yield array.reshape(-1).view("uint8") if is_plain and array.size else tensor.tobytes()
        return
    begin = tensor.offset or 0
    with memoryview(raw) as mapped:
        for start in range(begin, begin + tensor.nbytes, _PIECE_BYTES):
            length = min(_PIECE_BYTES, begin + tensor.nbytes - start)
            yield mapped[start : start + length]
            page = start // mmap.PAGESIZE * mmap.PAGESIZE
            raw.madvise(mmap.MADV_DONTNEED, page, start + length - page)


def _torch(source: Any) -> Iterator[str | None]:
    seen: dict[Any, str] = {}
    for name in sorted(source.tensors):
        tensor = source.tensors[name]
        key = _where(tensor)
        if key is None:
            yield None
            return
        if key not in seen:
            seen[key] = _torch_bytes(tensor)
        yield _line(name, str(tensor.dtype), tuple(tensor.shape), seen[key])


def _where(tensor: Any) -> Any:
    """Return what tells a tensor's bytes from all others; None where it has none."""
    import torch  # noqa: PLC0415 - only for a torch model, which has imported it already

    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)  # fake, lazy, quantised ones are subclasses
    if not is_plain or tensor.is_quantized or tensor.is_meta or tensor.layout is not torch.strided:
        return None
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _torch_bytes(tensor: Any) -> str:
    import torch  # noqa: PLC0415 - as above

    with torch.no_grad():
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy() if flat.numel() else b""
    return hashlib.sha256(content).hexdigest()


def _line(name: str, dtype: str, shape: tuple[int, ...], content: str) -> str:
    return f"{name!r} {dtype} {list(map(int, shape))} {content}\n"


_READERS: dict[str, Callable[[Any], Iterator[str | None]]] = {ONNX: _onnx, TORCH: _torch}
