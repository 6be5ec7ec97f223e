"""What the search methods are worth, at equal budget: the parts that take longer than a test may.

    python tools/bench_tune.py dehb                  DEHB against random search and Hyperband
    python tools/bench_tune.py dehb --package DIR    and its authors' package, in the environment DIR, made if need be
    python tools/bench_tune.py assignment            trials an hour on 150 unequal workers, simulated
    python tools/bench_tune.py local                 the same on throttled processes of this machine (tune_local.py)
    python tools/bench_tune.py clicks                AUC over time on the model of the training day (tune_clicks.py)

DEHB. Problems: counting ones (Falkner et al., ICML 2018) of 4+4 to 32+32 parameters, half of them categorical; and
tables of a small network on three data sets that scikit-learn ships, trained here at every point of a grid. Every
method has the same budget, counted in whole trials. The result is the regret, without noise, of the configuration with
the lowest loss among the longest trials. Medians of ten seeds; p of the two-sided Mann-Whitney test against ours. The
package needs numpy below 2, and gets an environment of its own; it is asked there, and told the losses of this process.
It may try a configuration again, which ours does not: it is held against ours with that allowed ("repeating") as well.

Assignment, by random search. "SVM": fifty workers each of 16, 8 and 4 cores; a trial is a support vector machine as in
the example of SHADHO's authors, ten classes one after another, each ten bagged fits at once on the cores. What a fit
takes and which kernel has the best loss are assumptions of this file, no measurements: poly takes twelve times as long
as linear, and the best loss is rbf's. What is predicted knows the work and the cores, and not that ten fits keep no
more than ten cores busy. "Mixed": 10 GPUs, 40 workers of 16 cores and 100 of 4; networks are 30 times as fast on a GPU
as on 16 cores, tables take the same everywhere. ``least_share`` 1 keeps the mix of the parts, 0.5 leaves half free;
"rarest" is the rarest part's share of the trials. Trials an hour over those of plain sharing; p is of the best losses.
"""

import argparse
import heapq
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from dehb_package import Package

from heterps_compile.tuning.ask_tell import Fidelity, Method
from heterps_compile.tuning.assignment import LEAST_SHARE, RULE, AssignedSearch, SearchSettings
from heterps_compile.tuning.brackets import Bracket
from heterps_compile.tuning.compute_classes import ComputeClass, TrialCost
from heterps_compile.tuning.dehb import Dehb
from heterps_compile.tuning.make_space import make_space
from heterps_compile.tuning.parameters import Choice, Float, Integer
from heterps_compile.tuning.search_methods import make_search
from heterps_compile.tuning.space import Config, Space, Vector
from heterps_compile.tuning.space_file import parse_space

OURS = "dehb"
OTHERS = ("random", "hyperband")
THEIRS = "the package"
REPEATING = "repeating"


@dataclass(frozen=True)
class Problem:
    """A function to be minimised, with noise on short trials.

    Attributes:
        name: As it is printed.
        space: The configurations.
        fidelity: The lengths of trials.
        loss: Of a configuration at a length, by a generator for noise.
        regret: Of a configuration, without noise.
        whole_trials: The budget.
    """

    name: str
    space: Space
    fidelity: Fidelity
    loss: Callable[[Config, float, np.random.Generator], float]
    regret: Callable[[Config], float]
    whole_trials: int


def counting_ones(half: int, whole_trials: int) -> Problem:
    """Count ones of ``half`` categorical parameters, and of as many that are probabilities of a one."""
    names = [f"train.p{i:02}" for i in range(half)]
    space = make_space(
        [*(Choice(f"model.c{i:02}", (0, 1)) for i in range(half)), *(Float(name, 0.0, 1.0) for name in names)]
    )
    size = 2 * half

    def split(config: Config) -> tuple[int, np.ndarray]:
        return sum(int(config[f"model.c{i:02}"]) for i in range(half)), np.array([float(config[n]) for n in names])

    def loss(config: Config, fidelity: float, noise: np.random.Generator) -> float:
        ones, chances = split(config)
        samples = int(fidelity)
        return -(ones + float(noise.binomial(samples, chances).sum()) / samples) / size

    def regret(config: Config) -> float:
        ones, chances = split(config)
        return 1 - (ones + float(chances.sum())) / size

    fidelity = Fidelity(576 / size, 93312 / size, unit="samples")
    return Problem(f"counting ones {half}+{half}", space, fidelity, loss, regret, whole_trials)


