"""Which values share memory, and which nodes change it in place.

A stage may run on another device than its neighbours, so that a change in place is seen only inside it. Two rules
make a graph with such changes safe to cut, and a third tidy:

1. Where a value is changed and the old one is read no more, later readers read the changing node's result, as in
   ``y = relu_(x)``: from then on data alone says the order.
2. Where the old name is still read, or a view of it, or where a parameter or buffer is changed, all nodes that
   touch the memory are tied by values that are no tensors: those never cross, so the nodes share a stage.
3. A node that only changes a buffer (a counter of batches, say) is tied to the next node of its module, since no data
   says where it belongs.

What enters a stage and is changed there is cloned on entry; the backend does that.

Left out: changes that an op hides from its schema, those of normalisation layers excepted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from heterps_compile.progress import check

# Positions of running mean and variance, and of the flag that says whether they are updated.
_HIDDEN_WRITES = {
    torch.ops.aten.batch_norm.default: (3, 4, 5),
    torch.ops.aten.instance_norm.default: (3, 4, 5),
    torch.ops.aten.native_batch_norm.default: (3, 4, 5),
    torch.ops.aten.cudnn_batch_norm.default: (3, 4, 5),
    torch.ops.aten.miopen_batch_norm.default: (3, 4, 5),
    torch.nn.functional.batch_norm: (1, 2, 5),
    torch.nn.functional.instance_norm: (1, 2, 5),
    torch.batch_norm: (3, 4, 5),
}

_ALSO = "heterps_compile_storages"  # key of a node's storages beside those that tracing recorded

# Ops (x, p, train) that give x itself back when they drop nothing, though torch.export records a copy.
_IDLE_DROPOUT = frozenset(
    {
        torch.ops.aten.dropout.default,
        torch.ops.aten.feature_dropout.default,
        torch.ops.aten.alpha_dropout.default,
        torch.ops.aten.feature_alpha_dropout.default,
    }
)


@dataclass(frozen=True, slots=True)
class Order:
    """What must hold beyond the data that flows.

    Attributes:
        writes: Names of the values and parameters a node changes, also those it changes through a view, by the node's
            name.
        chains: Nodes that share a stage, in order.
        pinned: Storages that a chain of rule 2 is about.
        changed_inputs: Names of the graph inputs whose memory is changed.
    """

    writes: dict[str, tuple[str, ...]]
    chains: tuple[tuple[fx.Node, ...], ...]
    pinned: frozenset[int]
    changed_inputs: tuple[str, ...]


def storages(node: fx.Node) -> set[int]:
    """Return the storages of a node's value, by the identity of its fake tensors' memory."""
    own = {
        leaf.untyped_storage()._cdata
        for leaf in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    }
    return own.union(node.meta.get(_ALSO, ()))


def mark_idle_dropout(graph: fx.Graph) -> None:
    """Let dropout that drops nothing, and views of it, share its input's memory, as they do when they run."""
    nodes = list(graph.nodes)
    for node in nodes:
        if is_idle_dropout(node):
            check()
            source, copied = node.args[0], storages(node)
            for other in nodes:
                if copied & storages(other):
                    other.meta[_ALSO] = storages(source).union(other.meta.get(_ALSO, ()))
            node.meta["val"] = source.meta["val"]


def is_idle_dropout(node: fx.Node) -> bool:
    """Say whether a node is dropout that gives its very input back, since it drops nothing."""
    if node.op != "call_function" or node.target not in _IDLE_DROPOUT or len(node.args) != 3:
        return False
    source, probability, train = node.args
    return isinstance(source, fx.Node) and (train is False or bool(probability == 0))


