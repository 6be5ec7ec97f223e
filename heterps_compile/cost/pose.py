"""Pose the problem: layers, costs and a pool, reduced to the arrays that every search method sees.

Times of layers are those of the roofline, or measured ones where profiles are given (``layer_times.py``).

Left out: the search (``passes/placement``).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from heterps_compile.cluster.devices import Cluster
from heterps_compile.ir.graph import OpKind
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.sync_rules.network import Network, endless_s, joined

from .all_reduce import Machines
from .allowed import allowed_types
from .gradients import ring_bytes
from .layer_cost import LayerCost
from .layer_fractions import ALPHA, BETA
from .layer_orders import orders_of
from .layer_times import LayerTimes
from .memory import SAFETY_FACTOR, activations_bytes, layer_parameters_bytes
from .problem import FREE_PRICE_PER_HOUR, Floats, Ints, Problem
from .served_tables import with_served_tables


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
    def optimizer(self) -> str:
        """Return a name of :data:`~.memory.OPTIMIZERS`, for what a training holds."""
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
    count, optimizer = len(layers), goal.optimizer if training else None
    directions = 2.0 if training else 1.0
    edges = [edge for edge in layer_graph.edges if edge.producer >= 0 and edge.consumers]
    orders = orders_of(layer_graph, costs, optimizer=optimizer)
    tied = [(first, second, size) for readers, size in orders.ties for first, second in pairwise(readers)]
    networks = [network_of(cluster, device.name) for device in devices]
    problem = Problem(
        **pool_arguments(cluster, [device.name for device in devices]),
        **goal_arguments(goal, count),
        **edge_arguments([(edge.producer, edge.size_bytes * directions, edge.consumers) for edge in edges]),
        layer_names=tuple(layer.name for layer in layers),
        type_names=tuple(device.name for device in devices),
        layer_kinds=tuple(str(layer.kind) for layer in layers),
        batch=graph.batch,
        compute_s=times.compute_s,
        data_s=np.outer(input_bytes(layer_graph), [1 / device.input_bytes_per_s for device in devices]),
        sync_s=np.outer(
            [ring_bytes(layer_graph, i, cost) if training else 0 for i, cost in enumerate(costs)],
            [endless_s(1.0, network.seconds_per_byte) for network in networks],
        ),
        compute_parallel=np.array([0.0 if graph.mixes else device.compute_parallel for device in devices]),
        data_parallel=np.array([0.0 if graph.mixes else device.data_parallel for device in devices]),
        uncuttable=orders.uncuttable(range(count)),
        price_per_hour=np.array([device.price_per_hour or FREE_PRICE_PER_HOUR for device in devices]),
        max_units=np.array([device.max_units for device in devices], np.int64),
        memory_bytes=np.array([device.memory_bytes for device in devices]),
        weight_bytes=SAFETY_FACTOR
        * np.array(
            [layer_parameters_bytes(layer_graph, i, cost, optimizer=optimizer) for i, cost in enumerate(costs)],
            np.float64,
        ),
        activation_bytes=SAFETY_FACTOR * np.array(activations_bytes(costs, training=training), np.float64),
        keeps_activations=training,
        tied_first=np.array([first for first, _, _ in tied], np.int64),
        tied_second=np.array([second for _, second, _ in tied], np.int64),
        tied_bytes=np.array([size for _, _, size in tied], np.float64),
        allowed=allowed_types(layer_graph, cluster, goal.pins, goal.forbidden, costs),
        shared_s=_shared(layer_graph, costs, cluster),
        machines=Machines.of_networks(networks) if training else None,
        rented_together=_rented_together(cluster),
        layer_compute_parallel=None if graph.mixes else times.fractions(ALPHA),
        layer_data_parallel=None if graph.mixes else times.fractions(BETA),
    )
    return with_served_tables(problem, layer_graph, costs, cluster, optimizer=optimizer)


def _rented_together(cluster: Cluster) -> Ints | None:
    """Return [T], the units of every type that are rented as one machine; None where each is rented by itself."""
    together = np.array([device.rented_together for device in cluster.device_types], np.int64)
    return together if np.any(together > 1) else None


def network_of(cluster: Cluster, name: str) -> Network:
    """Return what connects the replicas of a stage on a device type.

    Raises:
        UnknownNameError: with the known names and the nearest.
    """
    device, link = cluster.device_type(name), cluster.link(name, name)
    return Network(
        1 / link.bytes_per_s,
        link.latency_s,
        device.units_per_machine,
        1 / device.inner_bytes_per_s,
        device.inner_latency_s,
    )


def network_of_types(cluster: Cluster, units: Sequence[tuple[str, int]]) -> Network:
    """Return what connects the replicas of a stage, of the device types and counts given.

    Raises:
        UnknownNameError: with the known names and the nearest.
    """
    links = [cluster.link(first, second) for first, _ in units for second, _ in units]
    return joined(
        [(network_of(cluster, name), count) for name, count in units],
        max(1 / link.bytes_per_s for link in links),
        max(link.latency_s for link in links),
    )


def goal_arguments(goal: Goal, layer_count: int) -> dict[str, Any]:
    """Return the fields of a problem that a goal decides."""
    return {
        "objective": goal.objective,
        "min_throughput": goal.min_throughput,
        "budget_per_hour": math.inf if goal.budget_per_hour is None else goal.budget_per_hour,
        "min_stages": goal.min_stages,
        "max_stages": layer_count if goal.max_stages is None else goal.max_stages,
    }


def edge_arguments(edges: Sequence[tuple[int, float, Sequence[int]]]) -> dict[str, Any]:
    """Return the fields of a problem that say who makes, and who reads, so many bytes of a batch."""
    return {
        "edge_producer": np.array([producer for producer, _, _ in edges], np.int64),
        "edge_bytes": np.array([size_bytes for _, size_bytes, _ in edges], np.float64),
        "edge_readers": np.array([reader for _, _, readers in edges for reader in readers], np.int64),
        "edge_starts": np.cumsum([0, *(len(readers) for _, _, readers in edges)], dtype=np.int64),
    }


def _shared(layer_graph: LayerGraph, costs: Sequence[LayerCost], cluster: Cluster) -> Floats | None:
    """Return [L, T], the time that the storage behind all units of a type takes for a layer's inputs and rows."""
    rates = np.array([device.shared_input_bytes_per_s for device in cluster.device_types])
    if not np.any(np.isfinite(rates)):
        return None
    read = np.array(input_bytes(layer_graph), np.float64)
    for i, (layer, cost) in enumerate(zip(layer_graph.layers, costs, strict=True)):
        read[i] += cost.touched_bytes if layer.kind is OpKind.EMBEDDING else 0
    return np.outer(read, 1 / rates)


