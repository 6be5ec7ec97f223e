"""A pipeline beside its peer, and beside itself without waiting: `python tools/bench_runtime_peer.py [--rounds N]`.

Peer: training steps per second over those of torch.distributed.pipelining, with the same written stages, schedule,
micro-batches and processes, step by step in turns; the ratio of the medians, and that of the best. Target: at least 1.
Overhead: the time of a step over what the schedule takes where nothing but the stages takes time (the slowest stage,
plus fill and drain), from the times the actions had in that very step; the median over the steps, and the least.
Every action of a stage takes the stage's mean. Target: at most 15 %. Beside it ("in row") the median over steps that
follow each other as in training, from the begin of one to that of the next: before those beside the peer ranks meet
and sleep, and find cold caches after it.
Floor: what a message takes from process to process where nobody computes: through shared memory, as ours go here, and
over gloo, where its buffer is ready.
Mechanism (`--without NAME`): steps of our own with and without one part of the shared-memory transport, in turns in the
same processes, instead of all that: `memory` (gloo over loopback in its place), `spin` (sleep at once), `adaptation`
(spin 2 ms every time), `allocator` (glibc's own settings; processes of their own, in turns).
One thread a process, gloo over loopback. Two processes want two cores: on a machine that does other work at the same
time the overhead tells of that work, and the ratio of processor time, which both processes spend in a step, is what
can be trusted.
"""

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from itertools import chain, pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402 - after the path, as all that follows
import torch.distributed as dist  # noqa: E402
from ranks import run_ranks  # noqa: E402
from simulated import simulate  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import heterps_compile  # noqa: E402
from heterps_compile.plan.folder import read_folder  # noqa: E402
from heterps_compile.runtime.allocator import keep_freed_memory  # noqa: E402
from heterps_compile.runtime.c10d import PrefixStore  # noqa: E402
from heterps_compile.runtime.pipeline import world as world_module  # noqa: E402
from heterps_compile.runtime.pipeline.engine import Engine  # noqa: E402
from heterps_compile.runtime.pipeline.layout import Layout, StepShape, make_layout  # noqa: E402
from heterps_compile.runtime.pipeline.message import bytes_packing  # noqa: E402
from heterps_compile.runtime.pipeline.over_gloo import (  # noqa: E402
    Links,
    NetworkIn,
    NetworkOut,
)
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions  # noqa: E402
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied  # noqa: E402
from heterps_compile.runtime.pipeline.recorder import Recorders  # noqa: E402
from heterps_compile.runtime.pipeline.shared_memory import neighbours as neighbours_module  # noqa: E402
from heterps_compile.runtime.pipeline.shared_memory.endpoints import MemoryIn, MemoryOut  # noqa: E402
from heterps_compile.runtime.pipeline.shared_memory.mailboxes import Mailboxes  # noqa: E402
from heterps_compile.runtime.pipeline.shared_memory.neighbours import Neighbours  # noqa: E402
from heterps_compile.runtime.pipeline.shared_memory.spin import WaitPolicy  # noqa: E402
from heterps_compile.runtime.pipeline.transport import Incoming, Outgoing  # noqa: E402
from heterps_compile.runtime.pipeline.world import join_world, world  # noqa: E402
from heterps_compile.schedule.names import orders  # noqa: E402
from heterps_compile.schedule.order import Phase  # noqa: E402

POSITIONS = 2
SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")
MICRO_BATCHES = 8
WARM_UP = 2
ROUND_TRIPS = 20
STEPS_A_ROUND = 5
MECHANISMS = ("memory", "spin", "adaptation", "allocator")


@dataclass(frozen=True)
class Size:
    """A stack of equal linear layers."""

    name: str
    width: int
    micro_batch: int
    layers: int = 8

    @property
    def batch(self) -> int:
        return self.micro_batch * MICRO_BATCHES

    @property
    def message_bytes(self) -> int:
        return 4 * self.micro_batch * self.width


SIZES = (Size("small", 128, 16), Size("middle", 512, 64), Size("large", 1024, 128))


