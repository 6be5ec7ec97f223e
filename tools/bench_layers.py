"""Hold estimates of layers against measured ones: `python tools/bench_layers.py [--pool FILE] [--mode training]`.

The layers of ten models are measured as `profile` measures them, and estimated by the pool `local` and by a calibrated
one (`heterps-compile calibrate`; without --pool it is made first). The errors of a layer, and of a half's share of its
model's time, are printed signed, with quartiles, for every kind. The rates were fitted to none of these models.

`--cold` prints instead what the first layer of each model, and one in its middle, take in a forward: once more on the
same values; right after the layer before; after a pass over the whole model; and after such a pass and the same layer
on other inputs.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import clock_models
import numpy as np
import torch

from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.cluster.devices import DeviceType
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import LayerCost, layer_costs
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.precision import FULL
from heterps_compile.cost.roofline import layer_phases
from heterps_compile.ir.graph import COLD_START, Graph
from heterps_compile.ir.partition import cut_graph
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.request import MODES
from heterps_compile.profiling.calibration.calibrate import calibrate_unit
from heterps_compile.profiling.calibration.pool_entry import pool_text
from heterps_compile.profiling.inputs import inputs_in_turn
from heterps_compile.profiling.layer_passes import Passes
from heterps_compile.profiling.profile_model import Settings, profile_model
from heterps_compile.runtime.allocator import keep_freed_memory
from heterps_compile.runtime.pipeline.autocast import Autocast

_BATCHES = (2, 16)

MODELS = ("ctrdnn", "matchnet", "mlp", "resnet", "bert", "gpt2", "mobile", "tagger", "mixer", "dense")
LOOKED_AT = ("ctrdnn", "resnet", "bert", "mobile", "tagger", "gpt2", "matchnet")
"""Of these, whose errors were looked at while the law of ``calibrate`` and its suite were made; the others judge."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A layer of a model: its place, its kind, its work, what it took."""

    model: str
    place: int
    kind: str
    cost: LayerCost
    dtype: str
    time_s: float


def measured(name: str, mode: str) -> Iterator[Measured]:
    """Yield the layers of a model at every batch."""
    training = mode == MODES[1]

    def read(batch: int | None) -> Graph:
        return clock_models.read(name, training=training, batch=batch)

    settings = Settings(
        mode=mode,
        batches=_BATCHES,
        repeats=10,
        least_s=0.3,
        backend="torch",
        with_replicas=False,
        with_link=False,
        with_crowding=False,
    )
    (profile,) = profile_model(read, settings).devices
    for batch in _BATCHES:
        layers = group_nodes(read(batch))
        for i, (key, cost) in enumerate(zip(layer_keys(layers), layer_costs(layers), strict=True)):
            phases = profile.by_key[key].phases(batch, training=mode == MODES[1])
            if phases.whole_s > 0:
                yield Measured(
                    f"{name} at {batch}", i, str(layers.layers[i].kind), cost, layers.dtype(i), phases.whole_s
                )


def estimated_s(device: DeviceType, layer: Measured, mode: str) -> float:
    """Return what a layer is estimated to take."""
    return layer_phases(layer.cost, device, layer.dtype, training=mode == MODES[1]).whole_s


