"""Ranks that run one compiled folder after another, and say what every action and every step took.

They live as long as the benchmark, so that a run starts at once and close in time to the profile it is held against.
"""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.recorder import Recorders
from heterps_compile.schedule.order import Phase

_TIMEOUT_S = 240.0
_WARM_UP = 2


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        folder: What was compiled.
        training: Forward and backward, else forward alone.
        schedule: Its name.
        batch: Samples in a step.
        micro_batches: In a step.
        steps: That count.
    """

    folder: str
    training: bool
    schedule: str
    batch: int
    micro_batches: int
    steps: int


@dataclass(frozen=True, slots=True)
class RankTimes:
    """What one rank took.

    Attributes:
        ended_s: When each of its steps ended, from the start of the first that counts.
        actions_s: Median time of an action, by stage and phase, as (wall, thread's own).
        around_s: Median time from the end of an action to the beginning of the next, by stage and phase of the first,
            but for what the rank waited for messages.
    """

    ended_s: tuple[float, ...]
    actions_s: Mapping[tuple[int, str], tuple[float, float]]
    around_s: Mapping[tuple[int, str], float]


@contextmanager
def first(wanted: bool) -> Iterator[None]:
    """Go before all else on the machine, where that is wanted."""
    if not wanted:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class Ranks:
    """So many ranks, each a process with one thread."""

    def __init__(self, world_size: int, *, pinned: bool, realtime: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._pipes, self._processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, world_size, self._folder.name, theirs, pinned, realtime)
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, task: Task) -> list[RankTimes]:
        """Run a task on all ranks."""
        for pipe in self._pipes:
            pipe.send(task)
        results, faults = [], []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(_TIMEOUT_S):
                raise SystemExit(f"rank {rank} gave no answer in {_TIMEOUT_S:g} s")
            result = pipe.recv()
            if isinstance(result, str):
                faults.append(f"rank {rank} failed:\n{result}")
            results.append(result)
        if faults:
            raise SystemExit("\n".join(faults))
        return results

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


def _serve(rank: int, world_size: int, folder: str, pipe: Any, pinned: bool, realtime: bool) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import traceback  # noqa: PLC0415 - in the ranks alone

    import torch  # noqa: PLC0415

    from heterps_compile.runtime.allocator import keep_freed_memory  # noqa: PLC0415
    from heterps_compile.runtime.launch.run_store import folder_store  # noqa: PLC0415
    from heterps_compile.runtime.pipeline.world import join_world, make_group  # noqa: PLC0415

    keep_freed_memory()
    torch.set_num_threads(1)
    if realtime:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    if pinned:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    join_world(folder_store(Path(folder)), rank, world_size)
    everyone = make_group(range(world_size))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(_run(task, rank, lambda: everyone.sum(torch.zeros(1)).wait()))
        except BaseException:  # noqa: BLE001 - whatever it is, the benchmark shows it
            pipe.send(traceback.format_exc())
            return


class ActionTimes(Recorders):
    """A recorder of what every action takes, and what the runtime does between two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: dict[tuple[int, str], list[tuple[float, float]]] = {}
        self._gaps_s: dict[tuple[int, str], list[float]] = {}
        self._ended: tuple[tuple[int, str], float] | None = None
        self._began_cpu_s = self._waited_s = 0.0

    def begin(self, step: int, stage: int, micro_batch: int, phase: Phase) -> None:
        if self._ended is not None:
            of, ended_s = self._ended
            self._gaps_s.setdefault(of, []).append(time.perf_counter() - ended_s - self._waited_s)
        self._began_cpu_s = time.thread_time()

    def waited(self, step: int, what: str, began_s: float, ended_s: float) -> None:
        if what == "receive":
            self._waited_s += ended_s - began_s

    def end(self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float) -> None:
        cpu_s = time.thread_time() - self._began_cpu_s
        self.times_s.setdefault((stage, str(phase)), []).append((ended_s - began_s, cpu_s))
        self._ended, self._waited_s = ((stage, str(phase)), time.perf_counter()), 0.0

    def medians(self, skipped: int) -> dict[tuple[int, str], tuple[float, float]]:
        """Return the medians, the first so many of each left out."""
        return {
            key: (median(wall for wall, _ in times[skipped:]), median(cpu for _, cpu in times[skipped:]))
            for key, times in self.times_s.items()
        }

    def around(self, skipped: int) -> dict[tuple[int, str], float]:
        """Return the medians of what lies between actions, the first so many of each left out."""
        return {key: median(gaps_s[skipped:]) for key, gaps_s in self._gaps_s.items()}


def _run(task: Task, rank: int, meet: Callable[[], None]) -> RankTimes:
    import torch  # noqa: PLC0415 - in the ranks alone
    from clock_models import loss  # noqa: PLC0415

    from heterps_compile.plan.folder import read_folder  # noqa: PLC0415
    from heterps_compile.runtime.pipeline.engine import Engine  # noqa: PLC0415
    from heterps_compile.runtime.pipeline.layout import StepShape, make_layout  # noqa: PLC0415
    from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied  # noqa: PLC0415

    folder, device = Path(task.folder), torch.device("cpu")
    plan, _ = read_folder(folder)
    layout = make_layout(
        plan,
        training=task.training,
        replicas=[1] * len(plan.stages),
        step=StepShape(schedule=task.schedule, micro_batches=task.micro_batches, batch=task.batch),
    )
    stages = {index: read_stage(folder, plan, index, device) for index in layout.stages_of(rank)}
    recorder = ActionTimes()
    engine = Engine(
        RankParts(plan, layout, rank, stages, tied=read_tied(folder, plan), recorder=recorder),
        StepOptions(loss=loss if task.training else None),
    )
    inputs = _inputs(folder, layout.micro_batch_size)

    def read(micro_batch: int, names: Sequence[str]) -> Mapping[str, Any]:
        given = inputs[micro_batch % len(inputs)]
        return given if "*" in names else {name: given[name] for name in names}

    run = engine.train_step if task.training else engine.infer
    meet()
    for step in range(_WARM_UP):
        run(step, read)
    began_s = time.perf_counter()
    ended_s = []
    for step in range(task.steps):
        run(_WARM_UP + step, read)
        ended_s.append(time.perf_counter() - began_s)
    engine.finish()
    meet()
    skipped = _WARM_UP * task.micro_batches
    return RankTimes(tuple(ended_s), recorder.medians(skipped), recorder.around(skipped))


def _inputs(folder: Path, size: int) -> list[dict[str, Any]]:
    """Return the inputs that the benchmark wrote beside a folder, cut into micro-batches."""
    from safetensors.torch import load_file  # noqa: PLC0415 - in the ranks alone

    parts = {name: tensor.split(size) for name, tensor in load_file(f"{folder}.inputs").items()}
    count = min(map(len, parts.values()))
    return [{name: found[i].clone() for name, found in parts.items()} for i in range(count)]
