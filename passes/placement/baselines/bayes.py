"""Bayesian search with optuna's tree-structured Parzen estimator, one of the baselines of the HeterPS paper.

A trial chooses the number of stages up to a cap, where each begins, and a type for each: few choices, since the
estimator treats them one by one.

Left out: plans of more stages than the cap, a bound. Needs the package ``optuna``.
"""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate, to_arrays
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.local.sampling import StageRules, stage_rules
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True)
class Bayes:
    """Search with a model of which choices did well.

    Attributes:
        trials: Placements tried.
        stages: Cap on the number of stages, where the problem asks for no more.
    """

    name: ClassVar[str] = "bayes"

    trials: int = 300
    stages: int = 6

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Search; see :class:`.method.PlacementMethod`."""
        started, deadline = now_s(), Deadline.after(time_limit_s)
        import optuna  # noqa: PLC0415 - an extra that only this method needs

        optuna.logging.disable_default_handler()
        rules = stage_rules(problem)
        seeds = seed_placements(problem, warm_start)
        scores = _scores(problem, seeds)
        best, best_score = seeds[int(np.argmin(scores))], float(np.min(scores))
        evaluations = len(seeds)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate is one
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True)
        study = optuna.create_study(sampler=sampler)
        notes: tuple[str, ...] = ()
        for _ in range(self.trials):
            if deadline.left_s() < 0:
                notes = ("the time limit ended the search",)
                break
            trial = study.ask()
            placement = self._choose(trial, problem, rules)
            score = float(_scores(problem, [placement])[0])
            study.tell(trial, score)
            evaluations += 1
            if score < best_score:
                best, best_score = placement, score
        value = require_feasible(problem, best, self.name)
        return SearchResult(best, value, -np.inf, self.name, seed, evaluations, now_s() - started, notes)

    def _choose(self, trial: "optuna.Trial", problem: Problem, rules: StageRules) -> Placement:
        places = np.flatnonzero(rules.may_begin)
        most = min(max(self.stages, rules.fewest), rules.most)
        count = trial.suggest_int("stages", min(rules.fewest, most), most)
        chosen = {int(places[trial.suggest_int(f"begin_{i}", 1, len(places) - 1)]) for i in range(1, count)}
        begins = [0, *sorted(chosen)]
        types = np.zeros(problem.layer_count, np.int64)
        for i, begin in enumerate(begins):
            types[begin:] = trial.suggest_categorical(f"type_{i}", range(problem.type_count))
        return Placement(tuple(types.tolist()), tuple(p for p in begins[1:] if types[p] == types[p - 1]))


def _scores(problem: Problem, placements: list[Placement]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the logarithm of the value, or a number above all of them that grows with the violation."""
    evaluation = evaluate(problem, *to_arrays(placements))
    feasible = np.isfinite(evaluation.values)
    logs = np.log(np.where(feasible, np.maximum(evaluation.values, 1e-300), 1.0))
    return np.where(feasible, logs, 1e3 + np.log1p(evaluation.violation))