WIDTHS = (2, 4, 8, 16, 32)
EPOCHS = 27


def network_table(data: str, folder: Path, whole_trials: int) -> Problem:
    """Return the table of a network of one layer on a data set, by width, rate, decay, batch and epochs."""
    rates, decays = np.geomspace(1e-3, 1.0, 9), np.geomspace(1e-5, 0.3, 4)
    batches = (16, 64)
    space = make_space(
        [
            Integer("model.width", 0, len(WIDTHS) - 1),
            Integer("train.rate", 0, len(rates) - 1),
            Integer("train.decay", 0, len(decays) - 1),
            Choice("train.batch", batches),
        ]
    )
    shape = (len(WIDTHS), len(rates), len(decays), len(batches), EPOCHS)
    kept = folder / f"{data}-{'x'.join(map(str, shape))}.npy"
    if not kept.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        np.save(kept, np.array(list(_curves(data, rates, decays, batches))))
    table = np.load(kept).reshape(shape)
    best = table[..., -1].min()

    def at(config: Config) -> np.ndarray:
        place = (config["model.width"], config["train.rate"], config["train.decay"])
        return table[(*(int(i) for i in place), batches.index(int(config["train.batch"])))]

    return Problem(
        f"table of {data}",
        space,
        Fidelity(1, EPOCHS, unit="epochs"),
        lambda config, fidelity, _: float(at(config)[round(fidelity) - 1]),
        lambda config: float(at(config)[-1] - best),
        whole_trials,
    )


def _curves(data: str, rates: np.ndarray, decays: np.ndarray, batches: tuple[int, ...]) -> Iterator[list[float]]:
    """Yield the loss on held-out samples after every epoch, one list a point of the grid; in plain numpy."""
    from sklearn import datasets  # noqa: PLC0415

    given = getattr(datasets, f"load_{data}")()
    order = np.random.default_rng(0).permutation(len(given.target))[:600]
    features = np.asarray(given.data)[order]
    features = (features - features.mean(0)) / (features.std(0) + 1e-9)
    labels = np.eye(given.target.max() + 1)[given.target[order]]
    train = len(order) * 2 // 3
    for width in WIDTHS:
        for rate in rates:
            for decay in decays:
                for batch in batches:
                    yield _curve(features, labels, train, width, rate, decay, batch)


def _curve(x: np.ndarray, y: np.ndarray, train: int, width: int, rate: float, decay: float, batch: int) -> list[float]:
    random = np.random.default_rng(1)
    weights = [random.normal(size=(x.shape[1], width)) / np.sqrt(x.shape[1]), random.normal(size=(width, y.shape[1]))]
    weights[1] /= np.sqrt(width)
    losses = []
    for _ in range(EPOCHS):
        order = random.permutation(train)
        for at in range(0, train, batch):
            some = order[at : at + batch]
            hidden = np.maximum(x[some] @ weights[0], 0)
            wrong = (_softmax(hidden @ weights[1]) - y[some]) / len(some)
            back = (wrong @ weights[1].T) * (hidden > 0)
            weights[1] -= rate * (hidden.T @ wrong + decay * weights[1])
            weights[0] -= rate * (x[some].T @ back + decay * weights[0])
        chance = _softmax(np.maximum(x[train:] @ weights[0], 0) @ weights[1])
        losses.append(float(-np.log(np.clip((chance * y[train:]).sum(1), 1e-9, None)).mean()))
    return losses