class Chain(nn.Module):
    """Linear layers, each with a tanh: what a pipeline that talks to neighbours alone can run."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(size.width, size.width) for _ in range(size.layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def compile_chain(size: Size, stages: int, folder: Path) -> None:
    """Cut the layers into stages of equally many: neighbours of two device types are never one stage."""
    names = ["linear", *(f"linear_{place}" for place in range(1, size.layers))]
    types = ("cpu-core", "v100")
    pins = {name: types[place * stages // size.layers % 2] for place, name in enumerate(names)}
    free = torch.export.Dim("batch", min=2, max=65536)
    heterps_compile.compile(
        Chain(size),
        (torch.randn(MICRO_BATCHES, size.width),),
        dynamic_shapes=({0: free},),
        mode="training",
        min_throughput=1.0,
        method="greedy",
        min_stages=stages,
        max_stages=stages,
        pins=pins,
        verify=False,
    ).save(folder)


Action = tuple[int, Phase, float]
"""Stage, direction and seconds."""

Told = tuple[float, Sequence[Action]]
"""The seconds of a step on one rank, and its actions."""


@dataclass
class Actions(Recorders):
    """Keeps every action of a step, in order; what is made of them waits for the end of the step."""

    told: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(())

    def end(self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float) -> None:
        self.told.append((stage, phase, ended_s - began_s))


def loss_of(outputs: Any, columns: Mapping[str, Tensor]) -> Tensor:
    return (outputs - columns["target"]).square().mean()


def ours(folder: Path, layout: Layout, rank: int, x: Tensor, target: Tensor, actions: Actions) -> Callable[[int], None]:
    """Return what runs one step of our pipeline."""
    plan, _ = read_folder(folder)
    stages = {index: read_stage(folder, plan, index, torch.device("cpu")) for index in layout.stages_of(rank)}
    tied = read_tied(folder, plan)
    engine = Engine(RankParts(plan, layout, rank, stages, tied=tied, recorder=actions), StepOptions(loss=loss_of))
    parts = list(zip(x.chunk(layout.micro_batches), target.chunk(layout.micro_batches), strict=True))

    def read(micro_batch: int, names: Sequence[str]) -> dict[str, Tensor]:
        return {"x": parts[micro_batch][0], "target": parts[micro_batch][1]}

    def step(number: int) -> None:
        engine.train_step(number, read)

    return step


def theirs(folder: Path, layout: Layout, rank: int, x: Tensor, target: Tensor) -> Callable[[int], None]:
    """Return what runs one step of torch.distributed.pipelining with the same stages."""
    from torch.distributed.pipelining import (  # noqa: PLC0415 - seconds, and in the ranks alone
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    plan, _ = read_folder(folder)
    cpu = torch.device("cpu")
    modules = [Single(read_stage(folder, plan, index, cpu)) for index in layout.stages_of(rank)]
    made = [
        PipelineStage(module, index, layout.stage_count, cpu)
        for module, index in zip(modules, layout.stages_of(rank), strict=True)
    ]

    def loss(outputs: Tensor, part: Tensor) -> Tensor:
        return loss_of(outputs, {"target": part})

    classes: dict[str, Any] = {
        "gpipe": ScheduleGPipe,
        "1f1b": Schedule1F1B,
        "interleaved-1f1b": ScheduleInterleaved1F1B,
    }
    stages: Any = made if layout.chunks > 1 else made[0]
    schedule = classes[layout.schedule](stages, layout.micro_batches, loss_fn=loss)
    parameters = [parameter for module in modules for parameter in module.parameters()]
    arguments = (x,) if rank == 0 else ()
    keywords = {"target": target} if rank == POSITIONS - 1 else {}

    def step(_: int) -> None:
        for parameter in parameters:
            parameter.grad = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the peer's own making
            schedule.step(*arguments, **keywords)

    return step


class Single(nn.Module):
    """A written stage of one value, without the tuple."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.stage(x)[0]
        return value


@dataclass(frozen=True)
class Round:
    """A step of ours and one of theirs on one rank, in that order, and every action of ours."""

    step_s: tuple[float, float]
    processor_s: tuple[float, float]
    actions: Sequence[Action]


