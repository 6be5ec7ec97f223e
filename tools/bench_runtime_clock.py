"""Hold the prediction against the clock: `python tools/bench_runtime_clock.py [--only MODEL,...] [--realtime]`.

For every (model, cut, batch) of `clock_table.py` a pipeline of two or three processes runs on this machine. Its stage
times and its throughput are printed beside what `runtime/predict.py` makes of a profile of the model, measured just
before, since the speed of a machine drifts, with what busy cores take from one another. What the runtime itself adds
is measured on models that compute next to nothing; what the system loses where ranks are more than cores, on a model of
its own. The step of the plan, which knows of none of them, stands beside.

Times of stages are compared by the clock of the thread that runs them (`--clock wall`: as time passes), throughput by
the wall. Where other processes hold the cores, throughput says more of them than of the prediction: the load is printed
with every row, and `--realtime` (root only) lets the benchmark go before all else.
"""

import argparse
import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import clock_models
import clock_ranks
import torch
from clock_ranks import Ranks, RankTimes, Task
from clock_table import CASES, HALVES, HEAD, THIRDS, Case, Row, overhead_lines, print_row, print_summary
from safetensors.torch import save_file

import heterps_compile
from heterps_compile.backends.torch.backend import TorchBackend
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cluster.local import usable_cores
from heterps_compile.cost.layer_cost import layer_costs
from heterps_compile.cost.layer_key import layer_keys
from heterps_compile.cost.layer_times import LayerTimes, layer_times
from heterps_compile.cost.measured import Measurements
from heterps_compile.cost.profile import Crowding, DeviceProfile, LinkProfile
from heterps_compile.cost.roofline import Phases
from heterps_compile.ir.graph import Graph
from heterps_compile.ir.layers import LayerGraph
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.drafts import Draft, Emitted, Scheduled
from heterps_compile.passes.group_layers import group_nodes
from heterps_compile.passes.pipeline import run_passes
from heterps_compile.plan.plan import Plan
from heterps_compile.profiling.link import measure_link
from heterps_compile.profiling.profile_model import Settings, profile_model
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.routes import Route, make_routes
from heterps_compile.runtime.predict import Messages, Overheads, Prediction, predict
from heterps_compile.schedule.order import Phase

_ROUNDS = 9
"""Of a profile and a run after it, by turns: within a minute the speed of a machine drifts by more than is sought."""
_RUNS = 3
"""Of a case, whose middle one is shown: a short run can fall wholly into a time in which the machine is slow."""


@dataclass(frozen=True, slots=True)
class Idle:
    """What the runtime took on a model that computes next to nothing.

    Attributes:
        inside_s: Of an action by stage and phase, beyond what the profile says.
        around_s: Of an action by its phase, outside of it, on the rank that sends what it makes.
        sent_bytes: By that rank then.
    """

    inside_s: Mapping[tuple[int, Phase], float]
    around_s: Mapping[Phase, float]
    sent_bytes: Mapping[Phase, float]


