"""What a torch graph was read from: the fx graph and the model's own tensors and modules.

Left out: how the kinds of torch models are read (``torch_export.py``, ``torch_module.py``), and how calls map onto
the graph (``torch_call.py``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from heterps_compile.ir.graph import Graph

from .noise import Noise
from .torch_backwards import LostBackward
from .torch_call import CallStructure


@dataclass(frozen=True, eq=False)
class TorchSource:
    """The source of a graph of the family ``"torch"``.

    The fx graph is never turned into code as it stands: ``get_attr`` targets are parameter names, which are data.
    Its node names are the value names of the graph; ``meta["val"]`` of a node is a fake tensor with its shape,
    ``meta["path"]`` the module it came from.

    Attributes:
        graph: One placeholder per graph input, ``get_attr`` for parameters, the nodes, one output.
        tensors: Every parameter, buffer and constant by name: the model's own objects, not copies.
        modules: What ``call_module`` nodes (and ``get_attr`` nodes of sub-graphs) refer to: the user's own objects.
        transient: Names of tensors that are not in the model's ``state_dict``.
        companions: Names of tensors that no node reads, by the name of the read one they belong with: of the same
            module, or tied to it. A stage holds them so that its ``state_dict`` is whole.
        writes: Names of the values and parameters a node changes in place, by the node's name.
        pinned: Storages (see ``torch_memory.py``) of values that are changed after others took views of them.
        call: How calls map onto the graph.
        whole: Gives the whole model as its owner wrote it.
        examples: Example inputs by name, as given; empty where none were.
        attributes: Names of attributes, no parameters or buffers, that the forward changes and the graph does not.
        notes: What was guessed or left out, with its reason.
        in_float64: Reads a copy of the model in float64, with noise on its weights or none, in the same way; None
            where its data types are part of it.
        lost: What of the model's backward its stages do not have.
    """

    graph: fx.Graph
    tensors: Mapping[str, torch.Tensor]
    modules: Mapping[str, nn.Module]
    transient: frozenset[str]
    companions: Mapping[str, tuple[str, ...]]
    writes: Mapping[str, tuple[str, ...]]
    pinned: frozenset[int]
    call: CallStructure
    whole: Callable[[], Callable[..., Any]]
    examples: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    lost: tuple[LostBackward, ...] = ()
    in_float64: Callable[[Noise | None], Graph] | None = None
