"""What recomputation makes of a GPT: plans on pools of less and less memory, and what a stage really holds in training.

    python tools/bench_recomputation.py            # both
    python tools/bench_recomputation.py --plans    # plans alone, some seconds each

Plans: the same GPT, trained at the least cost on a pool of a few units whose memory shrinks, with and without
recomputation; where there is no plan, what the compiler says.

Held: every stage of a plan in this process, its micro-batches in the order of its schedule. What the stage allocates
and keeps is counted by PyTorch's profiler of CPU memory, from the step's first action to the most it holds; parameters
are there before. The plan's prediction is that of its activations, without the safety factor.

Left out: optimisers' states and gradients, which are the same both ways; the loss, which is a sum here.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import heterps_compile
from heterps_compile.backends.find import find_backend
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cluster.load import load_cluster
from heterps_compile.errors import HeterpsError
from heterps_compile.plan.plan import Plan
from heterps_compile.schedule.names import orders
from heterps_compile.schedule.order import Phase
from heterps_compile.units import format_bytes, format_seconds

WIDTH, LAYERS, HEADS, WORDS, TOKENS, BATCH = 128, 6, 4, 512, 128, 16
UNITS = 3
MEMORIES_MIB = (320, 160, 80, 40, 20, 16)


class Block(nn.Module):
    """A layer of a GPT, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.read, self.write = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states of a batch after the layer."""
        batch, tokens, _ = x.shape
        parts = self.read(self.before(x)).split(WIDTH, 2)
        query, key, value = (part.view(batch, tokens, HEADS, -1).transpose(1, 2) for part in parts)
        weights = torch.softmax(query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5, -1)
        x = x + self.drop(self.write((weights @ value).transpose(1, 2).reshape(batch, tokens, WIDTH)))
        return x + self.drop(self.narrow(nn.functional.gelu(self.wide(self.after(x)))))


class Gpt(nn.Module):
    """A small one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.head(self.layers(self.words(ids)))
        return logits


def pool(memory_mib: float) -> Cluster:
    """Return a pool of a few V100s with so much memory each, and a CPU core that has none."""
    known = load_cluster("heterps-paper")
    return replace(
        known,
        device_types=tuple(
            replace(device, memory_bytes=memory_mib * 2**20, max_units=UNITS)
            for device in known.device_types
            if device.kind == "gpu"
        ),
    )


def compiled(memory_mib: float, recompute: str, **asked: Any) -> Any:
    """Return the compiled GPT."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=1024)
    return heterps_compile.compile(
        Gpt(), (torch.zeros(BATCH, TOKENS, dtype=torch.long),), dynamic_shapes=({0: batch},), mode="training",
        method="exact", cluster=pool(memory_mib), recompute=recompute, verify=False, **asked,
    )  # fmt: skip


def plans() -> None:
    """Print the plans of shrinking memory."""
    print(f"a GPT of {LAYERS} layers, width {WIDTH}, {TOKENS} tokens, batch {BATCH}, on {UNITS} units, by cost\n")
    print("| memory of a unit | --recompute never | --recompute auto |")
    print("|---|---|---|")
    for memory_mib in MEMORIES_MIB:
        cells = []
        for recompute in ("never", "auto"):
            try:
                cells.append(words_of(compiled(memory_mib, recompute).plan))
            except HeterpsError as error:
                cells.append(f"no plan: {error}")
        print(f"| {memory_mib} MiB | {' | '.join(cells)} |", flush=True)


def words_of(plan: Plan) -> str:
    """Return a plan in a cell."""
    shown = " ".join(f"{stage.replicas}{'r' if stage.recompute else ''}" for stage in plan.stages)
    return (
        f"stages of {shown} units, {plan.schedule.name} x{plan.schedule.micro_batches}, step "
        f"{format_seconds(plan.schedule.step_s)}"
    )


def held() -> None:
    """Print what the stages of a plan hold, with their activations kept and computed again."""
    print(f"\nthe same GPT in {UNITS} stages, activations of 8 micro-batches of {BATCH // 8} samples, 1F1B\n")
    print("| stage | kept: planned | held | computed again: planned | held | extra time |")
    print("|---|---|---|---|---|---|")
    passes = "group-layers,annotate-intensity,pose-problem,place-layers,fuse-stages,provision,"
    passes += "choose-schedule{schedule=1f1b,micro_batches=8},emit-stages"
    runs = []
    for recompute in ("never", "always"):
        made = compiled(4096, recompute, min_stages=UNITS, max_stages=UNITS, passes=passes)
        runs.append([measured(made, stage.index) for stage in made.plan.stages])
    for index, ((kept, held_kept, kept_s), (again, held_again, again_s)) in enumerate(zip(*runs, strict=True)):
        sizes = " | ".join(format_bytes(size) for size in (kept, held_kept, again, held_again))
        print(f"| {index} | {sizes} | {again_s / kept_s - 1:+.0%} |", flush=True)


def measured(made: Any, index: int) -> tuple[float, float, float]:
    """Return what a stage is planned to hold of activations, the most it holds, and seconds of its step."""
    plan: Plan = made.plan
    planned, count = plan.stages[index], plan.schedule.micro_batches
    run = find_backend("torch").recomputing(made.stages[index]) if planned.recompute else made.stages[index]
    order = orders(plan.schedule.name, [1] * len(plan.stages), count, training=True)[index]
    inputs = [entering(made, index, BATCH // count) for _ in range(count)]
    step(run, inputs, order)  # gradients are there from now on
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step(run, inputs, order)
    now = most = 0
    told = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(told, key=lambda each: each.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    total_s = sum(event.self_cpu_time_total for event in seen.key_averages()) / 1e6
    assert planned.memory is not None  # noqa: S101 - a plan of a compilation has it
    return planned.memory.activations_bytes, most, total_s


@torch.no_grad()
def entering(made: Any, index: int, samples: int) -> list[Any]:
    """Return what enters a stage with a micro-batch."""
    values = {made.plan.graph_inputs[0]: torch.randint(0, WORDS, (samples, TOKENS))}
    for planned, stage in zip(made.plan.stages[:index], made.stages, strict=False):
        values.update(zip(planned.outputs, stage(*(values[name] for name in planned.inputs)), strict=True))
    return [values[name] for name in made.plan.stages[index].inputs]


def fresh(value: Any) -> Any:
    """Return a value as a stage receives it: in memory of its own, and its gradient wanted."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().clone().requires_grad_(value.is_floating_point())


def step(run: Any, inputs: Sequence[Sequence[Any]], order: Sequence[Any]) -> None:
    """Run the forwards and backwards of a step; the gradient of an output is one everywhere."""
    made: dict[int, Any] = {}
    for action in order:
        if action.phase is Phase.FORWARD:
            values = [fresh(value) for value in inputs[action.micro_batch]]
            given = [one for one in run(*values) if isinstance(one, Tensor) and one.requires_grad]
            made[action.micro_batch] = (values, [torch.autograd.graph.get_gradient_edge(one) for one in given])
            del given
        else:
            _, edges = made.pop(action.micro_batch)
            shapes = [edge.node._input_metadata[edge.output_nr].shape for edge in edges]
            torch.autograd.backward(edges, [torch.ones(()).expand(tuple(shape)) for shape in shapes])


def main() -> None:
    """Parse what is asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", action="store_true", help="plans alone")
    only_plans = parser.parse_args().plans
    torch.set_num_threads(1)
    if not only_plans:
        held()
    plans()


if __name__ == "__main__":
    main()