class Bench:
    """Profiles, folders and ranks of one run of the benchmark."""

    def __init__(self, folder: Path, clock: str, steps: int, repeats: int, *, pinned: bool, realtime: bool) -> None:
        self.folder, self.clock, self.steps, self.repeats = folder, clock, steps, repeats
        self.cores, self.realtime = usable_cores(), realtime
        self.link: LinkProfile = measure_link(1).link  # before the ranks, which start with all cores
        self.ranks = {world: Ranks(world, pinned=pinned, realtime=realtime) for world in (2, 3)}
        self.overheads = Overheads()
        self._more_ranks: dict[bool, tuple[float, float]] = {}
        self._together: dict[bool, float] = {}

    def close(self) -> None:
        for ranks in self.ranks.values():
            ranks.close()

    def profile(
        self, model: str, *, training: bool, batches: Sequence[int], with_crowding: bool = False
    ) -> DeviceProfile:
        settings = Settings(
            batches=tuple(sorted(set(batches))),
            mode="training" if training else "inference",
            repeats=self.repeats,
            clock=self.clock,
            with_replicas=False,
            with_link=False,
            with_crowding=with_crowding,
        )
        with clock_ranks.first(self.realtime):
            (device,) = profile_model(
                lambda batch: clock_models.read(model, training=training, batch=batch), settings
            ).devices
        return device

    def compile(self, case: Case, profile: DeviceProfile) -> "Compiled":
        """Compile a case cut where its shares say, and write its folder and its inputs."""
        graph = clock_models.read(case.model, training=case.training, batch=case.batch)
        layers = group_nodes(graph)
        cuts = cut_by_shares(layers, profile, case)
        core = load_cluster("local").device_types[0]
        types = tuple(replace(core, name=f"core{i}") for i in range(len(case.shares)))
        pool = Cluster("cores", "", "USD", types)
        pins = {layer.name: f"core{sum(i >= cut for cut in cuts)}" for i, layer in enumerate(layers.layers)}
        # pins leave nothing to decide, so that the mode does not matter to the plan
        drafts: list[Draft] = []
        compiled = heterps_compile.compile(
            graph,
            cluster=pool,
            pins=pins,
            method="greedy",
            verify=False,
            observer=lambda _step, draft: drafts.append(draft),
        )
        name = f"{case.model}-{case.training}-{len(case.shares)}-{case.shares[0]}-{case.batch}"
        folder = self.folder / name
        compiled = compiled.save(folder, force=True)
        inputs = TorchBackend().example_inputs(graph, 0)
        save_file({name: tensor.contiguous() for name, tensor in inputs.items()}, f"{folder}.inputs")
        emitted = drafts[-1]
        assert isinstance(emitted, Emitted)  # noqa: S101 - the last pass gives it; this tells the type checker
        return Compiled(case, graph, compiled.plan, folder, emitted, layers, pool, profile)

    def measure(self, case: Case, plan: Plan, folder: Path) -> list[RankTimes]:
        task = Task(str(folder), case.training, case.schedule, case.batch, case.micro_batches, self.steps)
        return self.ranks[len(plan.stages)].run(task)

    def calibrate(self) -> None:
        """Find what the runtime adds to an action, from models that compute next to nothing."""
        inside: dict[str, float] = {}
        outside: dict[str, float] = {}
        loss: dict[str, float] = {}
        byte_s = []
        for training in (False, True):
            runs = {model: self._idle(Case(model, training, HALVES, 256, 16)) for model in ("narrow", "wide")}
            narrow, wide = runs["narrow"], runs["wide"]
            phase = Phase.BACKWARD if training else Phase.FORWARD
            inside[phase] = narrow.inside_s[0, phase]
            if training:
                loss = {p: max(0.0, narrow.inside_s[1, p] - inside[p]) for p in (Phase.FORWARD, Phase.BACKWARD)}
            outside[phase] = max(0.0, narrow.around_s[phase])
            byte_s += [
                (wide.around_s[of] - narrow.around_s[of]) / (wide.sent_bytes[of] - narrow.sent_bytes[of])
                for of in wide.sent_bytes
            ]
        self.overheads = Overheads(inside, outside, loss, max(0.0, median(byte_s)))
        self._together = {training: self._slower_in_a_run(training=training) for training in (False, True)}
        if self.cores < len(THIRDS):
            self._more_ranks = {training: self._crowded(training=training) for training in (False, True)}

    def added(self, *, training: bool) -> Overheads:
        """Return what the runtime adds in a mode."""
        crowded, switched = self._more_ranks.get(training, (1.0, 1.0))
        together = self._together.get(training, 1.0)
        return replace(self.overheads, together=together, crowded=crowded, switched=switched)

    def overhead_lines(self) -> Iterator[str]:
        """Yield what was found."""
        return overhead_lines(self.added(training=False), self.added(training=True), self.link, self.cores)

    def by_turns(
        self, case: Case, rounds: int = _ROUNDS, batches: Sequence[int] = (), *, with_crowding: bool = False
    ) -> Iterator[tuple["Compiled", list[RankTimes]]]:
        """Profile a case and run it, by turns, cut where its first profile says.

        Args:
            case: What runs.
            rounds: How often.
            batches: Of the profile; the micro-batch where none is named.
            with_crowding: Whether the first profile has what busy cores take from one another.
        """
        compiled: Compiled | None = None
        for _ in range(rounds):
            profile = self.profile(
                case.model,
                training=case.training,
                batches=batches or (case.micro_batch,),
                with_crowding=with_crowding and compiled is None,
            )
            compiled = self.compile(case, profile) if compiled is None else compiled.with_times(profile)
            yield compiled, self.measure(case, compiled.plan, compiled.folder)

    def _slower_in_a_run(self, *, training: bool) -> float:
        """Find how much longer actions take in a run, while all cores are busy, than the profile says, where one is."""
        slower = []
        for compiled, results in self.by_turns(Case("busy", training, HALVES, 1024, 16)):
            times, added, last = compiled.micro_batches(), self.overheads, len(compiled.plan.stages) - 1
            own_s = {Phase.FORWARD: [t.forward_s for t in times], Phase.BACKWARD: [t.accumulate_s for t in times]}
            for rank in results:
                for (stage, phase), (_, cpu_s) in rank.actions_s.items():
                    loss_s = added.loss_s.get(phase, 0.0) if stage == last and training else 0.0
                    slower.append(cpu_s / (own_s[Phase(phase)][stage] + added.inside_s[Phase(phase)] + loss_s))
        return max(1.0, median(slower))

    def _crowded(self, *, training: bool) -> tuple[float, float]:
        """Find how much longer steps and actions take where ranks are more than cores than on shared cores alone."""
        steps, actions = [], []
        for compiled, results in self.by_turns(Case("busy", training, THIRDS, 512, 8)):
            predicted = self.predict(compiled, compiled.micro_batches())
            steps.append(measured_step_s(results) / predicted.step_s)
            actions += [
                cpu_s / predicted.actions_s[action] for rank in results for action, (_, cpu_s) in rank.actions_s.items()
            ]
        return max(1.0, median(steps)), max(1.0, median(actions))

    def _idle(self, case: Case) -> "Idle":
        found = [self._idle_once(compiled, results) for compiled, results in self.by_turns(case)]
        return Idle(
            inside_s={of: median(each.inside_s[of] for each in found) for of in found[0].inside_s},
            around_s={phase: median(each.around_s[phase] for each in found) for phase in found[0].around_s},
            sent_bytes=found[0].sent_bytes,
        )

    def _idle_once(self, compiled: "Compiled", results: Sequence[RankTimes]) -> "Idle":
        case, graph, plan = compiled.case, compiled.graph, compiled.plan
        times = compiled.micro_batches()
        own_s = {Phase.FORWARD: [t.forward_s for t in times], Phase.BACKWARD: [t.accumulate_s for t in times]}
        (route,) = make_routes(plan.stages, plan.graph_outputs)
        senders = {Phase.FORWARD: 0, Phase.BACKWARD: 1} if case.training else {Phase.FORWARD: 0}
        return Idle(
            inside_s={
                (stage, Phase(phase)): cpu_s - own_s[Phase(phase)][stage]
                for rank in results
                for (stage, phase), (_, cpu_s) in rank.actions_s.items()
            },
            around_s={phase: results[stage].around_s[stage, phase] for phase, stage in senders.items()},
            sent_bytes={p: message_bytes(graph, case.micro_batch, route, p is Phase.BACKWARD) for p in senders},
        )

    def predict(self, compiled: "Compiled", times: Sequence[Phases], crowding: Crowding | None = None) -> Prediction:
        """Predict the run of a case from times of a micro-batch of every stage.

        What busy cores take from one another is the model's own where its profile says it, beside what a run takes
        longer of a model that stands for all.
        """
        added = self.added(training=compiled.case.training)
        case, plan = compiled.case, compiled.plan
        layout = make_layout(
            plan,
            training=case.training,
            replicas=[1] * len(plan.stages),
            step=StepShape(schedule=case.schedule, micro_batches=case.micro_batches, batch=case.batch),
        )
        return predict(
            layout,
            make_routes(plan.stages, plan.graph_outputs),
            times,
            self.cores,
            overheads=added if crowding is None else replace(added, together=added.together * crowding.slower),
            messages=Messages(partial(message_bytes, compiled.graph, layout.micro_batch_size), self.link),
        )

    def middle_run(self, compiled: "Compiled") -> list[RankTimes]:
        """Run a case some times, and return the middle run."""
        runs = [self.measure(compiled.case, compiled.plan, compiled.folder) for _ in range(_RUNS)]
        return sorted(runs, key=measured_step_s)[_RUNS // 2]

    def run(self, case: Case, profile: DeviceProfile) -> Row:
        compiled = self.compile(case, profile)
        predicted = self.predict(compiled, compiled.micro_batches(), profile.crowding)
        return make_row(case, predicted, compiled.planned_step_s(), self.middle_run(compiled), self.clock)


@dataclass(frozen=True, slots=True)
class Compiled:
    """A case as the compiler leaves it, with the times that a profile gives its layers."""

    case: Case
    graph: Graph
    plan: Plan
    folder: Path
    draft: Emitted
    layers: LayerGraph
    pool: Cluster
    profile: DeviceProfile

    def with_times(self, profile: DeviceProfile) -> "Compiled":
        """Return it with the times of another profile."""
        return replace(self, profile=profile)

    @property
    def times(self) -> LayerTimes:
        """What the profile says of its layers, the same on every type of the pool."""
        profiles = Measurements({device.name: self.profile for device in self.pool.device_types}, "")
        return layer_times(self.layers, layer_costs(self.layers), self.pool, profiles, training=self.case.training)

    def micro_batches(self) -> list[Phases]:
        """Return what the compiler says of a micro-batch of every stage."""
        count, times = self.case.micro_batches, self.times
        return [times.stage_phases(stage.layers, stage.device, count) for stage in self.plan.stages]

    def planned_step_s(self) -> float:
        """Return the step as ``choose-schedule`` simulates it: cores of their own, nothing added by the runtime."""
        times = self.times
        stages = tuple(
            replace(stage, compute_s=times.stage_phases(stage.layers, stage.device).whole_s, data_s=0.0)
            for stage in self.plan.stages
        )
        request = replace(self.draft.request, mode="training" if self.case.training else "inference")
        draft = replace(self.draft, times=times, stages=stages, request=request)
        scheduled = run_passes(draft, [ChooseSchedule(self.case.schedule, self.case.micro_batches)], Scheduled)
        return scheduled.schedule.step_s


def message_bytes(graph: Graph, samples: int, route: Route, is_backward: bool) -> float:
    """Return the bytes of a message of so many samples; only floats have gradients."""
    names = [n for n in route.values if not is_backward or graph.values[n].dtype.startswith(("float", "bfloat"))]
    return sum(graph.size_bytes(name) for name in names) * samples / graph.batch


def make_row(case: Case, predicted: Prediction, planned_step_s: float, results: Sequence[RankTimes], clock: str) -> Row:
    place = 1 if clock == "cpu" else 0
    stages = tuple(
        (stage, phase, predicted.actions_s[stage, phase], measured[place])
        for rank in results
        for (stage, phase), measured in sorted(rank.actions_s.items())
    )
    return Row(case, stages, predicted.step_s, planned_step_s, measured_step_s(results), os.getloadavg()[0])


def measured_step_s(results: Sequence[RankTimes]) -> float:
    """Return the median time from step to step of a run."""
    return median(after - before for before, after in pairwise(results[-1].ended_s))


def cut_by_shares(layers: LayerGraph, profile: DeviceProfile, case: Case) -> list[int]:
    """Return the first layer of every stage but the first, so that stages have about the shares asked for."""
    found = [profile.by_key[key] for key in layer_keys(layers)]
    times_s = [layer.phases(case.micro_batch, training=case.training).whole_s for layer in found]
    blocked = {
        position
        for edge in layers.edges
        if edge.is_opaque and edge.consumers
        for position in range(edge.producer + 1, edge.consumers[-1] + 1)
    }
    free = [p for p in range(1, len(times_s)) if p not in blocked]
    cuts: list[int] = []
    for stage in range(1, len(case.shares)):
        wanted_s = sum(case.shares[:stage]) * sum(times_s)
        later = [p for p in free if p > (cuts[-1] if cuts else 0)]
        cuts.append(min(later, key=lambda p: abs(sum(times_s[:p]) - wanted_s)))
    return cuts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="models, commas between")
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="for profiles and stage times")
    parser.add_argument("--steps", type=int, default=25, help="of every run")
    parser.add_argument("--repeats", type=int, default=20, help="of every time in a profile")
    parser.add_argument("--pinned", action="store_true", help="a core for each rank, in turn")
    parser.add_argument("--realtime", action="store_true", help="ranks go before all else on the machine (root only)")
    parser.add_argument("--json", help="write the rows to a file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    wanted = arguments.only.split(",") if arguments.only else [case.model for case in CASES]
    cases = [case for case in CASES if case.model in wanted]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(
            Path(folder),
            arguments.clock,
            arguments.steps,
            arguments.repeats,
            pinned=arguments.pinned,
            realtime=arguments.realtime,
        )
        try:
            bench.calibrate()
            print("\n".join(bench.overhead_lines()))
            rows = []
            print(HEAD)
            for model, training in dict.fromkeys((case.model, case.training) for case in cases):
                mine = [case for case in cases if (case.model, case.training) == (model, training)]
                sizes = [case.micro_batch for case in mine]
                # smaller ones, larger ones and one between: what a run uses is read off, unless it is the largest
                batches = (max(1, min(sizes) // 2), round(math.sqrt(min(sizes) * max(sizes)) * 0.75), max(sizes))
                profile = bench.profile(model, training=training, batches=batches, with_crowding=True)
                for case in mine:
                    rows.append(bench.run(case, profile))
                    print_row(rows[-1])
        finally:
            bench.close()
    print_summary(rows, time.perf_counter() - began)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
