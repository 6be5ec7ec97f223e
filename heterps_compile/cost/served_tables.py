"""Tables that lie on parameter servers: which they can be, and what a layer whose table is served still costs.

A table is an array of rows that a model looks up and does nothing else with. It is *held* by the replicas of a stage,
or *served*: then its rows, with their optimiser's state, lie on servers, dealt row by row, so that it may be larger
than any unit. A stage holds the rows of a batch alone, pulls them and, in training, pushes their gradients; it sums
none of them with other replicas. For a batch, with r bytes of rows over all its look-ups::

    stage       r / its network bandwidth + 108 us a table, in training twice; both are data movement of the stage, and
                the second is no shorter with more replicas
    n servers   r / (n times a server's bandwidth), in training twice: no batch takes less (``table_servers.py``)

The cost of a table on servers is the one of HeterPS (arXiv 2111.10635, section 4) and of the measurements that
``docs/cost-model.md`` names: a part for every array, and one for every byte.

A table that several layers look rows up in lies on servers once, and each layer pulls its own rows. Servers serve one
stage: a run refuses a plan that has such layers in two.

Left out: rows that several samples of a batch share, of which a run pulls one; which of the tables are served
(``passes/served_sets.py``); how they are served (``runtime/servers``).
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from heterps_compile.cluster.devices import Cluster, ParameterServer
from heterps_compile.ir.graph import Node, OpKind, Parameter
from heterps_compile.ir.layers import LayerGraph

from .gradients import gradients_of
from .layer_cost import KindWork, LayerCost, LookedUp, layer_costs, looked_up_bytes
from .memory import OPTIMIZERS, SAFETY_FACTOR
from .problem import FREE_PRICE_PER_HOUR, Floats, Problem


@dataclass(frozen=True, slots=True)
class Table:
    """A table that servers could hold.

    Attributes:
        name: Of the parameter.
        size_bytes: Of all rows.
        rows_bytes: Of those that a batch looks up, by the name of the layer that does.
    """

    name: str
    size_bytes: int
    rows_bytes: Mapping[str, int]


def tables_of(layer_graph: LayerGraph, costs: Sequence[LayerCost]) -> tuple[Table, ...]:
    """Return the tables that are held and could be served, in the order of their first layers; O(nodes).

    A table is a matrix of float32 that look-ups read and nothing else does, under one name.
    """
    graph = layer_graph.graph
    layer_of = {node: layer.name for layer in layer_graph.layers for node in layer.nodes}
    look_ups: dict[str, dict[str, int]] = {}
    otherwise = {name for cost in costs for name in cost.served}
    for index, node in enumerate(graph.nodes):
        for name in set(node.inputs) & graph.parameters.keys():
            if node.kind is not OpKind.EMBEDDING or index not in layer_of:
                otherwise.add(name)
                continue
            rows = look_ups.setdefault(name, {})
            rows[layer_of[index]] = rows.get(layer_of[index], 0) + looked_up_bytes(graph, node)
    names = Counter(parameter.storage for parameter in graph.parameters.values())
    in_order = dict.fromkeys(name for layer in layer_graph.layers for name in layer.parameters)
    found = []
    for name in in_order:
        parameter = graph.parameters[name]
        if name in look_ups and name not in otherwise and _is_matrix(parameter) and names[parameter.storage] == 1:
            size = parameter.size_bytes
            rows = {layer: min(size, rows_bytes) for layer, rows_bytes in look_ups[name].items()}
            found.append(Table(name, size, MappingProxyType(rows)))
    return tuple(found)


def _is_matrix(parameter: Parameter) -> bool:
    return len(parameter.shape) == 2 and parameter.dtype == "float32"


def held_tables(layer_graph: LayerGraph, index: int, cost: LayerCost) -> tuple[str, ...]:
    """Return the tables that a layer looks rows up in and that do not lie on servers; O(nodes of the layer)."""
    graph = layer_graph.graph
    looking_up = [node for node in map(graph.nodes.__getitem__, layer_graph.layers[index].nodes) if _looks_up(node)]
    names = dict.fromkeys(name for node in looking_up for name in node.inputs if name in graph.parameters)
    return tuple(name for name in names if name not in cost.served)


def dense_tables(layer_graph: LayerGraph, index: int, cost: LayerCost) -> tuple[str, ...]:
    """Return the trained tables of a layer that it holds, and whose gradients are as large as they."""
    whole = {each.name for each in gradients_of(layer_graph, index, cost) if each.looked_up is None}
    return tuple(name for name in held_tables(layer_graph, index, cost) if name in whole)


def _looks_up(node: Node) -> bool:
    return node.kind is OpKind.EMBEDDING


def served_costs(layer_graph: LayerGraph, costs: Sequence[LayerCost], tables: Sequence[Table]) -> tuple[LayerCost, ...]:
    """Return the work of layers, some tables of which lie on servers now."""
    by_layer: dict[str, list[Table]] = {}
    for table in tables:
        for layer in table.rows_bytes:
            by_layer.setdefault(layer, []).append(table)
    return tuple(
        _served(cost, layer.name, by_layer[layer.name]) if layer.name in by_layer else cost
        for layer, cost in zip(layer_graph.layers, costs, strict=True)
    )


def _served(cost: LayerCost, layer: str, tables: Sequence[Table]) -> LayerCost:
    rows_bytes, size_bytes = sum(each.rows_bytes[layer] for each in tables), sum(each.size_bytes for each in tables)
    return replace(
        cost,
        parameter_bytes=cost.parameter_bytes - size_bytes,
        touched_bytes=max(0, cost.touched_bytes - rows_bytes),
        looked_up=tuple(each for each in cost.looked_up if all(each.name != table.name for table in tables)),
        served=(*cost.served, *(each.name for each in tables)),
        pulled_bytes=cost.pulled_bytes + rows_bytes,
        by_kind=tuple(map(_of_rows_alone, cost.by_kind)),
    )


def with_gradients(
    layer_graph: LayerGraph, costs: Sequence[LayerCost], *, makes_sparse: bool, by_servers: bool
) -> tuple[LayerCost, ...]:
    """Return the work of layers with the gradients that a run makes of the tables that they hold.

    Args:
        layer_graph: The layers.
        costs: Of each, with whatever gradients.
        makes_sparse: Whether look-ups of rows alone are so in what stages run on.
        by_servers: Whether servers of the run step tables.
    """
    parameters, found = layer_graph.graph.parameters, []
    for cost, own in zip(costs, layer_costs(layer_graph), strict=True):
        looked_up = tuple(each for each in own.looked_up if each.name not in cost.served)
        by_kind = cost.by_kind if cost.served else own.by_kind
        if not makes_sparse:
            by_kind = _with_whole(by_kind, sum(parameters[each.name].size_bytes for each in looked_up))
        found.append(replace(cost, looked_up=looked_up if makes_sparse else (), by_kind=by_kind))
    return _stepped_by_servers(layer_graph, found) if by_servers else tuple(found)


def _stepped_by_servers(layer_graph: LayerGraph, costs: Sequence[LayerCost]) -> tuple[LayerCost, ...]:
    """Return the work of layers whose tables servers of a run step, as far as they can; the plan still holds them."""
    found, parameters = [], layer_graph.graph.parameters
    tables = {table.name: table for table in tables_of(layer_graph, costs)}
    for layer, cost in zip(layer_graph.layers, costs, strict=True):
        pushed = tuple(
            LookedUp(name, tables[name].rows_bytes[layer.name] * parameters[name].shape[0] // size, is_pushed=True)
            for name in layer.parameters
            if name in tables and (size := tables[name].size_bytes)
        )
        taken = {each.name for each in pushed}
        others = tuple(each for each in cost.looked_up if each.name not in taken)
        by_kind = _with_whole(cost.by_kind, -sum(tables[each.name].size_bytes for each in pushed))
        found.append(replace(cost, looked_up=(*others, *pushed), by_kind=by_kind))
    return tuple(found)


def _with_whole(by_kind: Sequence[KindWork], size_bytes: int) -> tuple[KindWork, ...]:
    """Return the work of a layer with so many bytes more of gradients of tables that are made whole."""
    return tuple(
        replace(work, table_bytes=max(0, work.table_bytes + size_bytes))
        if work.kind == OpKind.EMBEDDING and work.has_backward
        else work
        for work in by_kind
    )


def _of_rows_alone(work: KindWork) -> KindWork:
    """Return the work without gradients of whole tables: rows have theirs."""
    return replace(work, table_bytes=0)


def held_by_servers_bytes(layer_graph: LayerGraph, names: Collection[str], *, optimizer: str | None) -> int:
    """Return the bytes of tables with what an optimiser keeps of them; None is for inference."""
    tables = [layer_graph.graph.parameters[name] for name in dict.fromkeys(names)]
    states = 0 if optimizer is None else sum(OPTIMIZERS[optimizer](table) for table in tables if table.kind == "weight")
    return sum(table.size_bytes for table in tables) + states


def with_served_tables(
    problem: Problem,
    layer_graph: LayerGraph,
    costs: Sequence[LayerCost],
    pool: Cluster,
    *,
    optimizer: str | None,
) -> Problem:
    """Return a problem with what the served tables of its layers take; itself where none is served.

    Args:
        problem: Posed with ``costs``.
        layer_graph: The layers.
        costs: Of each, by :func:`served_costs`.
        pool: That has parameter servers.
        optimizer: Whose states servers keep; None in inference, which pushes nothing.
    """
    names = [name for cost in costs for name in cost.served]
    server = pool.parameter_server
    if not names or server is None:
        return problem
    directions = 1 if optimizer is None else 2
    pulled = np.array([float(cost.pulled_bytes) for cost in costs])
    requests_s = server.per_table_s * np.array([float(len(cost.served)) for cost in costs])
    networks = [pool.link(device.name, device.name) for device in pool.device_types]
    rows_s = np.outer(pulled, [1 / network.bytes_per_s for network in networks])
    shared_s: Floats = np.zeros(problem.compute_s.shape) if problem.shared_s is None else problem.shared_s
    return replace(
        problem,
        data_s=problem.data_s + directions * (rows_s + requests_s[:, None]),
        shared_s=shared_s + directions * requests_s[:, None],
        served_s=directions * pulled / server.bytes_per_s,
        rows_s=rows_s,
        requests_s=requests_s,
        server_price_per_hour=server.price_per_hour or FREE_PRICE_PER_HOUR,
        least_servers=fewest_servers(held_by_servers_bytes(layer_graph, names, optimizer=optimizer), server),
    )


def fewest_servers(size_bytes: float, server: ParameterServer) -> int:
    """Return how many servers hold so many bytes, with the safety factor of all memory; one at least."""
    return max(1, math.ceil(SAFETY_FACTOR * size_bytes / server.memory_bytes))
