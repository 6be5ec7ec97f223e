"""What the default method adds: ``best`` beside ``exact``, ``rl`` and random plans with a polish, at equal time.

    python tools/bench_best.py                      # 100 open problems, 0.75 s each; and the plain ones
    python tools/bench_best.py --problems 12 --seconds 5 --known 10 --plain 12
    python tools/bench_best.py --plain 0 --problems 30 --methods "best,best without paths,annealing"

*Open* problems have links between pairs of types, branches and limits on units; half of them hold a part of the model
in the memory of most types, half ask for 4 to 12 stages, three in ten have units that share machines; 60 to 300 layers
and 4 to 8 types. Only those count that ``exact`` does not close in its time and of which somebody finds a plan. Nothing
was trained or tuned on their seeds. *Plain* ones are chains, with a limit or branches at most, which the exact search
closes: there the question is what ``best`` costs beside it.

All searches are on the clock of the processor, all threads of the process together, so that other work on the machine
takes nothing from any of them. The gap is value / best known - 1, over all searches of a problem and, with ``--known``,
over ``best`` from another seed in so many times the time. Where the first search is not better than every other one,
``best`` goes on for ``--longer`` times the time: where that proves the same value, nothing could have been better.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
from bench_exact import with_links
from synthetic import Recipe, synthetic_problem

from heterps_compile.cost.problem import Problem, SearchResult
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes import deadline
from heterps_compile.passes.placement.best import Best
from heterps_compile.passes.placement.learned.rl import Rl
from heterps_compile.passes.placement.local.annealing import Anneal, drawing
from heterps_compile.passes.placement.local.archive import Archive
from heterps_compile.passes.placement.local.sampling import draw_plans, stage_rules, uniform_proposal
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.proof.exact import Exact
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements

LAYERS = (60, 80, 100, 130, 160, 200, 250, 300)
TYPES = (4, 5, 6, 8)
HELD_BACK = 920_000  # first seed


BEGUN = 128  # plans


def annealed(problem: Problem, *, time_limit_s: float | None, seed: int) -> SearchResult:
    """Anneal random plans, without the proof."""
    began_s, end, archive = deadline.now_s(), deadline.Deadline.after(time_limit_s), Archive(problem)
    archive.add_placements(seed_placements(problem, None))
    generator, proposal = np.random.default_rng(seed), uniform_proposal(problem)
    draws = draw_plans(proposal, stage_rules(problem), BEGUN, generator)
    archive.add(draws.types, draws.begins)
    search = Anneal(segment_table(problem), archive, generator, end)
    for _ in search.steps(drawing(problem, [proposal], generator)):
        pass
    placement = archive.best.placement()
    value = require_feasible(problem, placement, "annealing")
    return SearchResult(placement, value, -np.inf, "annealing", seed, archive.evaluations, deadline.now_s() - began_s)


METHODS: dict[str, Callable[..., SearchResult]] = {
    "best": Best(),
    "best without paths": Best(pricing=None),
    "exact": Exact(),
    "rl": Rl(),
    "annealing": annealed,
}
SHOWN = ("best", "exact", "rl")
TIE = 1e-4  # relative


def open_problems(first_seed: int) -> Iterator[tuple[str, Problem]]:
    """Draw problems without an end; most of them stay open."""
    for index in itertools.count():
        rng, seed = np.random.default_rng([first_seed, index]), first_seed + index
        layers, types = int(rng.choice(LAYERS)), int(rng.choice(TYPES))
        tight, machines, staged = (rng.random(3) < (0.5, 0.3, 0.5)).tolist()
        stages = int(rng.integers(4, 13)) if staged else 1
        recipe = Recipe(seed, layers, types, branched=True, limited=True, tight_memory=tight, machines=machines)
        problem = synthetic_problem(recipe)
        problem = with_links(replace(problem, min_throughput=0.8 * problem.min_throughput), seed)
        problem = replace(problem, min_stages=stages, max_units=problem.max_units + stages // 2)
        told = f"{layers} x {types}{', tight' * tight}{', machines' * machines}"
        yield f"{told}{f', {stages} stages' if staged else ''}", problem


def plain_problems(count: int) -> Iterator[tuple[str, Problem]]:
    for index in range(count):
        layers, kind = (20, 60, 100, 300)[index % 4], ("chain", "branches", "limits")[index // 4 % 3]
        recipe = Recipe(HELD_BACK + index, layers, 8, branched=kind == "branches", limited=kind == "limits")
        yield f"{layers} x 8, {kind}", synthetic_problem(recipe)


def value_of(
    method: Callable[..., SearchResult], problem: Problem, seconds: float | None, seed: int = 0
) -> tuple[float, float, bool]:
    """Return the value of what a method finds, inf for nothing; seconds of the processor; whether it is proven."""
    started = time.process_time()
    try:
        found = method(problem, time_limit_s=seconds, seed=seed)
    except InfeasibleError:
        return float("inf"), time.process_time() - started, False
    return found.value, time.process_time() - started, found.gap <= 0


@dataclass(frozen=True, slots=True)
class Longer:
    """What a longer search says about problems on which the first search was not better than every other one.

    Attributes:
        proven: The value of the first search is the optimum.
        beaten: There is a better plan.
        open: Neither is known.
    """

    proven: int = 0
    beaten: int = 0
    open: int = 0

    def with_one(self, problem: Problem, value: float, seconds: float) -> "Longer":
        """Return the counts with one problem more, given the first search's value."""
        best, _, is_proven = value_of(Best(), problem, seconds, seed=2)
        if best < value * (1 - TIE):
            return replace(self, beaten=self.beaten + 1)
        return replace(self, proven=self.proven + 1) if is_proven else replace(self, open=self.open + 1)


