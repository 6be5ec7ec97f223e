"""Buffers that a forward replaces, and weights that it changes alike in every call.

A replaced buffer is one like ``self.average = 0.9 * self.average + 0.1 * step`` in a submodule.

torch.export keeps such an assignment of the outermost module and drops one of its submodules. While a model is traced,
what its submodules have in the place of a buffer when the forward ends is written into the buffer instead, which every
graph holds.

Left out: buffers of the outermost module that are replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph

from .torch_program import forward_run_by

_SCALED = torch.ops.aten.embedding_renorm_.default
_DETACHED = torch.ops.aten.detach.default
_LOOKED_UP = (
    torch.ops.aten.embedding.default,
    torch.ops.aten.embedding_bag.default,
    torch.ops.aten.embedding_bag.padding_idx,
)


@contextmanager
def replaced_buffers_written(model: nn.Module) -> Iterator[None]:
    """Let a module's forward write into the buffers of submodules what it puts in their place.

    Calling the module raises inside:
        InputError: naming a buffer that is replaced by a tensor of another shape or dtype.
    """

    def run(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = {
            (path, name): buffer
            for path, module in model.named_modules()
            for name, buffer in module._buffers.items()
            if path and buffer is not None
        }
        result = forward(*args, **kwargs)
        for (path, name), buffer in before.items():
            table = model.get_submodule(path)._buffers
            now = table.get(name)
            if now is not buffer:
                result = pytree.tree_map(lambda leaf, old=buffer: leaf.clone() if leaf is old else leaf, result)
                _write(f"{path}.{name}", buffer, now)
                table[name] = buffer
        return result

    with forward_run_by(model, run):
        yield


def changed_anew(graph: Graph) -> frozenset[str]:
    """Return the names of weights that each call may change again from what they were at first, with the same results.

    Those of an embedding with ``max_norm``: the rows that are looked up are scaled before, rows scaled again are the
    same, and nothing else reads them.
    """
    nodes = list(graph.source.graph.nodes)
    traced = [nodes[node.origin] for node in graph.nodes]
    found = set()
    for storage in {p.storage for p in graph.parameters.values()}:
        names = {name for name, parameter in graph.parameters.items() if parameter.storage == storage}
        detached = {i for name in names for i in graph.consumers.get(name, ()) if traced[i].target is _DETACHED}
        writers = [
            i for i, node in enumerate(graph.nodes) if names.intersection(graph.source.writes.get(node.name, ()))
        ]
        if not writers or any(traced[i].target is not _SCALED for i in writers):
            continue
        same = {*writers, *detached}
        seen = {*names, *(output for i in same for output in graph.nodes[i].outputs)}
        readers = {i for name in seen for i in graph.consumers.get(name, ())} - same
        scaled = {traced[i].args[1] for i in writers}
        if all(traced[i].target in _LOOKED_UP and traced[i].args[1] in scaled for i in readers):
            found |= names
    return frozenset(found)


def _write(name: str, buffer: torch.Tensor, now: Any) -> None:
    if not isinstance(now, torch.Tensor) or (now.shape, now.dtype) != (buffer.shape, buffer.dtype):
        given = f"{now.dtype}{list(now.shape)}" if isinstance(now, torch.Tensor) else type(now).__name__
        raise InputError(
            f"the forward replaces the buffer {printable(name)!r}, {buffer.dtype}{list(buffer.shape)}, by "
            f"{printable(given)}: stages keep a buffer of one shape and dtype; keep to that, or return it instead"
        )
    with torch.no_grad():
        buffer.copy_(now.detach())
