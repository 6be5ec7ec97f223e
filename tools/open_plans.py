"""Plans for the policy to learn from, of problems that proofs leave open: ``tools/train_policy.py --plans`` reads them.

    python tools/open_plans.py --first 0 --count 100 -o /tmp/plans_0.npz      # some three minutes

Problems are those of ``tools/bench_best.py`` (links between pairs of types, branches, limits, memory, machines, many
stages), from seeds of their own. Each is annealed, from plans of the shipped policy and from random ones, until so many
stages have been priced: the same options give the same file. Of the plans that differ in throughput, those within some
percent of the best are kept.
"""

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from bench_best import open_problems

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.deadline import NO_DEADLINE
from heterps_compile.passes.placement.learned.forward import propose_at, shipped_weights
from heterps_compile.passes.placement.learned.goals import FEW_GOALS
from heterps_compile.passes.placement.local.annealing import Anneal, Annealing, drawing
from heterps_compile.passes.placement.local.archive import Archive, Found
from heterps_compile.passes.placement.local.sampling import draw_plans, stage_rules, uniform_proposal
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.simple_plans import seed_placements

FIRST_SEED = 3_000_000  # far from those of bench_best and of train_policy
WITHIN = 0.03  # of the best value
MOST = 3  # plans of a problem


def good_plans(problem: Problem, seed: int, priced: int) -> list[Found]:
    """Return the best plan of an annealing and those nearly as good that differ; nothing where none is feasible."""
    archive, generator = Archive(problem), np.random.default_rng(seed)
    archive.add_placements(seed_placements(problem, None))
    proposals = [
        *propose_at(shipped_weights(), problem, FEW_GOALS.of(problem, archive.best.throughput)),
        uniform_proposal(problem),
    ]
    for proposal in proposals:
        draws = draw_plans(proposal, stage_rules(problem), 25, generator)
        archive.add(draws.types, draws.begins)
    how = Annealing(most_priced=priced, patience=10**9)
    for _ in Anneal(segment_table(problem), archive, generator, NO_DEADLINE, how).steps(
        drawing(problem, proposals, generator)
    ):
        pass
    most = archive.best.value * (1 + WITHIN)
    return [plan for plan in archive.niches(MOST) if plan.value <= most and plan.throughput > 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="problem")
    parser.add_argument("--count", type=int, default=100, help="of problems")
    parser.add_argument("--priced", type=int, default=15_000_000, help="stages in a problem's annealing")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    index, throughput, value, types, begins = list[int](), list[float](), list[float](), [], []
    drawn = itertools.islice(open_problems(FIRST_SEED), options.first, options.first + options.count)
    for place, (_, problem) in enumerate(drawn, options.first):
        for plan in good_plans(problem, place, options.priced):
            index.append(place)
            throughput.append(plan.throughput)
            value.append(plan.value)
            types.append(plan.types.astype(np.int8))
            begins.append(plan.begins)
        if place % 10 == 9:
            print(f"{time.process_time():.0f} s: {place + 1 - options.first} problems, {len(index)} plans", flush=True)
    np.savez_compressed(
        options.output,
        index=np.array(index),
        throughput=np.array(throughput),
        value=np.array(value),
        types=np.concatenate(types),
        begins=np.concatenate(begins),
    )


if __name__ == "__main__":
    main()
