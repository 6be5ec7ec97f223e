"""How far off throughput with k replicas is, by one alpha and by one a layer: `python tools/bench_fractions.py`.

Each model runs in 1, 2, ... processes at once, layer by layer: that is what `profile` fits alpha to, of the whole and
of every layer. Then it runs again, in other processes, as three stages of about a third of its time each, which no fit
has seen; what the two sets of fractions promise of each stage's throughput with k replicas is held against that. A
third run, of the stages again, says how far two measurements of one thing are apart: an error below that is noise.

Errors are signed, predicted over measured, with quartiles. `--realtime` (root only) lets the benchmark go before all
else, on a machine that does other things; on two cores there is one k, 2.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import clock_models
import numpy as np
from bench_layers import print_errors
from clock_ranks import first

from heterps_compile.backends.find import find_backend
from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.profile import Fitted
from heterps_compile.ir.graph import Graph
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.plan.request import MODES
from heterps_compile.profiling.replicas import Replicas, ReplicaTimes, measure_replicas

_STAGES = 3
_MODELS = ("ctrdnn", "matchnet", "mlp", "resnet", "mobile", "mixer", "tagger", "dense")


@dataclass(frozen=True, slots=True)
class Row:
    """A stage with k replicas: its time over that with one, measured twice, and by the two sets of fractions."""

    units: int
    measured: float
    again: float
    by_type: float
    by_layer: float


def rows(name: str, batch: int, mode: str, most: int) -> list[Row]:
    """Measure a model, and say what its fractions promise of its stages."""

    def read(at: int | None) -> Graph:
        return clock_models.read(name, training=mode == MODES[1], batch=at)

    def measure(groups: Sequence[Sequence[int]]) -> ReplicaTimes:
        found = measure_replicas(read, find_backend("torch"), batch, groups, asked)
        if found is None:
            raise SystemExit("one core's worth of units tells nothing of replicas")
        return found

    asked = Replicas(most, training=mode == MODES[1])
    layers = [layer.nodes for layer in group_nodes(read(batch)).layers]
    fits = measure(layers)
    once_s = [median(times[1]) for times in fits.layers_s]
    whole, own = fits.of_whole(), [fits.of_layers([i]) for i in range(len(layers))]
    if whole is None:
        raise SystemExit(f"{name} is too short to time")
    print(f"{name} at {batch}: alpha {_shown(whole)}; of layers {', '.join(_shown(f) for f in own if f)}", flush=True)
    alphas = [f.value if f is not None and f.differs_from(whole.value) else whole.value for f in own]
    cuts = [0, *_thirds(once_s), len(layers)]
    groups = [[node for layer in layers[a:b] for node in layer] for a, b in pairwise(cuts)]
    stages, again = measure(groups), measure(groups)
    found = []
    for place, (a, b) in enumerate(pairwise(cuts)):
        mean = float(np.average(alphas[a:b], weights=once_s[a:b]))
        for k in sorted(fits.whole_s)[1:]:
            ratios = [_ratio(times.layers_s[place], k) for times in (stages, again)]
            found.append(Row(k, *ratios, *(1 - alpha + alpha / k for alpha in (whole.value, mean))))
    return found


def _thirds(once_s: Sequence[float]) -> list[int]:
    """Return the layers at which the second and the third stage begin, each stage with one layer at least."""
    passed = np.cumsum(once_s) / sum(once_s)
    cuts: list[int] = []
    for part in range(1, _STAGES):
        at = int(np.searchsorted(passed, part / _STAGES)) + 1
        cuts.append(min(max(at, cuts[-1] + 1 if cuts else 1), len(once_s) - _STAGES + part))
    return cuts


def _ratio(times_s: Mapping[int, Sequence[float]], units: int) -> float:
    return median(times_s[units]) / median(times_s[1])


def _shown(fitted: Fitted) -> str:
    held = "" if fitted.unclipped is None else f" (fitted {fitted.unclipped:.2f})"
    return f"{fitted.value:.2f} ±{fitted.error:.2f}{held}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(_MODELS), help="models, commas between")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mode", choices=MODES, default=MODES[0])
    parser.add_argument("--realtime", action="store_true", help="go before all else on the machine (root only)")
    asked = parser.parse_args()
    with first(asked.realtime):
        found = [row for name in asked.only.split(",") for row in rows(name, asked.batch, asked.mode, usable_cores())]
    print(f"\n{'throughput of stages':34} {'n':>4} {'25 %':>8} {'50 %':>8} {'75 %':>8} {'median':>8} {'largest':>9}")
    for k in sorted({row.units for row in found}):
        of = [row for row in found if row.units == k]
        print_errors(f"{k} replicas, one alpha", [row.measured / row.by_type - 1 for row in of])
        print_errors(f"{k} replicas, alpha of layers", [row.measured / row.by_layer - 1 for row in of])
        print_errors(f"{k} replicas, measured again", [row.measured / row.again - 1 for row in of])


if __name__ == "__main__":
    main()
