"""Build the stages of a graph for jax, run them, and chain their pure functions."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from heterps_compile.backends.jax.backend import JaxBackend
from heterps_compile.backends.jax.stage import JaxStage
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import Partition
from heterps_compile.runtime.in_process import run_stages

BACKEND = JaxBackend()


def run(graph: Graph, partition: Partition, stages: Sequence[Any], inputs: Mapping[str, Any]) -> list[Any]:
    """Run stages in order; give the graph's outputs as numpy arrays."""
    values = run_stages(partition.stages, stages, inputs, graph.outputs)
    return [np.asarray(values[name]) for name in graph.outputs]


def run_staged(graph: Graph, partition: Partition, inputs: Mapping[str, Any]) -> list[Any]:
    """Build the stages and run them."""
    return run(graph, partition, BACKEND.build(graph, partition), inputs)


def chained(
    graph: Graph, partition: Partition, stages: Sequence[JaxStage], inputs: Mapping[str, Any]
) -> Callable[[Sequence[Mapping[str, Any]]], list[Any]]:
    """Return the function from the trained weights of every stage to the graph's outputs."""

    def run(weights: Sequence[Mapping[str, Any]]) -> list[Any]:
        values = dict(inputs)
        for cut, stage, trained in zip(partition.stages, stages, weights, strict=True):
            results = stage.function({**stage.params, **trained}, *(values[name] for name in cut.inputs))
            values.update(zip(cut.outputs, results, strict=True))
        return [values[name] for name in graph.outputs]

    return run


def by_storage(graph: Graph, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up, over stages and tied names, what belongs to one array."""
    total: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            storage = graph.parameters[name].storage
            total[storage] = total.get(storage, 0) + np.asarray(value, np.float64)
    return total
