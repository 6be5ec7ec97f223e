"""What a model asks of one GPU for a batch, split into what several GPUs divide and what each pays whole.

All of it is of the cost model that every plan uses, with measured times where a profile has them::

    T                 forward and backward of all layers on one unit
    again             2 T(half a batch) - T(a batch)      launches and weights read: dividing does not shrink it
    serial            sum over layers of (1 - alpha) T_l   what the device type's alpha does not let replicas divide
    gradients         2 S / bandwidth                      summed by ever more replicas
    C = T - again - serial          O = again + serial + gradients      C 0 at least

Another batch than the one that the model was read at is that one in proportion, as micro-batches are.

Left out: reading inputs, which overlaps with computation; it is told where it takes longer.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_compile.api import open_draft
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.gradients import ring_bytes
from heterps_compile.cost.layer_cost import LayerCost
from heterps_compile.cost.memory import stage_memory
from heterps_compile.cost.problem import Placement
from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import ITEM_BITS, OpKind
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.drafts import Posed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.placement.steps.step_plans import simulated_s, with_units
from heterps_compile.passes.step_orders import steps_of
from heterps_compile.schedule.shortest_step import TRAINING_SCHEDULES
from heterps_compile.schedule.step_problem import StepProblem
from heterps_compile.sync_rules.network import endless_s


@dataclass(frozen=True, slots=True)
class BatchWork:
    """A batch on one unit.

    Attributes:
        batch: Samples.
        divided_s: C, what replicas divide.
        again_s, serial_s, gradients_s: What each pays whole; their sum is O.
        input_s: What reading a batch takes, beside computing.
        memory_bytes: That a unit needs for it undivided, without workspaces.
        workspaces_bytes: That explicit matrix products of convolutions would take, of each.
    """

    batch: int
    divided_s: float
    again_s: float
    serial_s: float
    gradients_s: float
    input_s: float
    memory_bytes: int
    workspaces_bytes: tuple[int, ...]

    @property
    def overhead_s(self) -> float:
        """Return O."""
        return self.again_s + self.serial_s + self.gradients_s

    @property
    def overhead(self) -> float:
        """Return R; inf where nothing is divided, as of a batch that only starts operations."""
        return self.overhead_s / self.divided_s if self.divided_s > 0 else math.inf

    @property
    def computing_s(self) -> float:
        """Return T."""
        return self.divided_s + self.again_s + self.serial_s


@dataclass(frozen=True, slots=True, eq=False)
class ModelWork:
    """A model on units of one type.

    Attributes:
        draft: The model, posed on a pool of that type alone.
        steps: What steps of its plans are made of, at the draft's batch.
        weights_bytes: Of all parameters.
    """

    draft: Posed
    steps: StepProblem
    weights_bytes: int

    def at(self, batch: int) -> BatchWork:
        """Return a batch on one unit: the draft's in proportion, what does not grow with it apart."""
        draft, problem, part = self.draft, self.draft.problem, batch / self.draft.graph.batch
        each_s = np.array([draft.times.phases(i, 0, 1 / part).whole_s for i in range(problem.layer_count)])
        half_s = sum(draft.times.phases(i, 0, 2 / part).whole_s for i in range(problem.layer_count))
        own = problem.layer_compute_parallel
        alphas = np.full(problem.layer_count, problem.compute_parallel[0]) if own is None else own[:, 0]
        whole_s, serial_s = float(each_s.sum()), float(((1 - alphas) * each_s).sum())
        again_s = min(max(0.0, 2 * half_s - whole_s), whole_s - serial_s)
        costs = [_looking_up(cost, part) for cost in draft.costs]
        memory = stage_memory(
            draft.layers,
            costs,
            0,
            problem.layer_count,
            optimizer=draft.request.trains_with,
            recompute=draft.recompute,
        )
        grown = replace(memory, activations_bytes=round(memory.activations_bytes * part))
        gradients = sum(ring_bytes(draft.layers, i, cost) for i, cost in enumerate(costs))
        return BatchWork(
            batch,
            max(0.0, whole_s - serial_s - again_s),
            again_s,
            serial_s,
            endless_s(gradients, self.steps.networks[0].seconds_per_byte),
            float(problem.data_s[:, 0].sum()) * part,
            grown.total_bytes,
            tuple(round(size * part) for size in _workspaces(draft.layers)),
        )

    def step_s(self, replicas: int) -> float:
        """Return the simulated step of a plan with so many replicas of the whole model; inf where it has no room.

        It is the shortest over schedules and numbers of micro-batches.
        """
        of, placement = self.steps, Placement((0,) * self.draft.problem.layer_count)
        plans = with_units(of, placement, [replicas], of.counts(replicas))
        return min(simulated_s(of, plan, name) for plan in plans for name in TRAINING_SCHEDULES)


def _looking_up(cost: LayerCost, part: float) -> LayerCost:
    """Return the work of a layer that looks up so much of the rows; gradients that are whole stay as they are."""
    looked_up = tuple(replace(each, rows=round(each.rows * part)) for each in cost.looked_up)
    return replace(cost, looked_up=looked_up, pulled_bytes=round(cost.pulled_bytes * part))


def model_work(model: Any, example_inputs: tuple[Any, ...], pool: Cluster, **asked: Any) -> ModelWork:
    """Read a model and pose it on the one type of a pool; arguments are those of ``compile``.

    Raises:
        InputError: where the type cannot run a layer.
        HeterpsError: where the model cannot be read.
    """
    draft = run_to(open_draft(model, example_inputs, cluster=pool, mode="training", **asked), Posed)
    problem, device = draft.problem, pool.device_types[0]
    unable = np.flatnonzero(~np.isfinite(problem.compute_s[:, 0]))
    if len(unable):
        raise InputError(
            f"{device.name!r} does not run layer {printable(problem.layer_names[unable[0]])!r}; name another --gpu"
        )
    stored = {each.storage: each.size_bytes for each in draft.graph.parameters.values()}
    return ModelWork(draft, steps_of(draft), sum(stored.values()))


def _workspaces(layers: LayerGraph) -> list[int]:
    """Return the bytes of the matrix that every convolution multiplies its weight with, where it is written out."""
    graph, found = layers.graph, []
    for node in graph.nodes:
        weights = [graph.parameters[name] for name in node.inputs if name in graph.parameters]
        weight = next((each for each in weights if len(each.shape) > 2), None)
        if node.kind is not OpKind.CONV or weight is None:
            continue
        made, read = node.outputs[0], next((name for name in node.inputs if name in graph.values), None)
        # a transposed convolution has its columns where it reads
        for value in (made, read):
            if value is not None and len(graph.values[value].shape) > 1:
                shape = graph.values[value].shape
                if shape[1] == weight.shape[0]:
                    columns = graph.numel(value) // max(1, weight.shape[0])
                    rows = int(np.prod(weight.shape[1:]))
                    found.append(rows * columns * ITEM_BITS[weight.dtype] // 8)
                    break
    return found