def measure(rank: int, folder: Path, size: Size, schedule: str, rounds: int) -> tuple[list[Round], list[Told]]:
    """Return the steps beside the peer, and the same number in a row, each until the begin of the next."""
    plan, _ = read_folder(folder)
    layout = make_layout(
        plan,
        training=True,
        replicas=[1] * POSITIONS,
        step=StepShape(schedule=schedule, micro_batches=MICRO_BATCHES, batch=size.batch),
    )
    torch.manual_seed(1)
    x, target = torch.randn(size.batch, size.width), torch.randn(size.batch, size.width)
    actions = Actions()
    mine, other = ours(folder, layout, rank, x, target, actions), theirs(folder, layout, rank, x, target)
    made = []
    for number in range(-WARM_UP, rounds):
        step_s, processor_s = {}, {}
        for run in (mine, other) if number % 2 else (other, mine):
            actions.told.clear()
            dist.barrier()
            began_s, spent_s = time.perf_counter(), time.process_time()
            run(number + WARM_UP)
            step_s[run], processor_s[run] = time.perf_counter() - began_s, time.process_time() - spent_s
            if run is mine:
                taken = tuple(actions.told)
        made.append(Round((step_s[mine], step_s[other]), (processor_s[mine], processor_s[other]), taken))
    began: list[float] = []
    told: list[Sequence[Action]] = []
    dist.barrier()
    for number in range(WARM_UP + rounds + 1):
        actions.told.clear()
        began.append(time.perf_counter())
        mine(WARM_UP + rounds + number)
        told.append(tuple(actions.told))
    dist.barrier()
    in_row = [(next_s - this_s, of_step) for (this_s, next_s), of_step in zip(pairwise(began), told, strict=False)]
    return made[WARM_UP:], in_row[WARM_UP:]


def measure_messages(rank: int, sizes: Sequence[Size], rounds: int) -> list[dict[str, list[float]]]:
    """Return the seconds of a message there or back through memory and over gloo, for every size and round."""
    peer, cpu = POSITIONS - 1 - rank, torch.device("cpu")
    mailboxes, links = Mailboxes(world().neighbours, [peer], ROUND_TRIPS), Links(POSITIONS, rank)
    made = []
    for size in sizes:
        content, packing = torch.zeros(size.message_bytes, dtype=torch.uint8), bytes_packing(size.message_bytes)
        ways: dict[str, tuple[Outgoing, Incoming]] = {
            "memory": (MemoryOut(mailboxes, peer), MemoryIn(mailboxes, peer, "the other")),
            "gloo": (NetworkOut(links, peer, cpu), NetworkIn(links, peer, cpu, "the other")),
        }
        times_s: dict[str, list[float]] = defaultdict(list)
        for name, (out, into) in [way for way in ways.items() for _ in range(WARM_UP + rounds)]:
            for tag in range(ROUND_TRIPS):
                into.post(packing, tag)
            dist.barrier()
            began_s = time.perf_counter()
            for tag in range(ROUND_TRIPS):
                if rank == 0:
                    out.send(packing, [content], tag)
                into.take(packing, tag)
                if rank == 1:
                    out.send(packing, [content], tag)
            times_s[name].append((time.perf_counter() - began_s) / (2 * ROUND_TRIPS))
            out.flush()
            into.let_go()
        made.append({name: of_way[WARM_UP:] for name, of_way in times_s.items()})
    dist.barrier()
    return made


Took = tuple[float, float]
"""The seconds of a step on a rank, and those of processor time in it."""


def without(mechanism: str) -> AbstractContextManager[Any]:
    """Return what turns a mechanism off for the engines made in its block."""
    if mechanism == "memory":
        return patch.object(neighbours_module, "machine", lambda: "")
    instead: dict[str, Any] = {
        "spin": partial(Neighbours, wait=WaitPolicy(spin_s=0.0)),
        "adaptation": partial(Neighbours, wait=WaitPolicy(most_short=0)),
    }
    return patch.object(world_module, "Neighbours", instead[mechanism])


def timed_round(run: Callable[[int], None], number: int) -> Took:
    """Return what a step takes, the mean of some in a row."""
    dist.barrier()
    began_s, spent_s = time.perf_counter(), time.process_time()
    for _ in range(STEPS_A_ROUND):
        run(number)
    return (time.perf_counter() - began_s) / STEPS_A_ROUND, (time.process_time() - spent_s) / STEPS_A_ROUND


