"""Which inputs of a model are looked up in a table, and how many rows that has.

An input counts where its elements reach lookups alone, through what only reshapes them or changes their integer type,
and all tables they are looked up in have as many rows.

Left out: inputs of which parts go into tables of their own; ids that are computed; bags.
"""

from .graph import Graph, Node, OpKind

_CASTS = frozenset({"cast", "to", "_to_copy", "long", "int", "type_as"})


def id_tables(graph: Graph) -> dict[str, int]:
    """Return the rows of the table in which an input is looked up, by the input's name; O(nodes + edges)."""
    found = {name: _rows(graph, name) for name in graph.inputs}
    return {name: rows for name, rows in found.items() if rows is not None}


def _rows(graph: Graph, name: str) -> int | None:
    if not _is_whole(graph, name):
        return None
    rows: set[int | None] = set()
    waiting = [name]
    while waiting:
        value = waiting.pop()
        if value in graph.outputs:
            return None
        for index in graph.consumers.get(value, ()):
            node = graph.nodes[index]
            if node.kind is OpKind.SHAPE:
                continue
            if node.kind is OpKind.EMBEDDING:
                rows.add(_rows_of(graph, node, value))
            elif _keeps_elements(graph, node, value):
                waiting += node.outputs
            else:
                return None
    return rows.pop() if len(rows) == 1 else None


def _rows_of(graph: Graph, node: Node, ids: str) -> int | None:
    """Return the rows of the table of a lookup; None where ids are not all that it reads beside one."""
    tables = [name for name in node.inputs if name in graph.parameters]
    values = [name for name in node.inputs if name not in graph.parameters]
    if len(tables) != 1 or values != [ids] or len(node.outputs) < 1:
        return None
    shape = graph.parameters[tables[0]].shape
    return shape[0] if graph.shape(node.outputs[0]) == (*graph.shape(ids), *shape[1:]) else None


def _keeps_elements(graph: Graph, node: Node, value: str) -> bool:
    plain = node.op.rpartition("::")[2].lower().split(".")
    is_cast = not _CASTS.isdisjoint(plain)
    return (
        (is_cast or node.kind in (OpKind.VIEW, OpKind.MOVE))
        and [name for name in node.inputs if name not in graph.parameters] == [value]
        and len(node.outputs) == 1
        and _is_whole(graph, node.outputs[0])
        and graph.numel(node.outputs[0]) == graph.numel(value)
    )


def _is_whole(graph: Graph, name: str) -> bool:
    return name in graph.values and graph.values[name].dtype in ("int64", "int32")
