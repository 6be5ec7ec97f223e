"""The orders that a problem's layers may stand in, and the problem in another of them.

A :class:`~.problem.Problem` has its layers in one order, and stages are runs of it. The model fixes only which layers
come before which::

    a -> c -> d          orders: a b c d, a c b d, b a c d, ...      runs of a b c d:    a b | c d
    b ------> d                                                      runs of a c b d:    a c | b d

Every division of the layers into convex stages with an acyclic quotient is the runs of some order, and the runs of any
order are such a division. What is said here of layers, values and tied parameters holds in all orders; a problem in one
of them follows from it.

Left out: which order is good (``passes/placement/orders``).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from heterps_compile.ir.layers import LayerGraph

from .layer_cost import LayerCost
from .memory import SAFETY_FACTOR, parameter_parts
from .problem import Bools, Problem

BY_LAYER = (
    "layer_names",
    "layer_kinds",
    "compute_s",
    "data_s",
    "sync_s",
    "weight_bytes",
    "activation_bytes",
    "allowed",
    "shared_s",
    "served_s",
    "rows_s",
    "requests_s",
    "layer_compute_parallel",
    "layer_data_parallel",
)
"""Fields of a problem with an entry for every layer."""

BY_ORDER = (
    "edge_producer",
    "edge_bytes",
    "edge_readers",
    "edge_starts",
    "uncuttable",
    "tied_first",
    "tied_second",
    "tied_bytes",
)
"""Fields of a problem that name layers, or positions between them."""


@dataclass(frozen=True, slots=True)
class LayerOrders:
    """What holds of layers in all their orders; layers are indices into one of them.

    Attributes:
        before: Of each layer those that must come before it, ascending; those that follow from others may be left out.
        together: Layers that no stage may part: makers and readers of values that are no tensors.
        ties: Layers that share a storage, and the bytes that each of them but one saves where they share a stage.
    """

    before: tuple[tuple[int, ...], ...]
    together: tuple[tuple[int, ...], ...] = ()
    ties: tuple[tuple[tuple[int, ...], float], ...] = ()

    @property
    def is_fixed(self) -> bool:
        """Whether there is one order alone: each layer waits for its neighbour."""
        return all(layer in before for layer, before in enumerate(self.before[1:]))

    def uncuttable(self, order: Sequence[int]) -> Bools:
        """Return [L + 1], the positions in an order where no stage may begin."""
        place = {layer: at for at, layer in enumerate(order)}
        marked = np.zeros(len(order) + 1, np.bool_)
        for layers in self.together:
            places = [place[layer] for layer in layers]
            marked[min(places) + 1 : max(places) + 1] = True
        return marked


def orders_of(layer_graph: LayerGraph, costs: Sequence[LayerCost] = (), *, optimizer: str | None) -> LayerOrders:
    """Return the orders of layers; O(nodes + edges).

    Args:
        layer_graph: The layers.
        costs: Of each; tables of theirs that lie on servers are held by no stage, and so by no two.
        optimizer: That what is tied has gradients and states for; None in inference.
    """
    opaque = {
        (edge.producer, *edge.consumers)
        for edge in layer_graph.edges
        if edge.is_opaque and edge.producer >= 0 and edge.consumers
    }
    parameters = layer_graph.graph.parameters
    served = {parameters[name].storage for cost in costs for name in cost.served}
    rows = {parameters[each.name].storage for cost in costs for each in cost.looked_up}
    tied = tied_storages(layer_graph, served, rows, optimizer=optimizer)
    ties = tuple((readers, SAFETY_FACTOR * size) for readers, size in tied)
    return LayerOrders(layer_graph.predecessors, tuple(sorted(opaque)), ties)


def tied_storages(
    layer_graph: LayerGraph, served: Collection[str] = (), rows: Collection[str] = (), *, optimizer: str | None
) -> list[tuple[tuple[int, ...], int]]:
    """Return the layers that share each storage that is not served, ascending, and what holding it once more takes.

    Args:
        layer_graph: The layers.
        served: Storages on servers.
        rows: Storages of which gradients are of rows alone: each layer has those of its own.
        optimizer: None in inference.
    """
    graph = layer_graph.graph
    by_storage = {parameter.storage: name for name, parameter in graph.parameters.items()}

    def again_bytes(storage: str) -> int:
        name = by_storage[storage]
        has_gradient = optimizer is not None and storage not in rows and graph.parameters[name].kind == "weight"
        gradient_bytes = graph.parameters[name].size_bytes if has_gradient else 0
        return gradient_bytes + sum(parameter_parts(graph, [name], optimizer=optimizer))

    return [
        (readers, again_bytes(storage)) for storage, readers in layer_graph.tied_layers.items() if storage not in served
    ]


def reordered(problem: Problem, orders: LayerOrders, order: Sequence[int]) -> Problem:
    """Return a problem with its layers in another order; O(layers * types + readers).

    What a plan costs does not depend on the order of layers inside a stage, so two orders of which stages are runs give
    a plan the same value but for rounding. Reading an input of the model stays with the layer that is charged for it.

    Args:
        problem: In the order of ``orders``.
        orders: The orders of its layers.
        order: Indices of the layers, one that ``orders`` allows.
    """
    taken = np.array(order, np.int64)
    place = np.empty(len(taken), np.int64)
    place[taken] = np.arange(len(taken))
    counts = np.diff(problem.edge_starts)
    by_producer = np.argsort(place[problem.edge_producer], kind="stable")
    edge_of_reader = np.repeat(np.argsort(by_producer, kind="stable"), counts)
    moved_readers = place[problem.edge_readers]
    ties = [(sorted(int(place[i]) for i in layers), size) for layers, size in orders.ties]
    pairs = [(first, second, size) for layers, size in ties for first, second in pairwise(layers)]
    by_layer: dict[str, Any] = {
        "layer_names": tuple(problem.layer_names[i] for i in order),
        "layer_kinds": tuple(problem.layer_kinds[i] for i in order),
    }
    for name in BY_LAYER:
        if name not in by_layer and getattr(problem, name) is not None:
            by_layer[name] = getattr(problem, name)[taken]
    if problem.rules is not None:
        by_layer["rules"] = tuple(each.map(lambda table: table[taken]) for each in problem.rules)
    return replace(
        problem,
        **by_layer,
        edge_producer=place[problem.edge_producer][by_producer],
        edge_bytes=problem.edge_bytes[by_producer],
        edge_readers=moved_readers[np.lexsort((moved_readers, edge_of_reader))],
        edge_starts=np.concatenate([[0], np.cumsum(counts[by_producer])]),
        uncuttable=orders.uncuttable(order),
        tied_first=np.array([first for first, _, _ in pairs], np.int64),
        tied_second=np.array([second for _, second, _ in pairs], np.int64),
        tied_bytes=np.array([size for _, _, size in pairs], np.float64),
    )