def chain_step(rank: int, folder: Path, size: Size, schedule: str) -> Callable[[int], None]:
    """Return what runs one step of our pipeline on random data."""
    plan, _ = read_folder(folder)
    step = StepShape(schedule, MICRO_BATCHES, size.batch)
    layout = make_layout(plan, training=True, replicas=[1] * POSITIONS, step=step)
    torch.manual_seed(1)
    return ours(folder, layout, rank, *(torch.randn(size.batch, size.width) for _ in range(2)), Actions())


def measure_without(
    rank: int, work: Sequence[tuple[Path, Size, str]], mechanism: str, rounds: int
) -> list[list[tuple[Took, Took]]]:
    """Return what steps take with and without a mechanism, for every work and round."""
    made = []
    for folder, size, schedule in work:
        runs = []
        for context in (nullcontext(), without(mechanism)):
            with context:
                store = PrefixStore(f"{len(made)} {len(runs)}", dist.distributed_c10d._get_default_store())
                join_world(store, rank, POSITIONS)
                runs.append(chain_step(rank, folder, size, schedule))
        rows = []
        for number in range(WARM_UP + rounds):
            took = {place: timed_round(runs[place], number) for place in ((0, 1) if number % 2 else (1, 0))}
            rows.append((took[0], took[1]))
        made.append(rows[WARM_UP:])
    return made


def measure_allocator(
    rank: int, work: Sequence[tuple[Path, Size, str]], rounds: int, *, keeps: bool
) -> list[list[Took]]:
    """Return what steps take where the C library keeps freed memory, or not."""
    if keeps:
        keep_freed_memory()
    runs = [chain_step(rank, folder, size, schedule) for folder, size, schedule in work]
    return [[timed_round(run, number) for number in range(WARM_UP + rounds)][WARM_UP:] for run in runs]


