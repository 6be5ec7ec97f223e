"""What a backward in two parts takes and holds (``runtime/pipeline/split_backward.py``), against one in one part.

    python tools/bench_zero_bubble.py              # both, a minute
    python tools/bench_zero_bubble.py --split      # the parts alone
    python tools/bench_zero_bubble.py --step       # a pipeline of two processes under 1F1B and zero-bubble alone

Parts: stages that are fed a micro-batch which needs a gradient, on one thread. Seconds of the CPU, the median of rounds
that take one backward and one in two parts by turns, as ratios within each round; the machine may be busy. The last two
columns are bytes of what waits between the parts: gradients, over the activations that autograd keeps.

Step: a GPT in two stages trains on two processes, steps under both schedules by turns, which use the same stages. The
ratio of each pair, beside that of the schedules simulated with the times of the actions under 1F1B.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from bench_recomputation import Block
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.spawn import spawn

import heterps_compile
from heterps_compile.plan.folder import read_folder
from heterps_compile.runtime.c10d import PrefixStore
from heterps_compile.runtime.pipeline.engine import Engine
from heterps_compile.runtime.pipeline.layout import StepShape, make_layout
from heterps_compile.runtime.pipeline.rank_parts import RankParts, StepOptions
from heterps_compile.runtime.pipeline.read_stage import read_stage, read_tied
from heterps_compile.runtime.pipeline.recorder import Recorders
from heterps_compile.runtime.pipeline.split_backward import backward_of_inputs
from heterps_compile.runtime.pipeline.world import join_world, leave_world
from heterps_compile.schedule.load import StageLoad, simulate_step
from heterps_compile.schedule.micro_batch import MicroBatch
from heterps_compile.schedule.order import Phase

ROUNDS, STEPS = 15, 15
SCHEDULES = ("1f1b", "zero-bubble")
SIZE, TOKENS, WIDTH = 4, 128, 128
COUNTS = (2, 4)


def wide(width: int, layers: int, rows: int) -> tuple[nn.Module, Tensor]:
    """Return a chain of Linear and ReLU, and a micro-batch for it."""
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*parts), torch.randn(rows, width)


def convolutions() -> tuple[nn.Module, Tensor]:
    """Return convolutions with batch norms, and images for them."""
    parts = [part for _ in range(4) for part in (nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
    return nn.Sequential(*parts), torch.randn(8, 32, 28, 28)


NETS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "Linear 512, 64 rows": lambda: wide(512, 4, 64),
    "Linear 512, 512 rows": lambda: wide(512, 4, 512),
    "Linear 128, 32 rows": lambda: wide(128, 8, 32),
    "Conv-BatchNorm 32": convolutions,
    "GPT layers 128": lambda: (nn.Sequential(*(Block() for _ in range(2))), torch.randn(4, 128, 128)),
    "TransformerEncoderLayer 256": lambda: (
        nn.Sequential(*(nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(2))),
        torch.randn(4, 128, 256),
    ),
}


def cpu_s(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU's seconds of a call, and its result."""
    began_s = time.process_time()
    result = function()
    return time.process_time() - began_s, result


def ratios(net: nn.Module, data: Tensor) -> tuple[float, float]:
    """Return gradients of inputs and of weights over a backward in one part; of one round."""
    found = (0.0, 0.0)
    for _ in range(2):  # the second time all gradients are there
        whole = net(data.clone().requires_grad_())
        seed = torch.ones_like(whole)
        whole_s, _ = cpu_s(lambda whole=whole, seed=seed: whole.backward(seed))
        entered = data.clone().requires_grad_()
        made = net(entered)
        inputs_s, late = cpu_s(lambda given=([made], [seed], [entered]): backward_of_inputs(*given))
        weights_s, _ = cpu_s(late.backward)
        found = inputs_s / whole_s, weights_s / whole_s
    return found


def held(net: nn.Module, data: Tensor) -> float:
    """Return the bytes of gradients that wait for the second part over those that autograd keeps of the forward."""
    kept: dict[int, int] = {}
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    entered = data.clone().requires_grad_()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        made = net(entered)
    late = backward_of_inputs([made], [torch.ones_like(made)], [entered])
    waiting = {
        gradient.untyped_storage().data_ptr(): gradient.untyped_storage().nbytes()
        for each in late._weights
        for gradients in each.brackets.values()
        for gradient in gradients
        if gradient is not None
    }
    return sum(waiting.values()) / sum(kept.values())


