"""Train a policy further, on plans of problems that proofs leave open: all of a plan at once, or layer after layer.

    python tools/open_plans.py --first 0 --count 120 -o /tmp/plans_0.npz          # and so on: 360 problems
    python tools/train_on_open.py /tmp/plans_?.npz -o /tmp/one_shot.npz
    python tools/train_on_open.py /tmp/plans_?.npz -o /tmp/layerwise.npz --network layerwise

Both begin with the weights that ``tools/train_policy.py`` made, learn from the same batches for as many steps, and are
judged by the surprise of plans of problems kept apart: the negative logarithm of a plan's probability. Plans of chains
(``train_policy.py``) are among the lessons, so that these are not forgotten.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from bench_best import open_problems
from layerwise_policy import LayerwisePolicy, surprise, taught
from open_features import open_features, policy_of_more
from open_plans import FIRST_SEED
from train_policy import Example, batches, draw_problems, losses, plans_of

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.learned.policy import Policy

KEPT_APART = 12  # every so manieth problem
AIMED_LOWER = (1.0, 0.9)  # throughputs that the policy is told, relative to the plan's own


@dataclass(frozen=True, slots=True, eq=False)
class Lesson(Example):
    """What ``layerwise_policy.taught`` says of it, too."""

    choices: tuple[np.ndarray, ...]


def lesson_of(problem: Problem, throughput: float, types: np.ndarray, begins: np.ndarray, *, layerwise: bool) -> Lesson:
    starts = np.flatnonzero(begins)
    features = open_features(problem, throughput).astype(np.float16)
    return Lesson(features, starts, types[starts], taught(problem, throughput, types, begins) if layerwise else ())


def open_lessons(paths: list[Path], *, layerwise: bool) -> tuple[list[Lesson], list[Lesson]]:
    """Return the lessons of files of plans: to learn from, and to be judged by."""
    learned, kept = list[Lesson](), list[Lesson]()
    plans: dict[int, list[tuple[float, np.ndarray, np.ndarray]]] = {}
    cases = []
    for path in paths:
        with np.load(path, allow_pickle=False) as arrays:
            cases.append({name: arrays[name] for name in arrays.files})
    last = max(int(case["index"].max()) for case in cases)
    problems = [problem for _, problem in itertools.islice(open_problems(FIRST_SEED), last + 1)]
    for case in cases:
        at = 0
        for index, throughput in zip(case["index"].tolist(), case["throughput"].tolist(), strict=True):
            end = at + problems[index].layer_count
            plans.setdefault(index, []).append(
                (throughput, case["types"][at:end].astype(np.int64), case["begins"][at:end])
            )
            at = end
    for index, several in plans.items():
        for throughput, types, begins in several:
            for share in AIMED_LOWER:
                lesson = lesson_of(problems[index], throughput * share, types, begins, layerwise=layerwise)
                (kept if index % KEPT_APART == 0 else learned).append(lesson)
    return learned, kept


def plain_lessons(count: int, seed: int, *, layerwise: bool) -> Iterator[Lesson]:
    for problem, throughput, starts, types in plans_of(
        draw_problems(count, np.random.default_rng(seed)), np.random.default_rng([seed, 1])
    ):
        begins = np.zeros(problem.layer_count, np.bool_)
        begins[starts] = True
        every = types[np.cumsum(begins) - 1]
        yield lesson_of(problem, throughput, every, begins, layerwise=layerwise)


def loss_of(network: Policy | LayerwisePolicy, batch: list[Lesson]) -> torch.Tensor:
    if isinstance(network, Policy):
        return torch.stack(losses(network, batch)).sum()
    features = torch.from_numpy(np.stack([lesson.features for lesson in batch], axis=1).astype(np.float32))
    return surprise(network, features, [lesson.choices for lesson in batch])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="+", help="files of tools/open_plans.py")
    parser.add_argument("--network", choices=("one-shot", "layerwise"), default="one-shot")
    parser.add_argument("--plain", type=int, default=1_000, help="chains")
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    is_layerwise = options.network == "layerwise"
    learned, kept = open_lessons(options.plans, layerwise=is_layerwise)
    learned += plain_lessons(options.plain, options.seed, layerwise=is_layerwise)
    print(f"{time.process_time():.0f} s: {len(learned)} lessons, {len(kept)} kept apart", flush=True)
    stream = batches(learned, np.random.default_rng(options.seed))
    network = LayerwisePolicy(policy_of_more()) if is_layerwise else policy_of_more()
    optimizer = torch.optim.Adam(network.parameters())
    for step in range(options.steps + 1):
        if step % 250 == 0:
            with torch.no_grad():
                told = np.mean([float(loss_of(network, [lesson])) for lesson in kept])
            print(f"{time.process_time():.0f} s, step {step}: surprise of plans kept apart {told:.3f}", flush=True)
        for group in optimizer.param_groups:
            group["lr"] = options.learning_rate * max(0.02, 1 - step / options.steps)
        optimizer.zero_grad()
        loss_of(network, next(stream)).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
        optimizer.step()
    np.savez_compressed(options.output, **{name: part.half().numpy() for name, part in network.state_dict().items()})
    print(f"{options.output}: {options.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
