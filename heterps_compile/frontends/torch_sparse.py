"""Which look-ups of a graph of ops give sparse gradients: of the rows alone that they looked up (``sparse=True``).

Left out: whether an optimiser takes such gradients.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn

_ARGUMENTS: Mapping[Any, tuple[str, ...]] = {
    nn.functional.embedding: (
        "input",
        "weight",
        "padding_idx",
        "max_norm",
        "norm_type",
        "scale_grad_by_freq",
        "sparse",
    ),
    nn.functional.embedding_bag: (
        *("input", "weight", "offsets", "max_norm", "norm_type", "scale_grad_by_freq", "mode", "sparse"),
    ),
    torch.embedding: ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse"),
    torch.embedding_bag: ("weight", "indices", "offsets", "scale_grad_by_freq", "mode", "sparse"),
}


def has_sparse_gradient(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Say whether a node is a look-up whose gradient is of its rows alone.

    Args:
        node: The node.
        modules: What ``call_module`` nodes call, by target.
    """
    if node.op == "call_module":
        return isinstance(module := modules[str(node.target)], (nn.Embedding, nn.EmbeddingBag)) and module.sparse
    if node.op != "call_function":
        return False
    names = _ARGUMENTS.get(node.target, ())
    if isinstance(node.target, torch._ops.OpOverload):
        names = tuple(argument.name for argument in node.target._schema.arguments)
    return "sparse" in names and (dict(zip(names, node.args, strict=False)) | node.kwargs).get("sparse") is True
