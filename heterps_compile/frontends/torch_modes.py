"""A PyTorch model in evaluation mode for a while, and what of a graph is done in training mode alone.

The model comes back as it was: the mode of every submodule by itself, frozen ones among trained ones too.

Left out: what a model does with ``self.training`` in its own code, which a graph does not show.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import Graph

_FLAGS = ("train", "training", "use_input_stats")
_AMOUNTS = ("p", "dropout", "dropout_p")
_ALWAYS = ("dropout_p",)  # amounts of ops that have no flag


@contextmanager
def evaluated(model: nn.Module) -> Iterator[nn.Module]:
    """Yield a model in evaluation mode, and put it back into the modes in which it was.

    A ``GraphModule`` is given as a copy that shares its tensors, since stages keep its submodules.

    Raises:
        InputError: where its ``eval()`` changes its parameters, as layers do that merge them.
    """
    if isinstance(model, fx.GraphModule):
        held = [*model.parameters(), *model.buffers()]
        yield copy.deepcopy(model, {id(tensor): tensor for tensor in held}).eval()
        return
    modes = [(module, module.training) for module in model.modules()]
    before = _versions(model)
    with torch.random.fork_rng():
        try:
            model.eval()
            changed = next((name for name, found in _versions(model).items() if found != before.get(name)), None)
            if changed is not None:
                raise InputError(f"eval() of the model changes {printable(changed)!r}")
            yield model
        finally:
            for module, mode in modes:
                if type(module).train is not nn.Module.train and module.training != mode:
                    module.train(mode)
            for module, mode in modes:
                module.training = mode


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: (id(tensor), 0 if tensor.is_inference() else tensor._version)
        for name, tensor in tensors
        if not nn.parameter.is_lazy(tensor)
    }


def is_training(model: nn.Module) -> bool:
    """Tell whether a model or a part of it is in training mode."""
    return any(module.training for module in model.modules())


def has_modes(model: nn.Module) -> bool:
    """Tell whether a model has layers of PyTorch that do something else in training."""
    return any(_has_modes(module) for module in model.modules())


def _has_modes(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return module.running_mean is not None
    if not isinstance(module, (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)):
        return False
    return bool(getattr(module, "p", 0) or getattr(module, "dropout", 0))


def same_nodes(one: Graph, other: Graph) -> bool:
    """Tell whether two readings of a model are one: the same ops on the same arguments."""
    return _shown(one) == _shown(other)


def _shown(graph: Graph) -> list[tuple[Any, ...]]:
    return [(node.op, node.name, node.target, str(node.args), str(node.kwargs)) for node in graph.source.graph.nodes]


def training_nodes(graph: Graph) -> list[str]:
    """Return the names of the nodes that do what is done in training mode alone, as far as their arguments show it."""
    return [node.name for node in graph.source.graph.nodes if _trains(node)]


def _trains(node: fx.Node) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    given = {}
    for place, argument in enumerate(node.target._schema.arguments):
        positional = node.args[place] if place < len(node.args) else argument.default_value
        given[argument.name] = node.kwargs.get(argument.name, positional)
    if any(given.get(name) for name in _ALWAYS):
        return True
    if "eps" in given and given.get("running_mean") is None:  # a norm by its batch in both modes
        return False
    has_flag = any(given.get(name) is True for name in _FLAGS)
    amounts = [given[name] for name in _AMOUNTS if name in given]
    return has_flag and all(amount != 0 for amount in amounts)
