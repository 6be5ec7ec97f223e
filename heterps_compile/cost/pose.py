"""Pose the problem: layers, costs and a pool, reduced to the arrays that every search method sees.

Times of layers are those of the roofline, or measured ones where profiles are given (``layer_times.py``).

Left out: the search (``passes/placement``).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from heterps_compile.cluster.devices import Cluster
from heterps_compile.ir.graph import OpKind
from heterps_compile.ir.layers import LayerGraph

from .allowed import allowed_types
from .layer_cost import LayerCost
from .layer_times import LayerTimes
from .memory import SAFETY_FACTOR, activation_bytes, layer_parameters_bytes, parameter_parts
from .problem import Bools, Floats, Problem

FREE_PRICE_PER_HOUR = 1e-9
"""Stands for "free" in a search, so that of two free plans the one with fewer unit-hours wins."""

_SECONDS_PER_GRADIENT_BYTE_FACTOR = 2.0
"""A ring all-reduce sends and receives every gradient byte about twice (Patarasuk and Yuan, JPDC 2009)."""


class Goal(Protocol):
    """What a placement is to reach and to keep to: a :class:`~heterps_compile.plan.request.Request` is one."""

    @property
    def objective(self) -> str:
        """Return a name of :data:`~.objective.OBJECTIVES`."""
        ...

    @property
    def min_throughput(self) -> float:
        """Return samples/s, 0 for no floor."""
        ...

    @property
    def budget_per_hour(self) -> float | None:
        """Return what the units may cost in an hour, in the pool's currency; None for no limit."""
        ...

    @property
    def min_stages(self) -> int:
        """Return how many stages there are at least."""
        ...

    @property
    def max_stages(self) -> int | None:
        """Return how many stages there are at most; None for no limit."""
        ...

    @property
    def pins(self) -> Sequence[tuple[str, str]]:
        """Return (pattern, device type): layers whose name or kind matches go to that type; the last match wins."""
        ...

    @property
    def forbidden(self) -> Sequence[tuple[str, str]]:
        """Return (pattern, device type): layers whose name or kind matches do not go to that type."""
        ...


def pose_problem(layer_graph: LayerGraph, costs: Sequence[LayerCost], times: LayerTimes, goal: Goal) -> Problem:
    """Reduce layers, costs and a pool to arrays; O(layers * types + edges).

    Args:
        layer_graph: The layers.
        costs: The work of each.
        times: Of the layers on the pool, by :func:`~.layer_times.layer_times`; in training forward and backward, with
            gradients synchronised among replicas.
        goal: What is searched for.

    Raises:
        UnknownNameError: for a pin to an unknown device type, or with a pattern that matches no layer.
        InputError: for a pin to a type that does not support the layer.
    """
    cluster, training = times.pool, times.training
    graph, layers, devices = layer_graph.graph, layer_graph.layers, cluster.device_types
    count = len(layers)
    directions = 2.0 if training else 1.0
    edges = [edge for edge in layer_graph.edges if edge.producer >= 0 and edge.consumers]
    starts = np.zeros(len(edges) + 1, np.int64)
    np.cumsum([len(edge.consumers) for edge in edges], out=starts[1:])
    tied = _tied_pairs(layer_graph, training=training)
    seconds_per_byte, latency_s = _links(cluster)
    return Problem(
        layer_names=tuple(layer.name for layer in layers),
        type_names=tuple(device.name for device in devices),
        type_kinds=tuple(device.kind for device in devices),
        layer_kinds=tuple(str(layer.kind) for layer in layers),
        batch=graph.batch,
        compute_s=times.compute_s,
        data_s=np.outer(_input_bytes(layer_graph), [1 / device.input_bytes_per_s for device in devices]),
        sync_s=np.outer(
            [gradient_bytes(layer_graph, i, cost) if training else 0 for i, cost in enumerate(costs)],
            _SECONDS_PER_GRADIENT_BYTE_FACTOR * np.diagonal(seconds_per_byte),
        ),
        compute_parallel=np.array([device.compute_parallel for device in devices]),
        data_parallel=np.array([device.data_parallel for device in devices]),
        edge_producer=np.array([edge.producer for edge in edges], np.int64),
        edge_bytes=np.array([edge.size_bytes * directions for edge in edges], np.float64),
        edge_readers=np.array([reader for edge in edges for reader in edge.consumers], np.int64),
        edge_starts=starts,
        uncuttable=_uncuttable(layer_graph),
        seconds_per_byte=seconds_per_byte.min(axis=1),
        latency_s=latency_s.min(axis=1),
        price_per_hour=np.array([device.price_per_hour or FREE_PRICE_PER_HOUR for device in devices]),
        max_units=np.array([device.max_units for device in devices], np.int64),
        memory_bytes=np.array([device.memory_bytes for device in devices]),
        weight_bytes=SAFETY_FACTOR
        * np.array(
            [layer_parameters_bytes(layer_graph, i, cost, training=training) for i, cost in enumerate(costs)],
            np.float64,
        ),
        activation_bytes=SAFETY_FACTOR * np.array([activation_bytes(cost) for cost in costs], np.float64),
        keeps_activations=training,
        tied_first=np.array([first for first, _, _ in tied], np.int64),
        tied_second=np.array([second for _, second, _ in tied], np.int64),
        tied_bytes=SAFETY_FACTOR * np.array([size for _, _, size in tied], np.float64),
        allowed=allowed_types(layer_graph, cluster, goal.pins, goal.forbidden, costs),
        min_throughput=goal.min_throughput,
        min_stages=goal.min_stages,
        max_stages=count if goal.max_stages is None else goal.max_stages,
        shared_s=_shared(layer_graph, costs, cluster),
        objective=goal.objective,
        budget_per_hour=math.inf if goal.budget_per_hour is None else goal.budget_per_hour,
        link_seconds_per_byte=seconds_per_byte if cluster.links else None,
        link_latency_s=latency_s if cluster.links else None,
        currency=cluster.currency,
    )