def written_operands(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the operands that a node changes in place, as the op's schema says."""
    found: list[Any] = []
    if isinstance(node.target, torch._ops.OpOverload):
        for position, argument in enumerate(node.target._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                found.append(_argument(node, position, argument.name))
    if node.op == "call_function" and node.target in _HIDDEN_WRITES:
        mean, variance, flag = _HIDDEN_WRITES[node.target]
        names = ("running_mean", "running_var", "training")
        given = [_argument(node, p, n) for p, n in zip((mean, variance, flag), names, strict=True)]
        use_input = node.kwargs.get("use_input_stats", given[2])
        found += given[:2] if use_input else []
    return tuple(leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, fx.Node))


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if position < len(node.args) else node.kwargs.get(name)


def order_writes(
    graph: fx.Graph, observed: dict[fx.Node, tuple[fx.Node | str, ...]], module_tensors: dict[str, tuple[str, ...]]
) -> Order:
    """Apply both rules to a graph; rule 1 changes it.

    Args:
        graph: Of a program.
        observed: What nodes were seen to change when they ran.
        module_tensors: Names of the tensors that ``call_module`` nodes read, by target.
    """
    nodes = list(graph.nodes)
    changed = {n: tuple(dict.fromkeys((*observed.get(n, ()), *written_operands(n)))) for n in nodes}
    changed = {node: operands for node, operands in changed.items() if operands}
    if not changed:
        return Order({}, (), frozenset(), ())
    position = {node: i for i, node in enumerate(nodes)}
    memory = {node: storages(node) for node in nodes}
    held = set().union(*(memory[n] for n in nodes if n.op == "get_attr"))
    touched: dict[int, None] = {}  # in order of discovery, since addresses differ from run to run
    latest: dict[fx.Node | str, fx.Node] = {}
    for node, operands in changed.items():
        now = tuple(latest.get(operand, operand) for operand in operands)
        changed[node] = now
        for old, operand in zip(operands, now, strict=True):
            if isinstance(operand, str):
                continue
            for storage in memory[operand]:
                if storage not in held and _gives_way(node, operand, storage, position, memory):
                    operand.replace_all_uses_with(node, delete_user_cb=partial(_comes_after, node, position))
                    latest[old] = latest[operand] = node
                else:
                    touched[storage] = None
    chains = [_touching(nodes, memory, storage) for storage in touched]
    held_by_modules = dict.fromkeys(o for operands in changed.values() for o in operands if isinstance(o, str))
    chains += [_holding(nodes, name, module_tensors) for name in held_by_modules]
    chains += [_with_neighbour(nodes, node) for node in changed if not node.users and memory[node] & held]
    attributes = [n for n in nodes if n.op == "get_attr"]
    # detach_ changes no number: a trace has one after every torch.tensor([...]) that a forward makes
    moved = {n: operands for n, operands in changed.items() if n.target is not torch.ops.aten.detach_.default}
    writes = {n.name: _names_of(operands, attributes, memory) for n, operands in moved.items()}
    written = set().union(*(memory[o] for operands in moved.values() for o in operands if isinstance(o, fx.Node)))
    changed_inputs = tuple(n.name for n in nodes if n.op == "placeholder" and memory[n] & written)
    chains = [chain for chain in dict.fromkeys(chains) if len(chain) > 1]
    return Order(writes, tuple(chains), frozenset(touched), changed_inputs)


def _names_of(
    operands: Iterable[fx.Node | str], attributes: list[fx.Node], memory: dict[fx.Node, set[int]]
) -> tuple[str, ...]:
    """Return the names of what a node changes; for a view of a parameter or buffer, also the latter's name."""
    names: dict[str, None] = {}
    for operand in operands:
        if isinstance(operand, str):
            names[operand] = None
            continue
        names[str(operand.target) if operand.op == "get_attr" else operand.name] = None
        names.update((str(a.target), None) for a in attributes if memory[a] & memory[operand])
    return tuple(names)


def _gives_way(
    node: fx.Node, operand: fx.Node, storage: int, position: dict[fx.Node, int], memory: dict[fx.Node, set[int]]
) -> bool:
    """Say whether rule 1 holds: the node gives the changed operand back, and nothing else sees the change."""
    here = position[node]
    older = [n for n, found in memory.items() if storage in found and position[n] < here]
    still_read = [n for n in older if n is not operand and any(position[u] > here for u in n.users)]
    return not still_read and storage in memory[node] and _shape(node) == _shape(operand)


def _comes_after(node: fx.Node, position: dict[fx.Node, int], user: fx.Node) -> bool:
    return position[user] > position[node]


def _shape(node: fx.Node) -> Any:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def _with_neighbour(nodes: list[fx.Node], node: fx.Node) -> tuple[fx.Node, ...]:
    path = node.meta.get("path", "")
    later = nodes[nodes.index(node) + 1 :]
    return (node, *[n for n in later if n.op.startswith("call_") and n.meta.get("path", "") == path][:1])


def _touching(nodes: Iterable[fx.Node], memory: dict[fx.Node, set[int]], storage: int) -> tuple[fx.Node, ...]:
    return tuple(
        n
        for n in nodes
        if n.op.startswith("call_")
        and (storage in memory[n] or any(storage in memory[source] for source in n.all_input_nodes))
    )


def _holding(nodes: Iterable[fx.Node], name: str, module_tensors: dict[str, tuple[str, ...]]) -> tuple[fx.Node, ...]:
    return tuple(
        n
        for n in nodes
        if (n.op == "call_module" and name in module_tensors.get(str(n.target), ()))
        or (n.op.startswith("call_") and any(s.op == "get_attr" and s.target == name for s in n.all_input_nodes))
    )