def pool_arguments(cluster: Cluster, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a problem that a pool decides: kinds of the types and what they talk over.

    Args:
        cluster: The pool.
        names: [T], the device type that each type of the problem is of.

    Raises:
        UnknownNameError: for an unknown type.
    """
    ways = [[cluster.way(here, there) for there in names] for here in names]
    seconds_per_byte = np.array([[1 / way.bytes_per_s for way in row] for row in ways])
    latency_s = np.array([[way.latency_s for way in row] for row in ways])
    has_ways = bool(cluster.links) or any(device.is_one_machine for device in cluster.device_types)
    pairs = [[[(here, 1), (there, 1)] for there in names] for here in names]
    rings = (network_of_types(cluster, pair).seconds_per_byte for row in pairs for pair in row)
    return {
        "type_kinds": tuple(cluster.device_type(name).kind for name in names),
        "currency": cluster.currency,
        "seconds_per_byte": seconds_per_byte.min(axis=1),
        "latency_s": latency_s.min(axis=1),
        "link_seconds_per_byte": seconds_per_byte if has_ways else None,
        "link_latency_s": latency_s if has_ways else None,
        "ring_seconds_per_byte": np.reshape([*rings], (len(names), -1)) if cluster.links else None,
    }


def input_bytes(layer_graph: LayerGraph) -> list[int]:
    """Return the bytes of graph inputs each layer reads; what several read is charged to the first by rank."""
    size = [0] * len(layer_graph.layers)
    for edge in layer_graph.edges:
        if edge.producer < 0 and edge.consumers:
            size[min(edge.consumers, key=layer_graph.rank)] += edge.size_bytes
    return size