def _softmax(scores: np.ndarray) -> np.ndarray:
    shifted = np.exp(scores - scores.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


def search(problem: Problem, ask_and_tell: Iterator[tuple[Config, float]], noise: np.random.Generator) -> float:
    """Return the regret of what is best when the budget is spent; ``ask_and_tell`` is sent the losses."""
    left = problem.whole_trials * problem.fidelity.most
    best: tuple[float, float, float] = (0.0, np.inf, np.inf)
    config, fidelity = next(ask_and_tell)
    while left > 0:
        loss = problem.loss(config, fidelity, noise)
        best = min(best, (-fidelity, loss, problem.regret(config)))
        left -= fidelity
        config, fidelity = ask_and_tell.send(loss)  # type: ignore[attr-defined]
    return best[2]


class Repeating(Dehb):
    """DEHB whose children may be configurations that were tried already, as those of the package may."""

    def _child(self, bracket: Bracket, rung: int, slot: int) -> Vector:
        tried, self._tried = self._tried, set()
        child = super()._child(bracket, rung, slot)
        self._tried = tried
        return child


def ours(problem: Problem, method: str, seed: int) -> Iterator[tuple[Config, float]]:
    if method == REPEATING:
        of: Method = Repeating(problem.space, problem.fidelity, seed)
    else:
        of = make_search(method, problem.space, problem.fidelity, seed)
    while True:
        trial = of.ask()
        loss = yield trial.config, trial.fidelity
        of.tell(trial.number, loss)


def rank_test(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return p of the two-sided Mann-Whitney test."""
    from scipy.stats import mannwhitneyu  # noqa: PLC0415

    return float(mannwhitneyu(one, other, alternative="two-sided").pvalue) if {*one} | {*other} != {*one[:1]} else 1.0


def compare_local(given: argparse.Namespace) -> bool:
    from tune_local import compare_local as compare  # noqa: PLC0415 - a script beside this one

    space = parse_space(tomllib.loads(NETWORKS))
    return compare(range(given.first_seed, given.first_seed + given.seeds), given.turn, space, loss_of, rank_test)


def compare_clicks(given: argparse.Namespace) -> bool:
    from tune_clicks import compare_clicks as compare  # noqa: PLC0415 - needs PyTorch

    return compare(given, rank_test)


def compare_dehb(given: argparse.Namespace) -> bool:
    problems = [
        *(counting_ones(half, given.budget or 75) for half in (4, 8, 16, 32)),
        *(network_table(data, given.tables, given.budget or 50) for data in ("digits", "wine", "breast_cancer")),
    ]
    package = Package(given.package) if given.package else None
    names = (OURS, *OTHERS, *([REPEATING, THEIRS] if package else []))
    apart = "   repeating to package" if package else ""
    print(f"{'problem':<24}{'budget':>7}" + "".join(f"{name:>24}" for name in names) + apart, flush=True)
    holds = True
    for problem in (each for each in problems if given.only in (None, each.name)):
        results: dict[str, tuple[float, ...]] = {}
        for name in names:
            found = []
            for seed in range(given.first_seed, given.first_seed + given.seeds):
                runs = package.search(problem, seed) if package and name == THEIRS else ours(problem, name, seed)
                found.append(search(problem, runs, np.random.default_rng([seed, 1])))
            results[name] = tuple(found)
        own = results[OURS]
        shown = [f"{median(own):>24.5f}"]
        for name in names[1:]:
            p = rank_test(own, results[name])
            shown.append(f"{median(results[name]):>13.5f}, p={p:<8.3f}")
            if name in OTHERS:
                holds &= median(own) <= median(results[name])
        if package:
            p = rank_test(results[REPEATING], results[THEIRS])
            shown.append(f"{f'p={p:.3f}':>12}")
            holds &= p > 0.05 or median(results[REPEATING]) < median(results[THEIRS])
        print(f"{problem.name:<24}{problem.whole_trials:>7}" + "".join(shown), flush=True)
    if package:
        package.close()
    told = "by the median DEHB is no worse than random search and Hyperband on every problem"
    told += ", and no test finds it behind the package where both may repeat" if package else ""
    print(told if holds else f"NOT SO: {told}")
    return holds


SVM = """
[model.kernel]
exclusive = true
[model.kernel.linear]
C = { float = [0.03125, 32768], log = true }
[model.kernel.rbf]
C = { float = [0.03125, 32768], log = true }
gamma = { float = [1e-3, 1e3], log = true }
[model.kernel.sigmoid]
C = { float = [0.03125, 32768], log = true }
gamma = { float = [1e-3, 1e3], log = true }
coef0 = { float = [-1000, 1000] }
[model.kernel.poly]
C = { float = [0.03125, 32768], log = true }
gamma = { float = [1e-3, 1e3], log = true }
coef0 = { float = [-1000, 1000] }
degree = { integer = [2, 15] }
"""
NETWORKS = """
[model.kind]
exclusive = true
[model.kind.tables]
rows = { float = [0, 1] }
[model.kind.network]
depth = { float = [0, 1] }
width = { float = [0, 1] }
"""
CORES = {"16 cores": 16, "8 cores": 8, "4 cores": 4, "GPU": 16}
FIT_S = {"linear": 1.0, "rbf": 3.0, "sigmoid": 4.0, "poly": 12.0}
LEAST_LOSS = {"linear": 0.08, "rbf": 0.012, "sigmoid": 0.05, "poly": 0.018, "tables": 0.02, "network": 0.01}


@dataclass(frozen=True)
class Workers:
    """Workers and trials to be simulated.

    Attributes:
        name: As it is printed.
        space: The space, as text.
        classes: The workers.
        predicted_s: What is predicted of a configuration on a class.
        taken_s: What it takes there.
    """

    name: str
    space: str
    classes: tuple[ComputeClass, ...]
    predicted_s: Callable[[Config, str], float]
    taken_s: Callable[[Config, str], float]


def kind_of(config: Config) -> str:
    return str(config.get("model.kernel", config.get("model.kind")))


def fit_s(config: Config) -> float:
    """Return what a fit takes: longer with a large C, which converges later."""
    kind = kind_of(config)
    return FIT_S[kind] * (1 + np.log10(float(config[f"model.kernel.{kind}.C"]) / 0.03125) / 3)


def svm_s(config: Config, name: str) -> float:
    return 10 * (0.2 + fit_s(config) * -(-10 // CORES[name]))


def svm_predicted_s(config: Config, name: str) -> float:
    return 100 * fit_s(config) / CORES[name]


def network_s(config: Config, name: str) -> float:
    if kind_of(config) == "tables":
        return 60 * (0.5 + float(config["model.kind.tables.rows"]))
    work = 600 * (0.5 + float(config["model.kind.network.depth"])) * (0.5 + float(config["model.kind.network.width"]))
    return work / (30 if name == "GPU" else CORES[name] / 16)


def loss_of(config: Config, space: Space, noise: np.random.Generator) -> float:
    away = space.vector_of(config)[1:] - 0.5  # 0.5 stands for what is not active
    return LEAST_LOSS[kind_of(config)] + 0.1 * float((away**2).sum()) + 0.001 * abs(noise.normal())


def simulate(workers: Workers, rule: str, least_share: float, seed: int, hours: float) -> tuple[float, float, float]:
    """Return trials an hour, the best loss, and the share of the rarest part."""
    space = parse_space(tomllib.loads(workers.space))
    settings = SearchSettings(space, "random", Fidelity(1, 1), seed, rule, least_share)
    search = AssignedSearch(settings, workers.classes, lambda c, _, of: TrialCost(workers.predicted_s(c, of.name)))
    noise = np.random.default_rng([seed, 2])
    names = [each.name for each in workers.classes for _ in range(each.workers)]
    free = [
        (0.0, int(i), name) for i, name in zip(np.random.default_rng(seed).permutation(len(names)), names, strict=True)
    ]
    events: list[tuple[float, int, str, int | None, float]] = [(at, i, name, None, 0.0) for at, i, name in free]
    heapq.heapify(events)
    ended: Counter[int] = Counter()
    while events[0][0] <= hours * 3600:
        now, worker, name, number, taken = heapq.heappop(events)
        if number is not None:
            assigned = search.open[number]
            ended[assigned.part] += 1
            search.tell(number, loss_of(assigned.config, space, noise), taken)
        following = search.ask(name)
        if following is None:
            raise RuntimeError("there is no budget")
        taken = workers.taken_s(following.config, name) * float(np.exp(0.1 * noise.normal()))
        heapq.heappush(events, (now + taken, worker, name, following.number, taken))
    if search.best is None:
        raise RuntimeError("no trial ended")
    return ended.total() / hours, search.best[1], min(ended[i] for i in range(len(search.parts))) / ended.total()


def compare_assignment(given: argparse.Namespace) -> bool:
    three = tuple(ComputeClass(name, 50, 32e9, 0.0, CORES[name] * 1e10) for name in ("16 cores", "8 cores", "4 cores"))
    counts = {"GPU": 10, "16 cores": 40, "4 cores": 100}
    mixed = tuple(ComputeClass(n, k, 32e9, 0.0, 1e13 if n == "GPU" else CORES[n] * 1e10) for n, k in counts.items())
    holds = True
    for workers in (
        Workers("150 workers, SVM", SVM, three, svm_predicted_s, svm_s),
        Workers("150 workers, mixed", NETWORKS, mixed, network_s, network_s),
    ):
        print(
            f"{workers.name}\n{'rule':<8}{'least_share':>12}{'trials/h':>10}{'over plain':>12}{'rarest':>8}{'best':>10}"
        )
        plain: list[tuple[float, float, float]] = []
        for rule, least in (("plain", 1.0), ("cost", 1.0), ("cost", 0.5)):
            found = [
                simulate(workers, rule, least, seed, given.hours)
                for seed in range(given.first_seed, given.first_seed + given.seeds)
            ]
            plain = plain or found
            rate, best, rarest = (median(column) for column in zip(*found, strict=True))
            over = rate / median(each[0] for each in plain)
            p = rank_test(tuple(each[1] for each in found), tuple(each[1] for each in plain))
            print(f"{rule:<8}{least:>12}{rate:>10.0f}{over:>12.2f}{rarest:>8.2f}{best:>10.5f}, p={p:.3f}", flush=True)
            if (rule, least) == (RULE, LEAST_SHARE):
                worse = p < 0.05 and best > median(each[1] for each in plain)
                holds &= over >= 2.0 and not worse
    told = "by default at least 2.0 times plain sharing's trials end, with no worse best loss"
    print(told if holds else f"NOT SO: {told}")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["dehb", "assignment", "local", "clicks"])
    parser.add_argument("--package", type=Path, help="environment of the package; made where it is not there")
    parser.add_argument("--tables", type=Path, default=Path("/tmp/bench-tune-tables"), help="where tables are kept")  # noqa: S108
    parser.add_argument("--only", help="the one problem to run, by its name")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=1.0, help="of the simulation")
    parser.add_argument("--turn", type=float, default=8.0, help="seconds of a rule's turn in local")
    parser.add_argument("--seeds", type=int, help="how many (default: 10; of local 16, of clicks 1)")
    parser.add_argument(
        "--budget", type=int, help="whole trials (default: 75 for counting ones, 50 for tables, 60 for clicks)"
    )
    parser.add_argument("--picture", default="auc-over-time.svg", help="where clicks draws AUC over time")
    parser.add_argument("--kept", type=Path, help="where clicks keeps what every seed came to; used where it is there")
    given = parser.parse_args()
    given.seeds = given.seeds or {"clicks": 1, "local": 16}.get(given.what, 10)
    parts = {"dehb": compare_dehb, "assignment": compare_assignment, "local": compare_local, "clicks": compare_clicks}
    return 0 if parts[given.what](given) else 1


if __name__ == "__main__":
    sys.exit(main())
