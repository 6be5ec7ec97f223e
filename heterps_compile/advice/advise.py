"""How many GPUs, how many servers and which batch, by the lemmas, and what the fuller model says beside each.

The fuller model is the one of every plan: so many replicas of the whole model, their step simulated with micro-batches,
launches, memory and the ring that sums gradients. Where the two differ, the step is what a run is planned by.

Left out: pipelines, other devices and prices (``compile`` searches those).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.load import as_pool
from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.problem import Placement
from heterps_compile.cost.provisioners import parameter_servers
from heterps_compile.cost.served_tables import with_gradients
from heterps_compile.cost.server_cost import server_cost
from heterps_compile.errors import InfeasibleError, InputError
from heterps_compile.escape import printable
from heterps_compile.offers.as_device import data_sheet
from heterps_compile.plan.request import DEFAULT_CLUSTER
from heterps_compile.units import format_bytes, plain_number

from .lemmas import ceiling, gpus_for, speed_up
from .model_work import BatchWork, ModelWork, model_work

MOST_GPUS = 4096
MOST_BATCH = 1 << 16
_NEARLY = 0.95
"""A batch whose samples/s are at least this part of the best's is as good."""

_GAIN = 1.01
"""A batch that trains less than this times the samples/s of the one before ends the sweep."""


@dataclass(frozen=True, slots=True)
class ServerAdvice:
    """Parameter servers.

    Attributes:
        bytes_per_s: B_ps, of one core.
        round_s: T_C, what a worker computes for its part of a batch.
        lemma: N_ps.
        fuller: What a plan with as many replicas rents, for what a batch touches of embeddings.
        fuller_round_s: What a batch of that plan takes in the steady state, its sums of gradients included.
    """

    bytes_per_s: float
    round_s: float
    lemma: int
    fuller: int
    fuller_round_s: float


@dataclass(frozen=True, slots=True)
class BatchAdvice:
    """One batch on one GPU.

    Attributes:
        work: What it asks.
        fits: Whether it has room in memory, without workspaces.
        room_bytes: What memory leaves for workspaces.
        gpus: What the speed-up that is wanted takes by the lemma at this batch; None where none do.
    """

    work: BatchWork
    fits: bool
    room_bytes: float
    gpus: int | None

    @property
    def samples_per_s(self) -> float:
        """Return what one GPU trains."""
        return self.work.batch / self.work.computing_s

    @property
    def with_workspace(self) -> int:
        """Return how many convolutions have room for the largest workspace they may ask for."""
        return sum(size <= self.room_bytes for size in self.work.workspaces_bytes)


@dataclass(frozen=True, slots=True)
class Advice:
    """What is advised.

    Attributes:
        gpu: The device type.
        wanted: The speed-up that is asked for.
        model: On units of that type.
        work: The batch that is asked for.
        gpus: What the lemma says; None where the ceiling is in the way.
        fuller_gpus: The fewest whose simulated step has the speed-up; None where none has.
        fuller_best: The number of GPUs with the shortest step that was simulated, where none has it.
        servers: None where the ceiling is in the way, or for one GPU.
        batches: The sweep, ascending; one where the model fixes its batch.
        notes: What else is to be known.
    """

    gpu: DeviceType
    wanted: float
    model: ModelWork
    work: BatchWork
    gpus: int | None
    fuller_gpus: int | None
    fuller_best: int
    servers: ServerAdvice | None
    batches: tuple[BatchAdvice, ...]
    notes: tuple[str, ...]

    @property
    def unit(self) -> str:
        """Return what one unit of the type is called."""
        return _unit(self.gpu)

    @property
    def units(self) -> str:
        """Return what several of them are called."""
        return f"{self.unit}s"

    @property
    def ceiling(self) -> float:
        """Return the lemma's ceiling."""
        return ceiling(self.work.overhead)

    def lemma_speed_up(self, gpus: int) -> float:
        """Return the lemma's speed-up of so many GPUs."""
        return speed_up(gpus, self.work.overhead)

    def fuller_speed_up(self, gpus: int) -> float:
        """Return the simulated step of one GPU over that of so many; nan where one has no room for the model."""
        one_s = self.model.step_s(1)
        return one_s / self.model.step_s(gpus) if math.isfinite(one_s) else math.nan

    @property
    def best_batch(self) -> BatchAdvice | None:
        """Return the smallest batch that is as good as the one with the most samples/s; None where none fits."""
        fitting = [each for each in self.batches if each.fits]
        most = max((each.samples_per_s for each in fitting), default=0.0)
        return next((each for each in fitting if each.samples_per_s >= _NEARLY * most), None)


