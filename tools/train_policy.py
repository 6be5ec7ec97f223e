"""Train the policy that ships with the package: it learns to draw the plans that dynamic programming finds.

Problems come from tests/synthetic.py. At a fixed throughput a plan's price is a sum over its stages, so the
cheapest plan is a shortest path; where types have limits, prices on the units of a type steer it within them. Every
problem gives plans for several throughputs. The loss is the negative log-likelihood of the plan under the policy's own
way of drawing (sampling.py): where stages begin, and the type each takes. On a user's problem the policy then
goes on learning by REINFORCE, without labels.

    python tools/train_policy.py                       # some ten minutes on one core; writes the shipped file
    python tools/train_policy.py --problems 300 --steps 200 -o /tmp/policy.npz

The same options give the same file on the same machine and torch. Benchmarks draw their problems from other seeds.
"""

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch.nn import functional

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.learned.features import layer_features
from heterps_compile.passes.placement.learned.policy import SHIPPED_FILE, Policy
from heterps_compile.passes.placement.local.segment_table import SegmentTable, segment_table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from synthetic import Recipe, synthetic_problem

LAYERS = (6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 100)
TYPES = (2, 3, 4, 6, 8, 12, 16)
MOST_RAISED = (0.0, 0.35, 1.2)  # logarithm of the highest throughput, relative to the floor, of each plan
FIRST_SEED = 1_000_000  # tests and benchmarks stay below
PRICING_ROUNDS = 25
BATCH = 32


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A problem's features [L, T, F] at a throughput; where the stages of its cheapest plan begin, and their types."""

    features: np.ndarray
    starts: np.ndarray
    types: np.ndarray


E = TypeVar("E", bound=Example)


def draw_problems(count: int, generator: np.random.Generator) -> Iterator[Problem]:
    for index in range(count):
        branched, limited, tight = (bool(flag) for flag in generator.random(3) < (0.4, 0.4, 0.3))
        yield synthetic_problem(
            Recipe(
                seed=FIRST_SEED + index,
                layers=int(generator.choice(LAYERS)),
                types=int(generator.choice(TYPES)),
                branched=branched,
                limited=limited,
                tight_memory=tight,
            )
        )


def plans_of(
    problems: Iterable[Problem], generator: np.random.Generator
) -> Iterator[tuple[Problem, float, np.ndarray, np.ndarray]]:
    """Yield problems with a throughput, the layers where the stages of the cheapest plan begin, and their types."""
    for problem in problems:
        table = segment_table(problem)
        for most in MOST_RAISED:
            throughput = problem.min_throughput * float(np.exp(generator.uniform(0, most)))
            plan = cheapest_plan(table, throughput)
            if plan is not None:
                yield problem, throughput, *plan


def draw_examples(count: int, seed: int) -> Iterator[Example]:
    generator = np.random.default_rng(seed)  # of problems and throughputs, by turns
    for problem, throughput, starts, types in plans_of(draw_problems(count, generator), generator):
        yield Example(layer_features(problem, throughput).astype(np.float16), starts, types)


