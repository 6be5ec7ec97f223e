"""Train the policy that ships with the package: it learns to draw the plans that the exact search proves best.

Problems come from heterps_compile.cost.synthetic; every one is solved at its own floor and at a higher one. The loss is
the negative log-likelihood of the proven plan under the policy's own way of drawing plans (sampling.py): where stages
begin, and the type each takes. On a user's problem the policy then goes on learning by REINFORCE, without labels.

    python tools/train_policy.py                       # some 25 minutes on one core; writes the shipped file
    python tools/train_policy.py --problems 300 --steps 200 -o /tmp/policy.safetensors

The same options give the same file on the same machine and torch. Benchmarks draw their problems from other seeds.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional

from heterps_compile.cost.evaluate import evaluate, to_arrays
from heterps_compile.cost.synthetic import Recipe, synthetic_problem
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.placement.exact import Exact
from heterps_compile.passes.placement.features import layer_features
from heterps_compile.passes.placement.policy import SHIPPED_FILE, Policy

LAYERS = (6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 100)
TYPES = (2, 3, 4, 6, 8, 12, 16)
MOST_LIMITED_LAYERS = 40  # limits on units make the exact search slow beyond
FIRST_SEED = 1_000_000  # tests and benchmarks stay below
BATCH = 32


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """A problem's features [L, T, F] at the throughput its best plan reaches; where that plan's stages begin, types."""

    features: np.ndarray
    starts: tuple[int, ...]
    types: tuple[int, ...]


def draw_examples(count: int, seed: int) -> Iterator[Example]:
    generator = np.random.default_rng(seed)
    for index in range(count):
        layers, types = int(generator.choice(LAYERS)), int(generator.choice(TYPES))
        branched, limited, tight = generator.random(3) < (0.4, 0.35, 0.3)
        recipe = Recipe(
            seed=FIRST_SEED + index,
            layers=layers,
            types=types,
            branched=bool(branched),
            limited=bool(limited) and layers <= MOST_LIMITED_LAYERS,
            tight_memory=bool(tight),
        )
        problem = synthetic_problem(recipe)
        higher = float(np.exp(generator.uniform(0, 1.0)))
        for factor in (1.0,) if recipe.limited else (1.0, higher):
            raised = replace(problem, min_throughput=problem.min_throughput * factor)
            try:
                placement = Exact()(raised).placement
            except InfeasibleError:  # only a raised floor can be out of reach
                continue
            reached = float(evaluate(raised, *to_arrays([placement])).throughput[0])
            starts = placement.starts()
            features = layer_features(raised, reached).astype(np.float16)
            yield Example(features, starts, tuple(placement.types[start] for start in starts))


def batches(examples: list[Example], generator: np.random.Generator) -> Iterator[list[Example]]:
    """Give batches of problems of one size, for ever."""
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


def losses(policy: Policy, batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the mean surprise of a plan's types and of its stages' begins."""
    features = torch.from_numpy(np.stack([example.features for example in batch], axis=1).astype(np.float32))
    scores, begin_logits = policy(features)
    layers = len(features)
    row = np.repeat(np.arange(len(batch)), [len(example.starts) for example in batch])
    first = np.concatenate([example.starts for example in batch])
    end = np.concatenate([[*example.starts[1:], layers] for example in batch])
    chosen = torch.from_numpy(np.concatenate([example.types for example in batch]))
    sums = functional.pad(scores.cumsum(0), (0, 0, 0, 0, 1, 0))
    of_types = functional.cross_entropy(sums[end, row] - sums[first, row], chosen, reduction="sum")
    begins = torch.zeros(layers, len(batch))
    begins[first, row] = 1.0
    of_begins = functional.binary_cross_entropy_with_logits(begin_logits[1:], begins[1:], reduction="sum")
    return of_types / len(batch), of_begins / len(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=12_000)
    parser.add_argument("--steps", type=int, default=16_000)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path(__file__).parents[1] / "passes/placement" / SHIPPED_FILE)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    started = time.monotonic()
    examples = list(draw_examples(options.problems, options.seed))
    held_out = examples[: len(examples) // 40]
    print(f"{len(examples)} proven plans in {time.monotonic() - started:.0f} s", flush=True)
    generator = np.random.default_rng(options.seed)
    stream = batches(examples[len(held_out) :], generator)
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters())
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * max(0.02, 1 - step / options.steps)
        optimizer.zero_grad()
        sum(losses(policy, next(stream))).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 5.0)
        optimizer.step()
        if step % 1000 == 999:
            with torch.no_grad():
                surprise = np.array([[float(part) for part in losses(policy, [e])] for e in held_out]).mean(0)
            at = f"{time.monotonic() - started:6.0f} s, step {step + 1}"
            print(f"{at}: surprise of held-out plans {surprise[0]:.3f} (types) + {surprise[1]:.3f} (begins)", flush=True)
    save_file({name: weight.half().contiguous() for name, weight in policy.state_dict().items()}, options.output)
    print(f"{options.output}: {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
