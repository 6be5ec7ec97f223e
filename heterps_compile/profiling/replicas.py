"""Measure how far replicas shorten a step, and each layer of it: k processes at once, each with a k-th of the batch.

The times fit Amdahl's law; what replicas divide is alpha of the cost model, of the whole model and of every layer.
Processes share caches and memory as replicas on one machine do, and a k-th of a batch pays the fixed part of every
operation in full: both are in alpha.

The model is written as one stage and as a stage for every layer into a temporary folder, which every process reads.
They run in turn. Calling a layer costs what a stage pays once, and as much with any part of the batch, so that it would
look like a part that no replicas divide: the layers are corrected to the whole, round by round, as in ``chain.py``.

Processes that are started anew differ by more than their rounds scatter: where memory lies, which cores they get. So
all numbers of replicas are run twice, and half of what the two fits are apart is part of the error.

Left out: replicas on machines of their own; GPUs.
"""

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from heterps_compile.backends.contract import Backend
from heterps_compile.cost.precision import FULL
from heterps_compile.cost.profile import Fitted, Timing
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.partition import cut_graph

from .chain import call_time, correct
from .fit import fit_parallel_fraction
from .measuring_processes import NotMeasured, started, tell

_TIMEOUT_S = 240
_LAYER_TIMEOUT_S = 2.0  # for reading a layer and running it
_NEAR = 48
_SWEEPS = 2
_NOT_MEASURED = NotMeasured("replicas", "--no-replicas")
ROUNDS = 4
"""Of every process; all numbers of replicas are run :data:`_SWEEPS` times."""

INPUTS = 4
"""Of every size of batch; passes take them in turn, so that rows of a table are not in the caches already."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What is run at once.

    Attributes:
        most: Replicas; they are 1, 2, 3, 4, and then twice as many.
        threads: Of each.
        training: Forward and backward, else forward alone.
        precision: In which forwards compute.
    """

    most: int
    threads: int = 1
    training: bool = False
    precision: str = FULL

    def counts(self, batch: int) -> list[int]:
        """Return the numbers of replicas that a batch can be divided among."""
        doubled = (2**power for power in range(3, self.most.bit_length()))
        return [k for k in (1, 2, 3, 4, *doubled) if k <= self.most and batch % k == 0]

    def batch(self, largest: int) -> int:
        """Return the batch, of those little smaller than the largest, that the most numbers of replicas divide."""
        return max(range(max(1, largest - _NEAR), largest + 1), key=lambda batch: (len(self.counts(batch)), batch))


@dataclass(frozen=True, slots=True)
class ReplicaTimes:
    """What was measured, in every round.

    Attributes:
        whole_s: The slowest replica's time of the whole model, by number of replicas.
        layers_s: Of every layer the replicas' mean time, corrected to the whole; likewise.
    """

    whole_s: Mapping[int, Sequence[float]]
    layers_s: Sequence[Mapping[int, Sequence[float]]]

    def of_layers(self, layers: Sequence[int]) -> Fitted | None:
        """Return alpha of layers that are alike, given by their places."""
        return _fitted(
            {
                k: [fmean(times) for times in zip(*(self.layers_s[i][k] for i in layers), strict=True)]
                for k in self.whole_s
            }
        )

    def of_whole(self) -> Fitted | None:
        """Return alpha of the model."""
        return _fitted(self.whole_s)