def cheapest_plan(table: SegmentTable, throughput: float) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the layers where stages begin, and their types; None where no plan was found."""
    problem, count = table.problem, len(table.positions)
    first, end = (index.ravel() for index in np.triu_indices(count, 1))
    work, unfit = table.work(first, end, None)
    units = np.where(unfit, np.inf, work.demand().units(problem.batch / throughput))
    best, best_paid = None, np.inf
    extra = np.zeros(problem.type_count)  # price on the units of a type, beside its own
    for step in range(PRICING_ROUNDS):
        path = shortest_path(first, end, units * (problem.price_per_hour + extra), count)
        if path is None:
            return None
        stages, chosen = path
        used = np.bincount(chosen, units[stages, chosen], problem.type_count)
        paid = float((used * problem.price_per_hour).sum())
        if np.all(used <= problem.max_units) and paid < best_paid:
            best, best_paid = (table.positions[first[stages]], chosen), paid
        if step == 0 and best is not None:
            break
        excess = (used - problem.max_units) / np.maximum(problem.max_units, 1)
        extra = np.maximum(0.0, extra + problem.price_per_hour * excess * 0.5 / (1 + 0.2 * step))
    return best


def shortest_path(
    first: np.ndarray, end: np.ndarray, price: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the stages (indices into first and end) of the cheapest plan, in order, and their types."""
    type_ = price.argmin(axis=1)
    table = np.full((count, count), np.inf)
    table[first, end] = price[np.arange(len(first)), type_]
    index = np.zeros((count, count), np.int64)
    index[first, end] = np.arange(len(first))
    total, before = np.zeros(count), np.zeros(count, np.int64)
    for at in range(1, count):
        through = total[:at] + table[:at, at]
        before[at] = through.argmin()
        total[at] = through[before[at]]
    if np.isinf(total[-1]):
        return None
    path, at = [], count - 1
    while at > 0:
        path.append(index[before[at], at])
        at = int(before[at])
    stages = np.array(path[::-1])
    return stages, type_[stages]


def batches(examples: Sequence[E], generator: np.random.Generator) -> Iterator[list[E]]:
    """Yield batches of problems of one size, for ever."""
    by_size = defaultdict(list)
    for example in examples:
        by_size[example.features.shape].append(example)
    while True:
        parts = []
        for group in by_size.values():
            order = generator.permutation(len(group))
            parts += [[group[i] for i in order[at : at + BATCH]] for at in range(0, len(group), BATCH)]
        for index in generator.permutation(len(parts)):
            yield parts[index]


def losses(policy: Policy, batch: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean surprise of a plan's types and of its stages' begins."""
    features = torch.from_numpy(np.stack([example.features for example in batch], axis=1).astype(np.float32))
    scores, begin_logits = policy(features)
    layers = len(features)
    row = np.repeat(np.arange(len(batch)), [len(example.starts) for example in batch])
    first = np.concatenate([example.starts for example in batch])
    end = np.concatenate([np.append(example.starts[1:], layers) for example in batch])
    chosen = torch.from_numpy(np.concatenate([example.types for example in batch]))
    sums = functional.pad(scores.cumsum(0), (0, 0, 0, 0, 1, 0))
    of_types = functional.cross_entropy(sums[end, row] - sums[first, row], chosen, reduction="sum")
    begins = torch.zeros(layers, len(batch))
    begins[first, row] = 1.0
    of_begins = functional.binary_cross_entropy_with_logits(begin_logits[1:], begins[1:], reduction="sum")
    return of_types / len(batch), of_begins / len(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(__file__).parents[1] / "passes/placement/learned" / SHIPPED_FILE
    )
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    started = time.monotonic()
    examples = list(draw_examples(options.problems, options.seed))
    held_out = examples[: len(examples) // 40]
    print(f"{len(examples)} plans in {time.monotonic() - started:.0f} s", flush=True)
    generator = np.random.default_rng(options.seed)
    stream = batches(examples[len(held_out) :], generator)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters())
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * max(0.02, 1 - step / options.steps)
        optimizer.zero_grad()
        torch.stack(losses(policy, next(stream))).sum().backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        optimizer.step()
        if step % 1000 == 999:
            with torch.no_grad():
                surprise = np.array([[float(part) for part in losses(policy, [e])] for e in held_out]).mean(0)
            at = f"{time.monotonic() - started:6.0f} s, step {step + 1}"
            print(
                f"{at}: surprise of held-out plans {surprise[0]:.3f} (types) + {surprise[1]:.3f} (begins)", flush=True
            )
    weights = {name: weight.half().numpy() for name, weight in policy.state_dict().items()}
    np.savez_compressed(options.output, **weights)
    print(f"{options.output}: {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