def advise(
    model: Any,
    example_inputs: tuple[Any, ...] = (),
    *,
    gpu: str,
    speed_up: float,
    cluster: str | Path | Cluster | None = None,
    **asked: Any,
) -> Advice:
    """Advise on training a model with data parallelism.

    Args:
        model: As :func:`heterps_compile.compile` takes it.
        example_inputs: Of a PyTorch model.
        gpu: A device type of the pool; without one, a GPU that has a data sheet.
        speed_up: That is wanted over one GPU, above 1.
        cluster: The pool whose type, network and parameter servers count.
        asked: ``batch``, ``shapes``, ``precision``, ``optimizer``, ``profile`` and other arguments of
            :func:`heterps_compile.compile` that tell the model.

    Raises:
        UnknownNameError: where nobody knows the GPU.
        InputError: where the speed-up is none, or the model's batch cannot be divided.
        InfeasibleError: where not one sample fits into the memory of a GPU.
    """
    if not (isinstance(speed_up, int | float) and math.isfinite(speed_up) and speed_up > 1):
        raise InputError(f"a speed-up of {speed_up!r} is none; ask for one above 1, such as 8")
    device, pool = _pool(gpu, cluster)
    unit = _unit(device)
    read = model_work(model, example_inputs, pool, **asked)
    graph = read.draft.graph
    if not graph.is_divisible:
        another = f"name another, at which it is opened if samples do not mix (--batch {max(256, 2 * graph.batch)})"
        raise InputError(
            f"{printable(graph.name)!r}: {graph.undivided}, so that {unit}s have nothing to divide; "
            f"{'take a model whose samples are independent' if graph.mixes else another}"
        )
    work = read.at(graph.batch)
    batches = tuple(_sweep(read, work.batch, float(speed_up)))
    if not any(each.fits for each in batches):
        least = batches[0].work
        raise InfeasibleError(
            f"a batch of {least.batch} needs {format_bytes(least.memory_bytes)} on {gpu!r}, which has "
            f"{format_bytes(device.memory_bytes)}; name a {unit} with more memory, or an optimizer that "
            "keeps less (--optimizer sgd)"
        )
    gpus = gpus_for(speed_up, work.overhead)
    fuller, best = _fuller_gpus(read, speed_up)
    servers = None if gpus is None or gpus == 1 else _servers(read, work, gpus)
    notes = tuple(_notes(read, work, unit))
    return Advice(device, float(speed_up), read, work, gpus, fuller, best, servers, batches, notes)


def _unit(device: DeviceType) -> str:
    return "GPU" if device.kind == "gpu" else "unit"


def _pool(gpu: str, cluster: str | Path | Cluster | None) -> tuple[DeviceType, Cluster]:
    """Return the type, and a pool of many of it alone; servers are those of the default pool where none is named."""
    named = as_pool(DEFAULT_CLUSTER if cluster is None else cluster)
    device = data_sheet(gpu) if cluster is None else named.device_type(gpu)
    units = MOST_GPUS // device.units_per_machine * device.units_per_machine
    many = replace(device, max_units=units, whole_machines=False)
    return device, replace(
        named, device_types=(many,), links=tuple(link for link in named.links if set(link.between) == {gpu})
    )


def _fuller_gpus(model: ModelWork, wanted: float) -> tuple[int | None, int]:
    """Return the fewest GPUs whose simulated step is short enough, None where there are none, and the best of all.

    Where one GPU has no room for a batch undivided, its step is one with micro-batches, as for any number.
    """
    one_s = model.step_s(1)
    best, best_s = 1, one_s
    for count in _counts(model.draft.graph.batch):
        step_s = model.step_s(count)
        if step_s < best_s:
            best, best_s = count, step_s
        if step_s <= one_s / wanted:
            return count, best
    return None, best


def _counts(batch: int) -> Iterator[int]:
    """Yield numbers of GPUs that may have a step of their own: all up to 64, then those that divide the batch."""
    most = min(batch, MOST_GPUS)
    yield from (count for count in range(1, most + 1) if count <= 64 or batch % count == 0)


def _servers(model: ModelWork, work: BatchWork, gpus: int) -> ServerAdvice | None:
    draft, server = model.draft, model.draft.cluster.parameter_server
    if server is None:
        return None
    round_s = work.divided_s / gpus + work.again_s + work.serial_s
    priced = detail(draft.problem, Placement((0,) * draft.problem.layer_count), np.array([float(gpus)]))
    costs = with_gradients(draft.layers, draft.costs, makes_sparse=draft.makes_sparse, by_servers=True)
    fuller = server_cost(draft.layers, costs, server).cores(priced.stages)
    lemma = parameter_servers(model.weights_bytes, gpus, server.bytes_per_s, round_s)
    return ServerAdvice(server.bytes_per_s, round_s, lemma, fuller, max(stage.time_s for stage in priced.stages))


def _sweep(model: ModelWork, asked: int, wanted: float) -> Iterator[BatchAdvice]:
    """Yield powers of two until one has no room or adds nothing to the samples/s, and the batch that is asked for."""
    memory_bytes = model.draft.cluster.device_types[0].memory_bytes
    before, is_over = 0.0, False
    for size in sorted({2**power for power in range(MOST_BATCH.bit_length())} | {asked}):
        if is_over and size != asked:
            continue
        work = model.at(size)
        room_bytes = memory_bytes - work.memory_bytes
        now = BatchAdvice(work, room_bytes >= 0, room_bytes, gpus_for(wanted, work.overhead))
        yield now
        is_over = is_over or not now.fits or now.samples_per_s < before * _GAIN
        before = now.samples_per_s


def _notes(model: ModelWork, work: BatchWork, unit: str) -> Iterator[str]:
    if work.input_s > work.computing_s:
        times = plain_number(round(work.input_s / work.computing_s, 2))
        yield (
            f"reading a batch takes one {unit} {times} times as long as computing it: the lemmas leave that out, the "
            "simulated step does not"
        )
    yield from model.draft.times.notes()
    pool = model.draft.cluster
    if pool.parameter_server is None:
        yield f"the pool {pool.name!r} has no parameter servers, so none are counted; add a [parameter_server] to it"
