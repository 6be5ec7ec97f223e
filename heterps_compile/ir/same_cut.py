"""Cut a graph where another reading of the same model is cut: what it does in evaluation mode, say.

Both have most nodes in common. A node is known by its op and its module, and by how many of these came before it there;
it goes to the stage of its counterpart. One without a counterpart goes where its inputs are made; one that reads none,
where it is first read. Then nodes move to later stages, until values run forward and what is no tensor stays inside::

    training     conv  batch_norm  add_(count)  dropout | linear   dropout
    evaluation   conv  batch_norm                       | linear            (dropout is gone from both)

Left out: how good that cut is; it is one whose stages stand where those of the other reading do.
"""

from collections import Counter

from .graph import OPAQUE, Graph
from .partition import Partition, cut_graph

_UNKNOWN = -1


def cut_alike(graph: Graph, other: Graph, partition: Partition) -> Partition:
    """Cut a graph into the stages that another one has; O(nodes + edges) for each stage that nodes move by.

    Args:
        graph: To be cut.
        other: That was cut.
        partition: How.

    Raises:
        PartitionError: where the result breaks a law: a stage would have no nodes.
    """
    keys = _keys(other)
    known = {keys[node]: cut.index for cut in partition.stages for node in cut.nodes}
    owner = [known.get(key, _UNKNOWN) for key in _keys(graph)]
    _place_unknown(graph, owner)
    _move_forward(graph, owner)
    groups: list[list[int]] = [[] for _ in partition.stages]
    for node, stage in enumerate(owner):
        groups[stage].append(node)
    return cut_graph(graph, groups)


_Key = tuple[str, str, int]


def _keys(graph: Graph) -> list[_Key]:
    seen: Counter[tuple[str, str]] = Counter()
    keys = []
    for node in graph.nodes:
        what = node.op, node.module_path
        keys.append((*what, seen[what]))
        seen[what] += 1
    return keys


def _place_unknown(graph: Graph, owner: list[int]) -> None:
    """Give nodes without a counterpart a stage: that of the last of their inputs, else of their first reader."""
    makers = {out: index for index, node in enumerate(graph.nodes) for out in node.outputs}
    for index, node in enumerate(graph.nodes):
        if owner[index] == _UNKNOWN:
            owner[index] = max((owner[makers[name]] for name in node.inputs if name in makers), default=_UNKNOWN)
    for index in reversed(range(len(graph.nodes))):
        if owner[index] == _UNKNOWN:
            readers = [owner[i] for out in graph.nodes[index].outputs for i in graph.consumers.get(out, ())]
            owner[index] = min((stage for stage in readers if stage != _UNKNOWN), default=0)


def _move_forward(graph: Graph, owner: list[int]) -> None:
    """Move nodes to later stages until no value runs backwards and no value that is no tensor crosses."""
    makers = {out: index for index, node in enumerate(graph.nodes) for out in node.outputs}
    moved = True
    while moved:
        moved = False
        for index, node in enumerate(graph.nodes):
            for name in node.inputs:
                if name not in makers:
                    continue
                maker = makers[name]
                if owner[maker] > owner[index]:
                    owner[index], moved = owner[maker], True
                elif owner[maker] < owner[index] and graph.values[name].dtype == OPAQUE:
                    owner[maker], moved = owner[index], True
