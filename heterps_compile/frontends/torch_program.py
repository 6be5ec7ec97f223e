"""A torch model on its way into the IR: what an exported program and a traced module have in common.

Left out: the two readers that make it (``torch_export.py``, ``torch_module.py``).
"""

import functools
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from heterps_compile.errors import InputError

from .torch_backwards import LostBackward
from .torch_call import Leaf
from .torch_polls import asking_between_ops


@dataclass(frozen=True, slots=True)
class Program:
    """A model as an fx graph of our own, and what the graph refers to.

    ``meta["val"]`` of every node is its fake value, ``meta["path"]`` the module it came from. The output node's
    only argument is a flat tuple, a node or a constant for every leaf of ``out_spec``. Fields are as in
    :class:`~heterps_compile.frontends.torch_source.TorchSource` where not described here.

    Attributes:
        name: Of the model.
        kinds: ``"weight"``, ``"buffer"`` or ``"constant"`` for each name in ``tensors``.
        module_tensors: Names of the tensors a ``call_module`` node reads, by target.
        writes: What each node changes in place: nodes, and names of tensors that modules hold.
        draws: Nodes that were seen to draw random numbers, beside those whose op says so.
        state: Every tensor of the model's ``state_dict`` by name, those that no node reads included.
        aliases: All names the model has for the tensor of each name, where there are several.
        fixed_shapes: Whether the graph is right for the recorded shapes only, symbolic dimensions aside.
        parameter_names: Names of the positional parameters of the model's ``forward``, in order.
        in_spec, in_leaves, out_spec: Structure of (args, kwargs) and of the result; see ``torch_call.py``.
        ranges: Least and largest number of each symbol.
        dimension_names: Names the user gave to dimensions, by input and axis.
    """

    name: str
    graph: fx.Graph
    tensors: dict[str, torch.Tensor]
    kinds: dict[str, str]
    modules: dict[str, nn.Module]
    module_tensors: dict[str, tuple[str, ...]]
    transient: frozenset[str]
    state: Mapping[str, torch.Tensor]
    aliases: Mapping[str, tuple[str, ...]]
    writes: dict[fx.Node, tuple[fx.Node | str, ...]]
    in_spec: pytree.TreeSpec
    in_leaves: tuple[Leaf, ...]
    out_spec: pytree.TreeSpec
    parameter_names: tuple[str, ...]
    fixed_shapes: bool
    whole: Callable[[], Callable[..., Any]]
    examples: dict[str, Any]
    ranges: Mapping[Any, tuple[float, float]] = field(default_factory=dict)
    dimension_names: Mapping[tuple[str, int], str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    attributes: tuple[str, ...] = ()
    draws: frozenset[fx.Node] = frozenset()
    lost: tuple[LostBackward, ...] = ()


def module_path(node: fx.Node) -> str:
    """Return the dotted path of the innermost module a node came from, or ""."""
    stack = node.meta.get("nn_module_stack") or {}
    paths = [entry[0] for entry in stack.values() if isinstance(entry, tuple) and isinstance(entry[0], str)]
    path = paths[-1] if paths else ""
    return "" if path.startswith("_empty_nn_module_stack") else path.removeprefix("L['self'].")


def storage_key(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key that tied tensors share: where their memory begins; a tensor without memory is tied to none."""
    try:
        storage = tensor.untyped_storage()
        address = storage.data_ptr() or storage._cdata
    except (NotImplementedError, RuntimeError):  # sparse and other layouts have no single storage
        return (name,)
    if tensor.numel() == 0:
        return (name,)
    return (str(tensor.device), address, tensor.storage_offset())


def overlaps(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Say whether two tensors share memory without being the same: a view of a part, or of another shape."""
    first, second = (_span(t) for t in (tensor, other))
    if first is None or second is None or first[0] != second[0]:
        return False
    is_same = tensor.shape == other.shape and tensor.stride() == other.stride() and first == second
    return not is_same and first[1] < second[2] and second[1] < first[2]


def _span(tensor: torch.Tensor) -> tuple[object, int, int] | None:
    """Return storage, first byte and end of a tensor's memory; None for one without."""
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.is_meta:
        return None
    last = sum(int((size - 1) * step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.itemsize
    return tensor.untyped_storage()._cdata, begin, begin + (last + 1) * tensor.itemsize


def find_aliases(tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, tuple[str, ...]]:
    """Return all names of a tensor for each of its names, where it has several."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in tensors:
        groups.setdefault((*storage_key(name, tensor), tuple(tensor.shape)), []).append(name)
    return {name: tuple(names) for names in groups.values() if len(names) > 1 for name in names}


@contextmanager
def forward_run_by(model: nn.Module, run: Callable[..., Any]) -> Iterator[None]:
    """Have a module's forward called by ``run(forward, *args, **kwargs)``, whose result is the module's."""
    had_own, forward = "forward" in vars(model), model.forward

    @functools.wraps(forward)
    def called(*args: Any, **kwargs: Any) -> Any:
        return run(forward, *args, **kwargs)

    try:
        vars(model)["forward"] = called
        yield
    finally:
        if had_own:
            vars(model)["forward"] = forward
        else:
            del vars(model)["forward"]


@contextmanager
def quiet_tracing() -> Iterator[None]:
    """Keep torch from logging or printing what it also raises, and from warning of what notes tell.

    Raises:
        CancelledError: where the caller of the compilation cancelled it.
    """
    loggers = [
        logging.getLogger(f"torch.{name}") for name in ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    printed, graph = io.StringIO(), ""
    try:
        with redirect_stderr(printed), warnings.catch_warnings(), asking_between_ops():
            # torch_attributes.py finds them, and torch.nn.LSTM's _flat_weights are no state
            warnings.filterwarnings("ignore", message=r"The tensor attributes? self\.")
            # torch.export looks at the gradient of a weight that the model changes
            warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
            yield
    except Exception as error:
        graph = str(getattr(error, "partial_fx_graph", ""))  # torch.export prints it before it raises
        raise
    finally:
        sys.stderr.write(printed.getvalue().replace(f"{graph}\n", "") if graph else printed.getvalue())
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def check_examples(args: object, kwargs: object) -> None:
    """Check that example inputs are a tuple and a mapping.

    Raises:
        InputError: saying what they are instead.
    """
    if not isinstance(args, (tuple, list)):
        raise InputError(f"example_inputs must be a tuple of positional inputs, not {type(args).__name__}")
    if not isinstance(kwargs, Mapping):
        raise InputError(f"example_kwargs must be a mapping from names to inputs, not {type(kwargs).__name__}")
