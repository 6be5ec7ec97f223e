"""This machine: estimates of layers, stages and runs held against its own clock, on ten models that calibrate nothing.

- **Layers**: of every model, in inference and in training, at the size of a run's micro-batch and at half of it, as
  `profile` measures them; estimated by the data sheet of the pool `local` and by a calibrated pool.
- **Stages**: the share of every stage in the work of a micro-batch, as the ranks of a run measure it.
- **Throughput**: pipelines of two and three processes. What is predicted is ``runtime/predict.py``'s, from a profile of
  the model and from the calibrated pool alone; what the runtime adds to an action was measured on models that compute
  next to nothing (``bench_runtime_clock.py``). Without the fixed part the times of micro-batches are the batch's,
  divided.

The speed of a machine drifts within a minute, so a case is profiled and run by turns, some rounds of them, and each run
is held against the profile just before it: what is shown is the median of these ratios. How far single runs are from
the median of their case is told too: nothing that was measured at another time can be nearer in the mean. For the same
reason the unit is calibrated anew before every few cases.

Errors of models whose errors were looked at while the law was made stand apart (``LOOKED_AT`` of ``bench_layers.py``).
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import clock_models
from bench_layers import LOOKED_AT
from bench_runtime_clock import Bench, Compiled, measured_step_s
from clock_ranks import RankTimes
from clock_table import EARLY, HALVES, THIRDS, Case

from heterps_compile.cluster.devices import Cluster, DeviceType
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.layer_times import layer_times
from heterps_compile.cost.profile import DeviceProfile
from heterps_compile.cost.roofline import Phases, layer_phases
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.profiling.calibration.calibrate import calibrate_unit
from heterps_compile.profiling.calibration.pool_entry import pool_text
from heterps_compile.profiling.profile_model import Settings
from heterps_compile.schedule.order import Phase
from truth.scores import HEAD, Row, table_row

CASES = (
    Case("ctrdnn", False, HALVES, 512, 8),
    Case("ctrdnn", True, THIRDS, 1024, 8),
    Case("matchnet", False, HALVES, 1024, 8),
    Case("matchnet", True, HALVES, 2048, 8),
    Case("mlp", False, THIRDS, 512, 8),
    Case("mlp", True, EARLY, 1024, 8),
    Case("resnet", False, HALVES, 64, 8),
    Case("resnet", True, HALVES, 64, 8),
    Case("bert", False, HALVES, 64, 8),
    Case("bert", True, HALVES, 64, 8),
    Case("gpt2", False, THIRDS, 64, 8),
    Case("gpt2", True, HALVES, 32, 8),
    Case("mobile", False, HALVES, 32, 8),
    Case("mobile", True, HALVES, 32, 8),
    Case("tagger", False, HALVES, 256, 8),
    Case("tagger", True, HALVES, 256, 8),
    Case("mixer", False, THIRDS, 64, 8),
    Case("mixer", True, HALVES, 64, 8),
    Case("dense", False, HALVES, 64, 8),
    Case("dense", True, THIRDS, 32, 8),
)
Turn = tuple[Compiled, list[RankTimes]]
StageTimes = Callable[[int], list[Phases]]
"""What a micro-batch takes in every stage where a batch is divided into so many."""

_NEAR = 4
"""Cases that a calibration says something of: they are over some minutes after it."""
_LOOKED_AT, _JUDGED = "models that were looked at", "judged models"
_UNCROWDED = "from a profile without its crowding"
_TOLD_APART = _FROM_PROFILE, _CALIBRATED = "from a profile", "calibrated"


@dataclass(frozen=True, slots=True)
class Asked:
    """What to measure.

    Attributes:
        models: Of :data:`CASES`.
        pool: A calibrated pool of this machine; None to make one before every :data:`_NEAR` cases.
        steps: Of every run.
        repeats: Of every time in a profile.
        rounds: Of a profile and a run.
    """

    models: tuple[str, ...]
    pool: Path | None
    steps: int
    repeats: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Found:
    """Rows by what they are of, in the order of the tables."""

    rows: dict[str, list[Row]]

    def add(self, what: str, case: Case, measured: float, predicted: float, *, by_group: bool = False) -> None:
        """Keep a row; where asked, also in tables of its mode, and of the models that were looked at or that judge."""
        mode = "training" if case.training else "inference"
        group = _LOOKED_AT if case.model in LOOKED_AT else _JUDGED
        for name in (what, f"{what}: {mode}", f"{what}: {group}") if by_group else (what,):
            self.rows.setdefault(name, []).append(Row(f"{case.model} {mode}", measured, predicted))


def lines(asked: Asked) -> Iterator[str]:
    """Yield the lines of the tables; some minutes.

    Raises:
        SystemExit: where the pool has no measured rates.
    """
    given = None if asked.pool is None else rated(asked.pool)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), "cpu", asked.steps, asked.repeats, pinned=False, realtime=False)
        found = Found({})
        runs = []
        try:
            bench.calibrate()
            added = list(bench.overhead_lines())
            for number, case in enumerate(case for case in CASES if case.model in asked.models):
                if number % _NEAR == 0:
                    device = calibrated(Path(folder)) if given is None else given
                turns = list(bench.by_turns(case, asked.rounds, _sizes(case), with_crowding=True))
                layers(found, case, [each.profile for each, _ in turns], device)
                runs.append(run(found, bench, turns, device))
        finally:
            bench.close()
    load = os.getloadavg()[0]
    yield f"This machine, {bench.cores} cores; predicted over measured; load at the end {load:.1f}."
    yield ""
    yield from added
    yield ""
    yield HEAD
    for what in sorted(found.rows, key=_place):
        yield table_row(what, found.rows[what])
    yield ""
    yield (
        "| run | stages | batch | crowding | measured | from a profile | without its crowding | calibrated | "
        "without the fixed part |"
    )
    yield "|" + "---|" * 9
    yield from runs


_ORDER = ("layers", "a stage's share", "throughput")


def _place(what: str) -> tuple[int, str]:
    return next(i for i, begins in enumerate(_ORDER) if what.startswith(begins)), what


def _sizes(case: Case) -> tuple[int, ...]:
    return (max(1, case.micro_batch // 2), case.micro_batch)


def calibrated(folder: Path) -> DeviceType:
    """Return the unit of this machine, calibrated now."""
    pool = folder / "calibrated.toml"
    pool.write_text(pool_text(calibrate_unit(Settings(repeats=10, least_s=0.2, with_replicas=False)), "core"))
    return rated(pool)


def rated(pool: Path) -> DeviceType:
    """Return the unit of a calibrated pool.

    Raises:
        SystemExit: where the pool has no measured rates.
    """
    device = load_cluster(pool).device_types[0]
    if not device.rates:
        raise SystemExit(f"{pool} has no measured rates; make it with heterps-compile calibrate -o {pool}")
    return device


def layers(found: Found, case: Case, profiles: Sequence[DeviceProfile], device: DeviceType) -> None:
    """Hold estimates of layers against profiles of their model."""
    sheet = load_cluster("local").device_types[0]
    for batch in _sizes(case):
        grouped = group_nodes(clock_models.read(case.model, training=case.training, batch=batch))
        for i, (key, cost) in enumerate(zip(layer_keys(grouped), layer_costs(grouped), strict=True)):
            took_s = median(each.by_key[key].phases(batch, training=case.training).whole_s for each in profiles)
            if took_s <= 0:
                continue
            for what, by in (("by the data sheet", sheet), (_CALIBRATED, device)):
                estimate_s = layer_phases(cost, by, grouped.dtype(i), training=case.training).whole_s
                found.add(f"layers, {what}", case, took_s, estimate_s, by_group=by is device)
                if by is device:
                    found.add(f"layers, {what}: {grouped.layers[i].kind}", case, took_s, estimate_s)


def run(found: Found, bench: Bench, turns: Sequence[Turn], device: DeviceType) -> str:
    """Hold predictions against the runs of a case, and return its line."""
    compiled, _ = turns[0]
    case = compiled.case
    rates = [case.batch / measured_step_s(results) for _, results in turns]
    measured = median(rates)
    middle = min((results for _, results in turns), key=lambda r: abs(case.batch / measured_step_s(r) - measured))
    turned = [each.micro_batches() for each, _ in turns]
    estimated = estimated_times(compiled, device)
    for rate in rates:
        found.add("throughput, of one run over the median of its case", case, measured, rate)
    shown = []
    for what, by_turn, crowding in (
        (_FROM_PROFILE, turned, compiled.profile.crowding),
        (_UNCROWDED, turned, None),
        (_CALIBRATED, [estimated(case.micro_batches)] * len(turns), None),
        ("without the fixed part", [[each.scaled(1 / case.micro_batches) for each in estimated(1)]] * len(turns), None),
    ):
        over = [
            case.batch / bench.predict(compiled, times, crowding).step_s / rate
            for times, rate in zip(by_turn, rates, strict=True)
        ]
        predicted = median(over) * measured
        shown.append(f"{predicted:.0f} ({median(over) - 1:+.1%})")
        found.add(f"throughput, {what}", case, measured, predicted, by_group=what in _TOLD_APART)
        if what == _FROM_PROFILE:
            ranks = len(compiled.plan.stages)
            found.add(f"throughput, {what}: {ranks} processes", case, measured, predicted)
            for each, rate in zip(over, rates, strict=True):
                found.add(f"throughput, {what}: single turns", case, rate, each * rate)
        if what == _UNCROWDED:  # shares are the profile's
            continue
        times = middle_times(by_turn)
        for share, of_stage in zip(shares(times), measured_shares(middle, case), strict=True):
            found.add(f"a stage's share, {what}", case, of_stage, share, by_group=what in _TOLD_APART)
    mode = "training" if case.training else "inference"
    stages = len(compiled.plan.stages)
    crowding = compiled.profile.crowding
    crowded = "" if crowding is None else f"{crowding.factor:.2f} ±{crowding.spread:.2f}"
    what = f"{case.model}, {mode} | {stages} | {case.batch} | {crowded}"
    span = f"{min(rates) / measured - 1:+.1%} to {max(rates) / measured - 1:+.1%}"
    return f"| {what} | {measured:.0f} samples/s ({span}) | {' | '.join(shown)} |"


def middle_times(rounds: Sequence[Sequence[Phases]]) -> list[Phases]:
    """Return the median of every phase of every stage."""
    return [
        Phases(
            median(each.forward_s for each in stage),
            median(each.backward_s for each in stage),
            median(each.accumulate_s for each in stage),
        )
        for stage in zip(*rounds, strict=True)
    ]


def estimated_times(compiled: Compiled, device: DeviceType) -> StageTimes:
    """Return what the calibrated pool says of the stages of a compiled case."""
    grouped = group_nodes(compiled.graph)
    names = dict.fromkeys(stage.device for stage in compiled.plan.stages)
    pool = Cluster("cores", "", "USD", tuple(replace(device, name=name) for name in names))
    times = layer_times(grouped, layer_costs(grouped), pool, training=compiled.case.training)
    return lambda count: [times.stage_phases(stage.layers, stage.device, count) for stage in compiled.plan.stages]


def shares(times: Sequence[Phases]) -> list[float]:
    """Return the part of every stage in the work of a micro-batch."""
    own_s = [each.forward_s + each.accumulate_s for each in times]
    return [each / sum(own_s) for each in own_s]


def measured_shares(results: Sequence[RankTimes], case: Case) -> list[float]:
    """Return the same as the clocks of the ranks' threads have it."""
    phases = (Phase.FORWARD, Phase.BACKWARD) if case.training else (Phase.FORWARD,)
    own_s = [sum(rank.actions_s[stage, str(phase)][1] for phase in phases) for stage, rank in enumerate(results)]
    return [each / sum(own_s) for each in own_s]