def split() -> None:
    """Print what the two parts take and hold."""
    torch.set_num_threads(1)
    print(f"{'':28} inputs  weights  both  gradients over activations")
    for name, make in NETS.items():
        torch.manual_seed(0)
        net, data = make()
        rounds = [ratios(net, data) for _ in range(ROUNDS)]
        inputs, weights = (median(each) for each in zip(*rounds, strict=True))
        both = median(sum(each) for each in rounds)
        print(f"{name:28} {inputs:6.2f}  {weights:7.2f}  {both:4.2f}  {held(net, data):27.2f}", flush=True)


class Actions(Recorders):
    """The times of actions by phase."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s: dict[Phase, list[float]] = {phase: [] for phase in Phase}

    def end(self, step: int, stage: int, micro_batch: int, phase: Phase, began_s: float, ended_s: float) -> None:
        """Keep the time."""
        self.times_s[phase].append(ended_s - began_s)

    def medians_s(self) -> list[float]:
        """Return those of a forward, a backward and gradients of weights; 0 where there is none."""
        return [median(found) if found else 0.0 for found in self.times_s.values()]


def train(rank: int, folder: str, store: str) -> None:
    """Train one of two stages under both schedules; the first rank prints the ratios of their steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    join_world(PrefixStore("world", dist.distributed_c10d._get_default_store()), rank, 2)
    plan, _ = read_folder(Path(folder))
    stage, tied = read_stage(Path(folder), plan, rank, torch.device("cpu")), read_tied(Path(folder), plan)

    def read(micro_batch: int, names: Sequence[str]) -> Mapping[str, Tensor]:
        torch.manual_seed(micro_batch)
        found = {plan.graph_inputs[0]: torch.randn(SIZE, TOKENS, WIDTH)}
        return found if tuple(names) == ("*",) else {name: found[name] for name in names}

    for count in COUNTS:
        engines, heard = [], [Actions() for _ in SCHEDULES]
        for name, recorder in zip(SCHEDULES, heard, strict=True):
            step = StepShape(schedule=name, micro_batches=count, batch=SIZE * count)
            layout = make_layout(plan, training=True, replicas=[1, 1], step=step)
            parts = RankParts(plan, layout, rank, {rank: stage}, tied=tied, recorder=recorder)
            engines.append(Engine(parts, StepOptions(loss=lambda outputs, _: outputs.square().mean())))
        ratios_of_steps = []
        for number in range(STEPS):
            took_s = []
            for engine in engines:
                dist.barrier()
                began_s = time.perf_counter()
                engine.train_step(number, read)
                dist.barrier()
                took_s.append(time.perf_counter() - began_s)
            ratios_of_steps.append(took_s[1] / took_s[0])
        for engine in engines:
            engine.finish()
        medians_s = [torch.zeros(len(SCHEDULES), len(Phase)) for _ in range(2)]
        dist.all_gather(medians_s, torch.tensor([each.medians_s() for each in heard]))
        if rank == 0:
            low, middle, high = (sorted(ratios_of_steps[3:])[int(part * (STEPS - 4))] for part in (0.25, 0.5, 0.75))
            in_one, in_two = torch.stack(medians_s, 1).tolist()
            loads = [StageLoad(1, (MicroBatch(count, forward_s, backward_s),)) for forward_s, backward_s, _ in in_one]
            planned = [simulate_step(name, loads, count, training=True).makespan_s for name in SCHEDULES]
            told = f"{count} micro-batches: zero-bubble takes {middle:.2f} of 1F1B (quartiles {low:.2f} to {high:.2f})"
            parts_s = [time_s / in_one[1][1] for time_s in in_two[1][1:]]
            times = ", ".join(f"F {1e3 * each[0]:.1f} B {1e3 * each[1]:.1f} ms" for each in in_one)
            print(f"{told}, simulated {planned[1] / planned[0]:.2f}; stages {times}", flush=True)
            print(f"    the second stage's parts of a backward in one: {parts_s[0]:.2f}, {parts_s[1]:.2f}", flush=True)
    leave_world()
    dist.destroy_process_group()


def step() -> None:
    """Print the steps of two processes under both schedules."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(4)))
    with tempfile.TemporaryDirectory() as folder:
        compiled = heterps_compile.compile(
            model, (torch.randn(SIZE, TOKENS, WIDTH),), mode="training", batch=SIZE, min_stages=2, max_stages=2
        )
        print(f"layers of the stages: {[len(each.layers) for each in compiled.plan.stages]}", flush=True)
        print(f"planned: {compiled.plan.schedule.reason}", flush=True)
        compiled.save(Path(folder) / "gpt.heterps")
        given = (str(Path(folder) / "gpt.heterps"), str(Path(folder) / "store"))
        spawn(train, given, nprocs=2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", action="store_true", help="the parts alone")
    parser.add_argument("--step", action="store_true", help="the step of two processes alone")
    asked = parser.parse_args()
    if asked.split or not asked.step:
        split()
    if asked.step or not asked.split:
        step()