def bench_open(count: int, seconds: float, names: list[str], known_times: float, longer: float, seed: int) -> None:
    """Print how far each search is from the best plan known, and how often the first one is better."""
    gaps: dict[str, list[float]] = {name: [] for name in names}
    first, *others = names
    closed = nameless = wins = 0
    rest = Longer()
    value_of(Best(), next(open_problems(0))[1], 2.0)  # so that loading what is compiled counts for nobody
    for case, problem in open_problems(seed):
        if len(gaps[first]) == count:
            break
        found = {"exact": value_of(METHODS["exact"], problem, seconds)}
        if found["exact"][2]:
            closed += 1
            continue
        found |= {name: value_of(METHODS[name], problem, seconds) for name in names if name != "exact"}
        known = min(value for value, _, _ in found.values())
        if known_times:
            known = min(known, value_of(Best(), problem, known_times * seconds, seed=1)[0])
        if np.isinf(known):
            nameless += 1
            continue
        for name in names:
            gaps[name].append(found[name][0] / known - 1)
        told = ", ".join(f"{name} {gaps[name][-1]:.2%} ({found[name][1]:.1f} s)" for name in names)
        if all(gaps[first][-1] < gaps[name][-1] - TIE for name in others):
            wins += 1
        elif longer:
            before, rest = rest, rest.with_one(problem, found[first][0], longer * seconds)
            told += ": a longer search " + (
                "proves it" if rest.proven > before.proven else "is better" if rest.beaten > before.beaten else "too"
            )
        print(f"  {len(gaps[first])}. {case}: {told}", flush=True)
    ours = np.array(gaps[first])
    print(f"\n{count} open problems, {seconds:g} s of the processor each; to the best plan known, none as 100 %")
    print(f"{closed} more were closed by the exact search, of {nameless} nobody found a plan")
    print(
        f"{'':36}{'no plan':>10}{'mean':>10}{'median':>10}{'95 %':>10}{'worst':>10}{'in 1 %':>8}{'in 5 %':>8}   "
        f"{first} is better, as good ({TIE:.2%}), worse"
    )
    for name, theirs in gaps.items():
        there = np.array(theirs)
        with np.errstate(invalid="ignore"):
            equal = (abs(ours - there) <= TIE) | (np.isinf(ours) & np.isinf(there))
        counts = ((ours < there) & ~equal).sum(), equal.sum(), ((ours > there) & ~equal).sum()
        compared = "" if name == first else "   " + " / ".join(map(str, counts))
        mean, median, most = np.minimum(there, 1).mean(), np.median(there), np.quantile(there, 0.95, method="higher")
        print(
            f"{name:36}{np.isinf(there).sum():>10}{mean:>10.2%}{median:>10.2%}{most:>10.2%}{there.max():>10.2%}"
            f"{(there <= 0.01).sum():>8}{(there <= 0.05).sum():>8}{compared}"
        )
    print(f"{first} is better than each of {', '.join(others)} on {wins} of {count}", end="")
    if longer:
        print(
            f"; of the others {rest.proven} are proven optimal in {longer * seconds:g} s, so that nothing can be "
            f"better, on {rest.beaten} there is a better plan, and of {rest.open} neither is known: {wins} of "
            f"{count - rest.proven} on which something can be better",
            end="",
        )
    print()


def bench_plain(count: int) -> None:
    spent: dict[str, list[float]] = {"exact": [], "best": []}
    worst = 0.0
    for index, (_, problem) in enumerate(plain_problems(count)):
        times: dict[str, list[float]] = {"exact": [], "best": []}
        values = {}
        for turn in range(6):  # side by side, the order changed
            for name in ("exact", "best") if (index + turn) % 2 else ("best", "exact"):
                values[name], seconds, _ = value_of(METHODS[name], problem, None)
                times[name].append(seconds)
        for name, several in times.items():
            spent[name].append(min(several[1:]))
        worst = max(worst, abs(values["best"] / values["exact"] - 1))
    ratios = [ours / theirs for ours, theirs in zip(spent["best"], spent["exact"], strict=True)]
    print(
        f"\n{count} plain problems: best takes {statistics.median(ratios):.3f} times what exact takes in the median, "
        f"{max(ratios):.3f} times at most, {sum(spent['best']) / sum(spent['exact']):.3f} times in all "
        f"({sum(spent['exact']):.2f} s); values differ by {worst:.1g} at most"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.75)
    parser.add_argument(
        "--known", type=float, default=0.0, help="times the seconds, for a longer search for the best plan"
    )
    parser.add_argument(
        "--longer", type=float, default=20.0, help="times the seconds, to prove what was not better; 0 for none"
    )
    parser.add_argument("--plain", type=int, default=24)
    parser.add_argument("--first-seed", type=int, default=HELD_BACK, help="of the open ones; others to tune on")
    parser.add_argument("--methods", default=",".join(SHOWN), help="of the open ones")
    options = parser.parse_args()
    deadline.time = SimpleNamespace(monotonic=time.process_time)
    if options.plain:
        bench_plain(options.plain)
    if options.problems:
        names = [name.replace("; ", ", ") for name in options.methods.split(",")]
        bench_open(options.problems, options.seconds, names, options.known, options.longer, options.first_seed)


if __name__ == "__main__":
    main()