def print_cold(mode: str) -> None:
    """Print what layers take after themselves, after the layer before, and after a pass over their model."""
    keep_freed_memory()
    torch.set_num_threads(1)
    print("| model | layer | once more | after the layer before | after a pass | after a pass and the same layer |")
    print("|---|---|---|---|---|---|")
    with torch.set_grad_enabled(mode == MODES[1]):
        for name in MODELS:
            model = _Cold(name, training=mode == MODES[1])
            for place in (0, len(model.stages) // 2):
                shown = " | ".join(f"{1e6 * model.forward_s(place, before):.0f} us" for before in BEFORE)
                print(f"| {name} | {place}, {model.kinds[place]} | {shown} |", flush=True)


ITSELF, NOTHING, PASS, PASS_AND_LAYER = BEFORE = ("itself", "nothing", "a pass", "a pass and the layer")


class _Cold:
    """A model as a chain of its layers, and as one stage."""

    def __init__(self, name: str, *, training: bool) -> None:
        graph = clock_models.read(name, training=training, batch=_BATCHES[-1])
        backend, layers = TorchBackend(), group_nodes(graph)
        cuts = cut_graph(graph, [layer.nodes for layer in layers.layers]), cut_graph(graph, [range(len(graph.nodes))])
        self.kinds = [str(layer.kind) for layer in layers.layers]
        self.cuts, self.stages = cuts[0].stages, backend.build(graph, cuts[0])
        autocast = Autocast(FULL, torch.device("cpu"))
        self.whole = Passes(graph, cuts[1], backend.build(graph, cuts[1]), time.thread_time, autocast)
        self.inputs, self.training = inputs_in_turn(backend, graph, "cpu"), training

    def values(self, place: int, number: int) -> list[Any]:
        """Return what enters a layer, by a forward over the layers before it."""
        live = dict(self.inputs[number % len(self.inputs)])
        for cut, stage in zip(self.cuts[:place], self.stages[:place], strict=True):
            made = [
                value.detach() if hasattr(value, "detach") else value for value in stage(*map(live.get, cut.inputs))
            ]
            live.update(zip(cut.outputs, made, strict=True))
        return [live[name] for name in self.cuts[place].inputs]

    def forward_s(self, place: int, before: str, repeats: int = 40) -> float:
        """Return the median time of a layer's forward, by the thread's clock."""
        took_s = []
        for repeat in range(repeats):
            others, own = self.values(place, repeat + 1), self.values(place, repeat)
            if before in (PASS, PASS_AND_LAYER):
                given = self.inputs[(repeat + 3) % len(self.inputs)]
                self.whole.train(given, grads_at_hand=True) if self.training else self.whole.infer(given)
            if before in (ITSELF, PASS_AND_LAYER):
                self.stages[place](*(own if before == ITSELF else others))
            began_s = time.thread_time()
            self.stages[place](*own)
            took_s.append(time.thread_time() - began_s)
        return float(np.median(took_s[repeats // 8 :]))


def print_errors(what: str, errors: list[float]) -> None:
    """Print signed quartiles, and the median and the largest without their signs."""
    low, middle, high = np.quantile(errors, (0.25, 0.5, 0.75))
    sizes = np.abs(errors)
    print(
        f"{what:34} {len(errors):4} {low:+8.1%} {middle:+8.1%} {high:+8.1%} {np.median(sizes):8.1%} {max(sizes):9.1%}",
        flush=True,
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pool", help="a calibrated pool; made first where none is given")
    parser.add_argument("--cold", action="store_true", help="what layers take after a pass")
    parser.add_argument("--mode", choices=MODES, default=MODES[1])
    asked = parser.parse_args()
    if asked.cold:
        print_cold(asked.mode)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(asked.pool or Path(folder) / "calibrated.toml")
        if asked.pool is None:
            print("calibrating", flush=True)
            path.write_text(pool_text(calibrate_unit(Settings(repeats=10, least_s=0.2)), "core"))
        calibrated = load_cluster(path).device_types[0]
    layers = [layer for name in MODELS for layer in measured(name, asked.mode)]
    print(f"{'predicted over measured':34} {'n':>4} {'25 %':>8} {'50 %':>8} {'75 %':>8} {'|50 %|':>8} {'largest':>9}")
    warm = {kind: rate for kind, rate in calibrated.rates.items() if kind != COLD_START}
    for title, device in (
        ("data sheet", load_cluster("local").device_types[0]),
        ("without cold starts", replace(calibrated, rates=MappingProxyType(warm))),
        ("calibrated", calibrated),
    ):
        times_s = [estimated_s(device, layer, asked.mode) for layer in layers]
        pairs = list(zip(layers, times_s, strict=True))
        print_errors(f"{title}: layers", [time_s / layer.time_s - 1 for layer, time_s in pairs])
        print_errors(
            f"{title}: first layers", [time_s / layer.time_s - 1 for layer, time_s in pairs if layer.place == 0]
        )
        judged = [time_s / layer.time_s - 1 for layer, time_s in pairs if layer.model.split()[0] not in LOOKED_AT]
        print_errors(f"{title}: layers, judged models", judged)
        for kind in sorted({layer.kind for layer in layers}):
            print_errors(f"  {kind}", [time_s / layer.time_s - 1 for layer, time_s in pairs if layer.kind == kind])
        models = sorted({layer.model for layer in layers})
        sums = {
            model: (
                sum(time_s for layer, time_s in pairs if layer.model == model),
                sum(layer.time_s for layer in layers if layer.model == model),
            )
            for model in models
        }
        print_errors(f"{title}: models", [estimate / truth - 1 for estimate, truth in sums.values()])
        halves = []
        for model in models:
            own = [(layer.time_s, time_s) for layer, time_s in pairs if layer.model == model]
            half = len(own) // 2
            share = sum(t for t, _ in own[:half]) / sums[model][1]
            halves.append(sum(t for _, t in own[:half]) / sums[model][0] - share)
        print_errors(f"{title}: share of the first half", halves)


if __name__ == "__main__":
    main()