def _fitted(times_s: Mapping[int, Sequence[float]]) -> Fitted | None:
    """Return the fraction of all rounds, its error that of the rounds and of their halves, which are of two sweeps."""
    found = fit_parallel_fraction(times_s)
    ways = ((0, 1), (1, 2))
    halves = [
        fit_parallel_fraction({k: own[len(own) * a // 2 : len(own) * b // 2] for k, own in times_s.items()})
        for a, b in ways
    ]
    values = [half.value if half.unclipped is None else half.unclipped for half in halves if half is not None]
    if found is None or len(values) < len(ways):
        return found
    return replace(found, error=math.hypot(found.error, (max(values) - min(values)) / 2))


def measure_replicas(
    read: Callable[[int | None], Graph], backend: Backend, batch: int, layers: Sequence[Sequence[int]], asked: Replicas
) -> ReplicaTimes | None:
    """Measure replicas; None where there is one core's worth of units, or no batch that they divide.

    Args:
        read: Gives the graph at a batch.
        backend: What runs it.
        batch: That replicas share.
        layers: Nodes of every layer; none where the whole alone is measured.
        asked: What is run at once.

    Raises:
        RunError: where a process fails.
    """
    counts = asked.counts(batch)
    if len(counts) < 2:
        return None
    with tempfile.TemporaryDirectory(prefix="heterps-replicas-") as name:
        folder = Path(name)
        write_task(folder, read, backend, (batch, counts), layers, asked=asked)
        limit_s = _TIMEOUT_S + _LAYER_TIMEOUT_S * len(layers)
        sweeps = [{count: _run(folder, count, asked.threads, limit_s) for count in counts} for _ in range(_SWEEPS)]
    return replica_times(
        {
            count: [[*chain(*of_replica)] for of_replica in zip(*(sweep[count] for sweep in sweeps), strict=True)]
            for count in counts
        }
    )


def write_task(
    folder: Path,
    read: Callable[[int | None], Graph],
    backend: Backend,
    batch: tuple[int, Sequence[int]],
    layers: Sequence[Sequence[int]],
    *,
    asked: Replicas,
) -> None:
    """Write what processes run: the model as one stage and layer by layer, and their inputs.

    Args:
        folder: Into which.
        read: Gives the graph at a batch.
        backend: What runs it.
        batch: Samples, and among how many replicas they are divided; inputs are of every part.
        layers: Nodes of every layer; none where the whole alone is run.
        asked: What is run.
    """
    size, counts = batch
    graph = read(size)
    task: dict[str, Any] = {"backend": backend.name, "inputs": graph.inputs, "outputs": graph.outputs}
    task |= {"training": asked.training, "threads": asked.threads, "precision": asked.precision}
    for part, groups in (("whole", [range(len(graph.nodes))]), ("layers", layers)):
        task[part] = []
        if not groups:
            continue
        partition = cut_graph(graph, groups)
        (folder / part).mkdir()
        files = backend.write(graph, backend.build(graph, partition), partition.stages, folder / part)
        task[part] = [
            {"files": own, "inputs": cut.inputs, "outputs": cut.outputs}
            for own, cut in zip(files, partition.stages, strict=True)
        ]
    for count in counts:
        own_graph = read(size // count)
        for place in range(INPUTS):
            values = backend.example_inputs(own_graph, place)
            _write_inputs(values, graph.inputs, folder / f"inputs_{count}_{place}")
    (folder / "task.json").write_text(json.dumps(task), "ascii")


def replica_times(rounds: Mapping[int, Sequence[Sequence[Sequence[float]]]]) -> ReplicaTimes:
    """Return the times of layers, corrected to the whole.

    Args:
        rounds: By number of replicas: of every replica, in every round, the times of the layers and of the whole.
    """
    whole_s: dict[int, list[float]] = {}
    layers_s: list[dict[int, list[float]]] = []
    calls: list[float] = []
    for count in sorted(rounds, reverse=True):  # with the most replicas batches are the smallest, and calls weigh most
        by_round = list(zip(*rounds[count], strict=True))
        whole_s[count] = [max(replica[-1] for replica in replicas) for replicas in by_round]
        found = []
        for at, replicas in enumerate(by_round):
            layers = [Timing(fmean(times), 0.0) for times in list(zip(*replicas, strict=True))[:-1]]
            own_s = fmean(replica[-1] for replica in replicas)
            call_s = call_time(layers, own_s, calls[at] if calls else math.inf)
            corrected = correct(layers, own_s, call_s)
            found.append(([timing.median_s for timing in corrected], call_s))
        calls = calls or [call_s for _, call_s in found]
        for i in range(len(found[0][0])):
            if len(layers_s) <= i:
                layers_s.append({})
            layers_s[i][count] = [times[i] for times, _ in found]
    return ReplicaTimes(whole_s, layers_s)


def _run(folder: Path, count: int, threads: int, limit_s: float) -> list[list[list[float]]]:
    """Run so many replicas at once; return what each printed."""
    module = "heterps_compile.profiling.replica_process"
    with started([module, str(folder), str(count)], count, threads, limit_s, _NOT_MEASURED) as processes:
        for process in processes:
            tell(process, "go")
        return [json.loads(process.communicate()[0]) for process in processes]


def _write_inputs(values: Mapping[str, Any], names: tuple[str, ...], path: Path) -> None:
    """Write inputs by their place: tensors as safetensors, numbers as JSON."""
    import torch  # noqa: PLC0415 - safetensors' own format for it
    from safetensors.torch import save_file  # noqa: PLC0415

    from heterps_compile.backends.borders import as_tensor  # noqa: PLC0415

    numbers: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    for place, name in enumerate(names):
        value = values[name]
        if value is None or isinstance(value, (bool, int, float)):
            numbers[str(place)] = value
        else:
            tensors[str(place)] = as_tensor(value, name).contiguous()
    save_file(tensors, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(numbers), "ascii")
