"""What a stage holds in memory, part by part.

Every storage is held once. Training adds a gradient of every weight and two optimiser states (Adam); the
gradient of an embedding is sparse, the rows one batch touches. Activations are those of one whole batch: in
training the sum over layers, which the backward pass reads, in inference those of the largest layer; a layer that makes
an array larger than all it reads and gives, to reduce it again or on the way to a constant, holds that one. In bfloat16
or float16 a stage also holds narrow copies of the weights of its products, once for every micro-batch under way. A
safety factor covers workspace and fragmentation.

The search asks every stage to hold a whole batch; the schedule that is chosen afterwards may hold fewer
micro-batches at once, and the plan shows what it holds (``passes/choose_schedule.py``).

Left out: recomputation, optimisers other than Adam.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph

from .layer_cost import LayerCost

SAFETY_FACTOR = 1.2
OPTIMIZER_STATES = 2


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """Bytes one replica of a stage holds, part by part; the total has the safety factor in it."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    safety_factor: float = SAFETY_FACTOR
    copies_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """Return what is held whatever the schedule is: weights, gradients and optimiser state."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        """Return the sum of the parts times the safety factor, rounded up."""
        parts = self.held_bytes + self.copies_bytes + self.activations_bytes
        return math.ceil(parts * self.safety_factor)


def parameter_parts(graph: Graph, names: Sequence[str], touched: float, *, training: bool) -> tuple[int, int, int]:
    """Return bytes of weights, gradients and optimiser state for parameters of distinct storages.

    Args:
        graph: Where the parameters are described.
        names: The parameters.
        touched: The part of them, in [0, 1], that a batch reads: dense gradients are whole, sparse ones are not.
        training: Whether gradients and optimiser state are held at all.
    """
    held = sum(graph.parameters[name].size_bytes for name in names)
    if not training:
        return held, 0, 0
    trained = sum(graph.parameters[name].size_bytes for name in names if graph.parameters[name].kind == "weight")
    return held, math.ceil(trained * touched), OPTIMIZER_STATES * trained


def layer_parameters_bytes(layer_graph: LayerGraph, index: int, cost: LayerCost, *, training: bool) -> int:
    """Return the bytes that a stage holds for a layer's parameters, each storage once, and for narrow copies."""
    parts = parameter_parts(layer_graph.graph, _distinct(layer_graph, index), _touched(cost), training=training)
    return sum(parts) + cost.copied_bytes


def stage_memory(
    layer_graph: LayerGraph, costs: Sequence[LayerCost], first: int, end: int, *, training: bool
) -> MemoryParts:
    """Return what a stage of layers ``first .. end - 1`` holds, every storage counted once."""
    seen: set[str] = set()
    weights = gradients = optimizer = 0
    for index in range(first, end):
        names = [n for n in _distinct(layer_graph, index) if layer_graph.graph.parameters[n].storage not in seen]
        seen.update(layer_graph.graph.parameters[name].storage for name in names)
        parts = parameter_parts(layer_graph.graph, names, _touched(costs[index]), training=training)
        weights, gradients, optimizer = weights + parts[0], gradients + parts[1], optimizer + parts[2]
    activations = [activation_bytes(costs[index]) for index in range(first, end)]
    return MemoryParts(
        weights,
        gradients,
        optimizer,
        sum(activations) if training else max(activations),
        copies_bytes=sum(costs[index].copied_bytes for index in range(first, end)),
    )


def activation_bytes(cost: LayerCost) -> int:
    """Return the activations of one batch that a layer reads and makes, or the largest array inside if that is more."""
    return max(cost.input_bytes + cost.output_bytes, cost.inside_bytes)


def _distinct(layer_graph: LayerGraph, index: int) -> list[str]:
    by_storage = {layer_graph.graph.parameters[n].storage: n for n in reversed(layer_graph.layers[index].parameters)}
    return list(by_storage.values())


def _touched(cost: LayerCost) -> float:
    return cost.touched_bytes / cost.parameter_bytes if cost.parameter_bytes else 1.0
