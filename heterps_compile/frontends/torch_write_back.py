"""How a new value gets into its buffer: by a copy that ``torch.export`` puts at the end of what it traces.

1. A buffer that was changed in place has its new value already. Copying a tensor onto itself changes no number, but
   PyTorch counts it as a change, and the backward of whatever read the buffer in between fails: that copy is erased.
2. Where a model gives a buffer a new tensor (``self.k = self.k * 0.9``), autograd keeps the old one for the backward of
   what has read it. A copy in place would change that one: what read the buffer before reads a clone of it.

Left out: copies into buffers that other nodes change or look at as well; they are the model's own.
"""

import torch
from torch import fx

from .torch_memory import storages, written_operands

_COPY = torch.ops.aten.copy_.default


def mend_write_backs(graph: fx.Graph) -> None:
    """Apply both rules to a graph."""
    nodes = list(graph.nodes)
    position = {node: place for place, node in enumerate(nodes)}
    memory = {node: storages(node) for node in nodes}
    for copy in (node for node in nodes if node.op == "call_function" and node.target is _COPY):
        buffer, value = copy.args[:2]
        if not isinstance(buffer, fx.Node) or not isinstance(value, fx.Node) or buffer.op != "get_attr":
            continue
        if _is_same_memory(buffer, value):
            copy.replace_all_uses_with(value)
            graph.erase_node(copy)
        elif _is_last_to_touch(copy, buffer, memory, position):
            _clone_for_readers(graph, copy, buffer)


def _is_same_memory(one: fx.Node, other: fx.Node) -> bool:
    """Say whether two values are the same elements of the same memory."""
    a, b = (
        (t.untyped_storage()._cdata, t.storage_offset(), tuple(t.shape), tuple(t.stride()))
        for t in (one.meta["val"], other.meta["val"])
    )
    return a == b


def _is_last_to_touch(
    copy: fx.Node, buffer: fx.Node, memory: dict[fx.Node, set[int]], position: dict[fx.Node, int]
) -> bool:
    """Say whether nothing else changes the memory of a buffer, and nothing reads it after the copy."""
    touching = [node for node, found in memory.items() if found & memory[buffer] and node is not copy]
    readers = {user for node in touching for user in node.users if user is not copy}
    is_changed = any(set(written_operands(reader)) & set(touching) for reader in readers)
    return not is_changed and bool(readers) and all(position[reader] < position[copy] for reader in readers)


def _clone_for_readers(graph: fx.Graph, copy: fx.Node, buffer: fx.Node) -> None:
    first = next(node for node in graph.nodes if buffer in node.all_input_nodes)
    with graph.inserting_before(first):
        old = graph.call_function(torch.ops.aten.clone.default, (buffer,))
    old.meta = {"val": buffer.meta["val"].clone(), "path": first.meta.get("path", "")}
    buffer.replace_all_uses_with(old, delete_user_cb=lambda user: user is not old and user is not copy)
