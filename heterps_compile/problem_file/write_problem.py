"""Export a model's layers, their times and a pool as a problem file.

A layer that a profile measured has the times of the measured batches, so that times in between are read off the same
lines as for the model. Other layers have the estimate at every divisor of the batch, which are the sizes of
micro-batches. :func:`left_out` names what a problem file cannot express.

Not covered: measuring (``profiling/``); tables on servers, which `predict` takes from a plan with ``tables`` of layers.
"""

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from heterps_compile.cluster.pool_toml import pool_toml
from heterps_compile.cost.allowed import allowed_types
from heterps_compile.cost.gradients import ring_bytes
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.layer_fractions import ALPHA, BETA
from heterps_compile.cost.layer_orders import orders_of
from heterps_compile.cost.layer_times import LayerTimes
from heterps_compile.cost.memory import SAFETY_FACTOR, USUAL_OPTIMIZER, activations_bytes, layer_parameters_bytes
from heterps_compile.cost.own_work import update_times
from heterps_compile.cost.pose import input_bytes
from heterps_compile.cost.precision import FULL
from heterps_compile.cost.problem import Floats
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.units import counted

from .read_problem import FORMAT, VERSION, make_given


def problem_text(layers: LayerGraph, costs: Sequence[LayerCost], times: LayerTimes) -> str:
    """Export a model as a problem file; O(layers * types * sizes).

    Args:
        layers: Of the model, at the batch that is planned.
        costs: The work of each.
        times: Of the layers on a pool.

    Returns:
        JSON in ASCII, which :func:`~.read_problem.read_problem` reads.

    Raises:
        InputError: if the model breaks a law of problems, such as a limit on the number of layers.
    """
    graph = layers.graph
    held = _held_per_parameter(layers, costs, training=times.training)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "layers": list(_layers(layers, costs, times)),
        "edges": [
            {
                "from": layers.layers[edge.producer].name,
                "to": [layers.layers[reader].name for reader in edge.consumers],
                "bytes_per_sample": edge.size_bytes / graph.batch,
            }
            for edge in layers.edges
            if edge.producer >= 0 and edge.consumers
        ],
        "pool": tomllib.loads(pool_toml(times.pool)),
        "request": {"mode": "training" if times.training else "inference"},
        "batch": graph.batch,
        "held_per_parameter": max(held, default=SAFETY_FACTOR),
    }
    make_given(document, "the exported problem")
    return json.dumps(document, indent=1) + "\n"


def _layers(layers: LayerGraph, costs: Sequence[LayerCost], times: LayerTimes) -> Iterator[dict[str, Any]]:
    batch, devices = layers.graph.batch, times.pool.device_types
    kept = activations_bytes(costs, training=times.training)
    allowed = allowed_types(layers, times.pool, (), (), costs)
    updates = update_times(layers, costs, times, USUAL_OPTIMIZER) if times.training else np.zeros(allowed.shape)
    alphas = np.zeros(allowed.shape) if layers.graph.mixes else times.fractions(ALPHA)
    divisors = _divisors(batch)
    for i, (layer, cost) in enumerate(zip(layers.layers, costs, strict=True)):
        yield {
            "name": layer.name,
            "parameter_bytes": cost.parameter_bytes,
            "activation_bytes_per_sample": SAFETY_FACTOR * kept[i] / batch,
            "times": [
                {
                    "device": device.name,
                    **_phases(times, (i, t), batch, times.measured_batches(i, t) or divisors),
                    "update_s": float(updates[i, t]),
                    **({} if alphas is None else {"compute_parallel": float(alphas[i, t])}),
                }
                for t, device in enumerate(devices)
                if allowed[i, t]
            ],
        }


def _phases(times: LayerTimes, of: tuple[int, int], batch: int, samples: Sequence[int]) -> dict[str, Any]:
    found = [times.phases(*of, batch / size) for size in samples]
    backward = {"backward_s": [each.backward_s for each in found]} if times.training else {}
    return {"samples": list(samples), "forward_s": [each.forward_s for each in found], **backward}


def _divisors(batch: int) -> list[int]:
    """List the divisors of a batch, ascending."""
    small = [size for size in range(1, math.isqrt(batch) + 1) if batch % size == 0]
    return sorted({*small, *(batch // size for size in small)})


def _held_per_parameter(layers: LayerGraph, costs: Sequence[LayerCost], *, training: bool) -> Floats:
    """Compute bytes held per byte of parameters, [N] layers with parameters."""
    optimizer = USUAL_OPTIMIZER if training else None
    return np.array(
        [
            SAFETY_FACTOR * layer_parameters_bytes(layers, i, cost, optimizer=optimizer) / cost.parameter_bytes
            for i, cost in enumerate(costs)
            if cost.parameter_bytes
        ]
    )


def left_out(layers: LayerGraph, costs: Sequence[LayerCost], times: LayerTimes) -> Iterator[str]:
    """Yield notes on the limits of a model's problem file."""
    training, names = times.training, [device.name for device in times.pool.device_types]
    yield (
        "the file has neither other orders of the layers, pinned layers, recomputation, tables on servers nor "
        "synchronisation rules that servers need: plan the model itself for these"
    )
    if training:
        yield (
            f"the file has the optimizer {USUAL_OPTIMIZER}, whose step counts in every batch of the steady state, one "
            "time of a backward, and no time that replicas take to sum gradients besides the network's"
        )
        if any(ring_bytes(layers, i, cost) != cost.parameter_bytes for i, cost in enumerate(costs)):
            yield "gradients of some layers are of rows, or of a part of the weights: the file has them of all weights"
    held = _held_per_parameter(layers, costs, training=training)
    if len(held) and held.max() > held.min() * (1 + 1e-9):
        yield f"layers hold {held.min():.3g} to {held.max():.3g} bytes a byte of parameters: the file has the largest"
    orders = orders_of(layers, costs, optimizer=USUAL_OPTIMIZER if training else None)
    if orders.ties or orders.together:
        shared = counted(len(orders.ties) + len(orders.together), "group")
        yield f"{shared} of layers share weights or values that are no tensors: the file has each layer alone"
    if not layers.graph.is_divisible:
        why = "mixes samples" if layers.graph.mixes else "fixes its batch"
        yield f"the model {why}, so that a step has one micro-batch: plans of the file divide the batch"
    if any(input_bytes(layers)):
        yield "the file has no time of loading the model's inputs, nor limits of what all units read together"
    if times.fractions(BETA) is not None:
        yield "layers have a measured beta of their own: the file has that of the device type"
    if times.precision != FULL:
        yield f"the file does not name the precision {times.precision}, for which its times are"
    unmeasured = [
        f"{count} on {name!r}"
        for t, name in enumerate(names)
        if (count := sum(not times.measured_batches(i, t) for i in range(len(costs))))
    ]
    if unmeasured:
        yield f"times that were not measured are estimated, of layers: {', '.join(unmeasured)}"