def show_gain(mechanism: str, work: Sequence[tuple[Path, Size, str]], rounds: int) -> None:
    """Print what a mechanism gains: what a step takes without it over what it takes with it."""
    with_it: list[list[Sequence[Took]]] = [[] for _ in work]  # by work and round, of every rank
    without_it: list[list[Sequence[Took]]] = [[] for _ in work]
    if mechanism == "allocator":
        for keeps in (True, False, False, True):
            found = run_ranks(partial(measure_allocator, keeps=keeps), POSITIONS, work, rounds // 2, timeout_s=1200)
            for place, of_ranks in enumerate(zip(*found, strict=True)):
                (with_it if keeps else without_it)[place] += list(zip(*of_ranks, strict=True))
    else:
        found = run_ranks(measure_without, POSITIONS, work, mechanism, rounds, timeout_s=1200)
        for place, of_ranks in enumerate(zip(*found, strict=True)):
            for of_round in zip(*of_ranks, strict=True):
                with_it[place].append([both[0] for both in of_round])
                without_it[place].append([both[1] for both in of_round])
    for (_, size, schedule), mine, other in zip(work, with_it, without_it, strict=True):
        shown = []
        for name, figure in (
            ("median", lambda rows: statistics.median(max(wall_s for wall_s, _ in row) for row in rows)),
            ("best", lambda rows: min(max(wall_s for wall_s, _ in row) for row in rows)),
            ("processor", lambda rows: statistics.median(sum(spent_s for _, spent_s in row) for row in rows)),
        ):
            there_s, gone_s = figure(mine), figure(other)
            shown.append(f"{name} {1e3 * there_s:6.2f} ms with, {1e3 * gone_s:6.2f} without {gone_s / there_s:5.2f}x")
        print(f"{mechanism:13} {size.name:7} {schedule:17} {'; '.join(shown)}", flush=True)


def measure_all(rank: int, work: Sequence[tuple[Path, Size, str]], rounds: int) -> list[tuple[list[Round], list[Told]]]:
    return [measure(rank, folder, size, schedule, rounds) for folder, size, schedule in work]


def overhead(step_s: float, by_rank: Sequence[Sequence[Action]], schedule: str) -> float:
    """Return the share by which a step takes longer than it would without anything but the stages."""
    forward_s, backward_s = [0.0] * POSITIONS, [0.0] * POSITIONS
    for stage, phase, took_s in chain.from_iterable(by_rank):
        totals = forward_s if phase is Phase.FORWARD else backward_s
        totals[stage % POSITIONS] += took_s / MICRO_BATCHES
    order = orders(schedule, [1] * POSITIONS, MICRO_BATCHES, training=True)
    return step_s / simulate(order, forward_s, backward_s).makespan_s - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="steps of ours and theirs")
    parser.add_argument("--size", choices=[size.name for size in SIZES], action="append", help="only this size")
    parser.add_argument("--without", choices=MECHANISMS, action="append", help="what this part of the transport gains")
    parser.add_argument("--schedule", choices=SCHEDULES, action="append", help="only this schedule")
    options = parser.parse_args()
    chosen = [size for size in SIZES if not options.size or size.name in options.size]
    work = []
    with tempfile.TemporaryDirectory() as temporary:
        for size in chosen:
            for count in (POSITIONS, 2 * POSITIONS):
                with redirect_stdout(StringIO()):
                    compile_chain(size, count, Path(temporary) / f"{size.name}-{count}")
            for schedule in options.schedule or SCHEDULES:
                count = POSITIONS * (2 if schedule == "interleaved-1f1b" else 1)
                work.append((Path(temporary) / f"{size.name}-{count}", size, schedule))
        for mechanism in options.without or ():
            show_gain(mechanism, work, options.rounds)
        if options.without:
            return 0
        measured = run_ranks(measure_all, POSITIONS, work, options.rounds, timeout_s=1200)
        messages, _ = run_ranks(measure_messages, POSITIONS, chosen, options.rounds)
    print(f"{'':27} {'median ms':>15} {'best ms':>15} {'processor ms':>15} {'ratio of':>26} {'overhead':>26}")
    names = f"{'ours':>7} {'theirs':>7}"
    ends = " ".join(f"{name:>8}" for name in ("median", "best", "proc.", "median", "least", "in row"))
    print(f"{'size':8} {'schedule':18} {names} {names} {names} {ends}")
    ratios, overheads = [], []
    for place, (_, size, schedule) in enumerate(work):
        by_round = list(zip(*(of_rank[place][0] for of_rank in measured), strict=True))
        in_row = zip(*(of_rank[place][1] for of_rank in measured), strict=True)
        times = [[max(r.step_s[column] for r in of_ranks) for of_ranks in by_round] for column in (0, 1)]
        spent = [[sum(r.processor_s[column] for r in of_ranks) for of_ranks in by_round] for column in (0, 1)]
        columns = [
            [measure_(column) for column in rows]
            for measure_, rows in ((statistics.median, times), (min, times), (statistics.median, spent))
        ]
        ratios.append(columns[0][1] / columns[0][0])
        over = [overhead(max(r.step_s[0] for r in of), [r.actions for r in of], schedule) for of in by_round]
        over_in_row = [overhead(of_ranks[0][0], [actions for _, actions in of_ranks], schedule) for of_ranks in in_row]
        percents = [100 * share for share in (statistics.median(over), min(over), statistics.median(over_in_row))]
        overheads.append(percents[0])
        milliseconds = " ".join(f"{1000 * seconds:7.2f}" for pair in columns for seconds in pair)
        shown = " ".join(f"{theirs_s / ours_s:7.2f}x" for ours_s, theirs_s in columns)
        shares = " ".join(f"{percent:7.1f}%" for percent in percents)
        print(f"{size.name:8} {schedule:18} {milliseconds} {shown} {shares}")
    for size, ways in zip(chosen, messages, strict=True):
        for name, times_s in ways.items():
            shown = f"median {1e6 * statistics.median(times_s):.0f} us, best {1e6 * min(times_s):.0f} us"
            print(f"a message of {size.message_bytes // 1024} KiB ({size.name}) through {name}: {shown}")
    print(f"least throughput ratio {min(ratios):.2f} (target 1)")
    print(f"largest overhead {max(overheads):.1f}% (target 15%)")
    return 0 if min(ratios) >= 1 and max(overheads) <= 15 else 1


if __name__ == "__main__":
    sys.exit(main())