def _shared(layer_graph: LayerGraph, costs: Sequence[LayerCost], cluster: Cluster) -> Floats | None:
    """Return [L, T], the time that the storage behind all units of a type takes for a layer's inputs and rows."""
    rates = np.array([device.shared_input_bytes_per_s for device in cluster.device_types])
    if not np.any(np.isfinite(rates)):
        return None
    read = np.array(_input_bytes(layer_graph), np.float64)
    for i, (layer, cost) in enumerate(zip(layer_graph.layers, costs, strict=True)):
        read[i] += cost.touched_bytes if layer.kind is OpKind.EMBEDDING else 0
    return np.outer(read, 1 / rates)


def _links(cluster: Cluster) -> tuple[Floats, Floats]:
    """Return seconds per byte and latency [T, T] of a unit of one type that talks with one of another."""
    devices = cluster.device_types
    index = {device.name: t for t, device in enumerate(devices)}
    seconds_per_byte = np.repeat([[1 / device.network_bytes_per_s] for device in devices], len(devices), axis=1)
    latency_s = np.repeat([[device.network_latency_s] for device in devices], len(devices), axis=1)
    for link in cluster.links:
        pair = [index[name] for name in link.between]
        for here, there in (pair, pair[::-1]):
            seconds_per_byte[here, there] = 1 / link.bytes_per_s
            latency_s[here, there] = link.latency_s
    return seconds_per_byte, latency_s


def _input_bytes(layer_graph: LayerGraph) -> list[int]:
    """Return the bytes of graph inputs each layer reads; one that several read is charged to the first."""
    size = [0] * len(layer_graph.layers)
    for edge in layer_graph.edges:
        if edge.producer < 0 and edge.consumers:
            size[edge.consumers[0]] += edge.size_bytes
    return size


def gradient_bytes(layer_graph: LayerGraph, index: int, cost: LayerCost) -> int:
    """Return the bytes of gradients that the replicas of a layer synchronise for a batch; of an embedding its rows."""
    graph, names = layer_graph.graph, layer_graph.layers[index].parameters
    dense = parameter_parts(graph, names, 1.0, training=True)[1]
    return min(dense, cost.touched_bytes) if layer_graph.layers[index].kind is OpKind.EMBEDDING else dense


def _uncuttable(layer_graph: LayerGraph) -> Bools:
    """Mark the positions that a value which is no tensor passes over; O(edges + layers)."""
    change = np.zeros(len(layer_graph.layers) + 2, np.int64)
    for edge in layer_graph.edges:
        if edge.is_opaque and edge.producer >= 0 and edge.consumers:
            change[edge.producer + 1] += 1
            change[edge.consumers[-1] + 1] -= 1
    return np.asarray(np.cumsum(change)[: len(layer_graph.layers) + 1] > 0)


def _tied_pairs(layer_graph: LayerGraph, *, training: bool) -> list[tuple[int, int, int]]:
    graph = layer_graph.graph
    by_storage = {parameter.storage: name for name, parameter in graph.parameters.items()}
    pairs = []
    for storage, readers in layer_graph.tied_layers.items():
        # an embedding's sparse gradient is smaller than this dense one: the saving is understated, never overstated
        size = sum(parameter_parts(graph, [by_storage[storage]], 0.0, training=training))
        pairs += [(first, second, size) for first, second in pairwise(readers)]
    return pairs
