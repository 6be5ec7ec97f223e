"""The learned search: a recurrent policy over the layers, REINFORCE on this very problem, then a local polish.

HeterPS (arXiv 2111.10635, section 5) schedules with an LSTM over the layers trained by REINFORCE with a moving-average
baseline. Here all samples of a round share one pass of the network; normalised advantages, an entropy bonus and
restarts keep it from settling too early; and what the policy found best is polished, which is reported apart.

Left out: the network (``policy.py``), one round of learning (``reinforce.py``), the moves of the polish (``polish.py``).
"""

import time
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from heterps_compile.cost.evaluate import Evaluation, evaluate, to_arrays, to_placement
from heterps_compile.cost.problem import Placement, Problem, SearchResult

from .paths import Deadline
from .polish import Cut, Polish
from .sampling import Draws
from .seeds import require_feasible, seed_placements
from .spans import find_spans

_KEPT = 12  # different plans that a search remembers
_PACES = (1.0, 0.97, 0.92, 0.85, 1.03, 1.1)  # times of a batch at which a plan is polished, relative to its own
_SAME = 1e-9  # relative


@dataclass(frozen=True, slots=True)
class Rl:
    """REINFORCE with an LSTM policy, restarts and a polish (``--method rl``).

    Attributes:
        rounds: Rounds of learning in each start, of 64 plans each.
        starts: Policies that learn one after the other.
        patience: Rounds without a better plan after which a start ends.
    """

    rounds: int = 150
    starts: int = 3
    patience: int = 60

    name: ClassVar[str] = "rl"
    cell: ClassVar[Literal["lstm", "rnn"]] = "lstm"

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Search for the placement of the lowest objective; see :class:`~.method.PlacementMethod`.

        Raises:
            InfeasibleError: where no feasible placement was found.
        """
        started, deadline = time.monotonic(), Deadline.after(time_limit_s)
        pool = _Pool(problem)
        for placement in seed_placements(problem, warm_start):
            pool.add(placement, *_price(problem, placement))
        for start in range(self.starts):
            self._learn(problem, pool, seed + 1_000_003 * start, deadline)
        before = pool.best_value
        pool.polish(deadline)
        placement = pool.best
        value = require_feasible(problem, placement, self.name)
        note = f"the policy's best plan costs {before:.6g}, after the polish {value:.6g}"
        return SearchResult(
            placement=placement,
            value=value,
            bound=float("-inf"),
            method=self.name,
            seed=seed,
            evaluations=pool.evaluations,
            search_s=time.monotonic() - started,
            notes=(note,) if np.isfinite(before) else (),
        )

    def _learn(self, problem: Problem, pool: "_Pool", seed: int, deadline: Deadline) -> None:
        import torch  # noqa: PLC0415 - a second, and only this method needs it

        from .policy import fresh_policy  # noqa: PLC0415 - as above
        from .reinforce import Learner, Learning  # noqa: PLC0415 - as above

        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the network is small: threads cost more than they bring
        try:
            generator = np.random.default_rng(seed)
            learner = Learner(problem, fresh_policy(problem, self.cell, seed), Learning(), generator)
            learner.aim(pool.best_throughput or problem.min_throughput or 1.0)
            best, since = np.inf, 0
            for _ in range(self.rounds):
                if deadline.left_s() <= 0 or since > self.patience:
                    break
                draws, evaluation = learner.round()
                pool.see(draws, evaluation)
                lowest = float(evaluation.values.min())
                best, since = (lowest, 0) if lowest < best * (1 - _SAME) else (best, since + 1)
        finally:
            torch.set_num_threads(threads)


@dataclass(frozen=True, slots=True)
class RlRnn(Rl):
    """The same with Elman's recurrent cell, the variant of the HeterPS paper (``--method rl-rnn``)."""

    name: ClassVar[str] = "rl-rnn"
    cell: ClassVar[Literal["lstm", "rnn"]] = "rnn"


class _Pool:
    """The best different plans seen, and how many were evaluated."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.evaluations = 0
        self._plans: dict[Placement, tuple[float, float]] = {}

    @property
    def best(self) -> Placement:
        """The cheapest plan."""
        return min(self._plans, key=lambda plan: self._plans[plan][0])

    @property
    def best_value(self) -> float:
        """Its value; inf where none is feasible."""
        return self._plans[self.best][0]

    @property
    def best_throughput(self) -> float:
        """Its throughput; 0 where none is feasible."""
        return self._plans[self.best][1]

    def add(self, placement: Placement, value: float, throughput: float) -> None:
        """Remember a plan, and forget the worst where there are too many."""
        self._plans[placement] = (value, throughput)
        if len(self._plans) > 4 * _KEPT:
            kept = sorted(self._plans, key=lambda plan: self._plans[plan][0])[:_KEPT]
            self._plans = {plan: self._plans[plan] for plan in kept}

    def see(self, draws: Draws, evaluation: Evaluation) -> None:
        """Remember the best plans of a round."""
        self.evaluations += len(evaluation.values)
        for plan in np.argsort(evaluation.values, kind="stable")[:3]:
            if np.isfinite(evaluation.values[plan]):
                placement = to_placement(draws.types[plan], draws.begins[plan])
                self.add(placement, float(evaluation.values[plan]), float(evaluation.throughput[plan]))

    def polish(self, deadline: Deadline) -> None:
        """Descend from every plan, the best first, and from what that finds, until nothing gets cheaper."""
        spans = find_spans(self.problem)
        polish = Polish(spans)
        index = np.searchsorted(spans.positions, np.arange(self.problem.layer_count + 1))
        feasible = [(*found, plan) for plan, found in self._plans.items() if np.isfinite(found[0])]
        for value, throughput, plan in sorted(feasible, key=lambda entry: entry[0])[:_KEPT]:
            while deadline.left_s() > 0:
                bounds = np.append(index[list(plan.starts())], len(spans.positions) - 1)
                cut = Cut(bounds, np.array([plan.types[p] for p in plan.starts()]))
                cuts = [polish.descend(cut, self.problem.batch / throughput * pace * (1 + _SAME)) for pace in _PACES]
                found = _evaluate_cuts(self.problem, spans.positions, cuts)
                self.evaluations += len(cuts)
                best = int(np.argmin(found.values))
                if not found.values[best] < value * (1 - _SAME):
                    break
                value, throughput = float(found.values[best]), float(found.throughput[best])  # noqa: PLW2901 - as the plan does
                plan = _placement(self.problem, spans.positions, cuts[best])  # noqa: PLW2901 - the plan moves on
                self.add(plan, value, throughput)


def _rows(problem: Problem, positions: np.ndarray, cut: Cut) -> tuple[np.ndarray, np.ndarray]:
    ends = positions[cut.bounds]
    begins = np.zeros(problem.layer_count, np.bool_)
    begins[ends[:-1]] = True
    return np.repeat(cut.types, np.diff(ends)), begins


def _placement(problem: Problem, positions: np.ndarray, cut: Cut) -> Placement:
    return to_placement(*_rows(problem, positions, cut))


def _evaluate_cuts(problem: Problem, positions: np.ndarray, cuts: list[Cut]) -> Evaluation:
    rows = [_rows(problem, positions, cut) for cut in cuts]
    return evaluate(problem, np.stack([types for types, _ in rows]), np.stack([begins for _, begins in rows]))


def _price(problem: Problem, placement: Placement) -> tuple[float, float]:
    found = evaluate(problem, *to_arrays([placement]))
    return float(found.values[0]), float(found.throughput[0])
