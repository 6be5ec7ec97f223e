"""Reinforcement learning, the HeterPS method: a recurrent policy learns on the problem, its best plans are polished.

1. Simple plans and the warm start are evaluated: there is always something to give back.
2. The policy draws plans for a ladder of throughputs, since how far above the floor the best plan runs is not known.
3. REINFORCE, aiming at the best of them; where it finds no more, it starts again from the first weights, at the next.
4. The polish climbs (``climb.py``): from plans that the policy draws, and from good plans crossed with such. Between
   kicks the policy learns to draw what the polish found.

``rl`` is an LSTM that starts from weights trained on generated problems and shipped with the package; ``rl-rnn`` is
the paper's Elman cell and knows nothing at the start. torch is imported when the search begins, not before.

Left out: a bound (``certificate.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from heterps_compile.cost.finders import SIMPLE_PLAN
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.local.archive import Archive
from heterps_compile.passes.placement.local.climb import Climb, Climbing, Source
from heterps_compile.passes.placement.local.sampling import Proposals, draw_plans, stage_rules, uniform_proposal
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements
from heterps_compile.progress import tell

if TYPE_CHECKING:
    from .policy import Policy

_ABOVE_FLOOR = (1, 1.04, 1.1, 1.2, 1.35, 1.6, 2, 3, 5, 9, 16, 32)
_WITHOUT_FLOOR = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 1, 1.4, 2, 4, 8, 16)
_DRAWN_ON_A_RUNG = 16
_AIM_AGAIN = 30  # rounds, after which the policy aims at what the best plan attains


@dataclass(frozen=True, slots=True)
class RlTrace:
    """What each part of a search contributed.

    Attributes:
        policy_value: Best value before the polish; inf where nothing was feasible.
        polished_value: Best value after it.
        rounds: Rounds of REINFORCE.
        restarts: How often it started again.
        drawn: Plans evaluated before the polish.
        polished: Plans evaluated during the polish.
        stages_priced: Stages that the polish priced on its own.
        policy_s, polish_s: Seconds spent.
    """

    policy_value: float
    polished_value: float
    rounds: int
    restarts: int
    drawn: int
    polished: int
    stages_priced: int
    policy_s: float
    polish_s: float


@dataclass(frozen=True, slots=True)
class Rl:
    """Search with a learning policy (``--method rl``).

    Attributes:
        rounds: Rounds of REINFORCE, restarts included.
        samples: Plans in a round.
        patience: Start again after so many rounds without a better plan of this start.
        start: ``"shipped"``: from the weights that come with the package; ``"fresh"``: from random ones;
            ``"uniform"``: no policy at all, plans are drawn blindly, to see what a policy is worth.
        cell: ``"lstm"`` or ``"rnn"``.
        kicks: Kicks of the climb at most; 0 to polish the drawn plans only.
    """

    name: ClassVar[str] = "rl"

    rounds: int = 60
    samples: int = 64
    patience: int = 40
    start: Literal["shipped", "fresh", "uniform"] = "shipped"
    cell: Literal["lstm", "rnn"] = "lstm"
    kicks: int = 400

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
        return self.trace(problem, seed=seed, time_limit_s=time_limit_s, warm_start=warm_start)[0]

    def trace(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> tuple[SearchResult, RlTrace]:
        """Search, and tell what each part contributed.

        Raises:
            InfeasibleError: where no feasible placement was found.
        """
        started, deadline = now_s(), Deadline.after(time_limit_s)
        generator = np.random.default_rng(seed)
        archive = Archive(problem)
        archive.add_placements(seed_placements(problem, warm_start))
        simple = archive.best.rank
        learning = _Run(self, problem, archive, seed, generator, deadline)
        source = learning.draw_blindly() if self.start == "uniform" else learning.learn()
        drawn, learned_s, learned = archive.evaluations, now_s(), archive.best.value
        before_polish = archive.best.rank
        climb = Climb(problem, archive, Climbing(kicks=self.kicks), generator, deadline)
        climb.run(source)
        placement = archive.best.placement()
        value = require_feasible(problem, placement, self.name)
        now = now_s()
        trace = RlTrace(
            policy_value=learned,
            polished_value=value,
            rounds=learning.rounds,
            restarts=learning.restarts,
            drawn=drawn,
            polished=archive.evaluations - drawn,
            stages_priced=climb.prices.priced,
            policy_s=learned_s - started,
            polish_s=now - learned_s,
        )
        result = SearchResult(
            placement=placement,
            value=value,
            bound=-np.inf,
            method=self.name,
            seed=seed,
            evaluations=archive.evaluations,
            search_s=now - started,
            notes=self._notes(problem, trace, is_late=deadline.left_s() < 0),
            found_by=_who(archive.best.rank, simple, before_polish),
        )
        return result, trace

    def _notes(self, problem: Problem, trace: RlTrace, *, is_late: bool) -> tuple[str, ...]:
        notes, objective = [], OBJECTIVES[problem.objective]
        if np.isfinite(trace.policy_value):
            before, after = (
                objective.describe(value, problem.batch, problem.currency)
                for value in (trace.policy_value, trace.polished_value)
            )
            better = "found none better" if trace.polished_value == trace.policy_value else f"made that {after}"
            notes.append(f"the best plan of the learned policy: {before}; local search {better}")
        if is_late:
            whole = trace.rounds == self.rounds
            after = f"all {self.rounds}" if whole else f"{trace.rounds} of {self.rounds}"
            notes.append(
                f"the time limit ended the {'polish' if whole else 'search'}, after {after} rounds of learning"
            )
        return tuple(notes)


def _who(best: tuple[float, float], simple: tuple[float, float], before_polish: tuple[float, float]) -> str:
    """Say which part found the best plan, from the best ranks at the end, at the start and before the polish."""
    if best == simple:
        return SIMPLE_PLAN
    return "policy" if best == before_polish else "polish"


@dataclass(frozen=True, slots=True)
class RlRnn(Rl):
    """The paper's variant (``--method rl-rnn``): an Elman network that learns from nothing, on every problem anew."""

    name: ClassVar[str] = "rl-rnn"

    rounds: int = 240
    start: Literal["shipped", "fresh", "uniform"] = "fresh"
    cell: Literal["lstm", "rnn"] = "rnn"


@dataclass(frozen=True, slots=True)
class _Blind:
    """A source that never learns."""

    proposals: Proposals

    def first(self) -> Proposals:
        return self.proposals

    def learn(self, archive: Archive) -> Proposals:
        return self.proposals


@dataclass(slots=True)
class _Run:
    """One search before its polish: fills the archive, counts rounds and restarts, gives the source for the climb."""

    method: Rl
    problem: Problem
    archive: Archive
    seed: int
    generator: np.random.Generator
    deadline: Deadline
    rounds: int = 0
    restarts: int = 0

    def draw_blindly(self) -> Source:
        """Evaluate as many plans as a policy would draw, none of them learned."""
        goals = _goals(self.problem, self.archive)
        blind, rules = uniform_proposal(self.problem, goals[0]), stage_rules(self.problem)
        for _ in range(self.method.rounds + len(goals) * _DRAWN_ON_A_RUNG // self.method.samples):
            if self.deadline.left_s() < 0:
                break
            draws = draw_plans(blind, rules, self.method.samples, self.generator)
            self.archive.add(draws.types, draws.begins)
        return _Blind([blind])

    def learn(self) -> Source:
        """Draw on the ladder, then REINFORCE."""
        from .policy import fresh_policy, shipped_policy  # noqa: PLC0415 -- torch takes more than a second
        from .reinforce import Imitator, single_thread  # noqa: PLC0415 -- likewise

        def weights() -> "Policy":
            if self.method.start == "shipped":
                return shipped_policy()
            return fresh_policy(self.problem, self.method.cell, self.seed)

        with single_thread():
            ladder = self._draw_on_ladder(weights())
            if not ladder:
                return _Blind([uniform_proposal(self.problem, _goals(self.problem, self.archive)[0])])
            self._reinforce(weights, [goal for _, goal in sorted(ladder)])
            return Imitator(self.problem, weights(), [goal for _, goal in ladder])

    def _draw_on_ladder(self, policy: "Policy") -> list[tuple[tuple[float, float], float]]:
        """Draw plans for every goal; give the rank of the best one, and the goal."""
        from .reinforce import propose  # noqa: PLC0415 -- see above

        rules, rungs = stage_rules(self.problem), []
        for goal in _goals(self.problem, self.archive):
            if self.deadline.left_s() < 0:
                break
            draws = draw_plans(propose(policy, self.problem, goal), rules, _DRAWN_ON_A_RUNG, self.generator)
            rungs.append((self.archive.add(draws.types, draws.begins)[0].rank, goal))
        return rungs

    def _reinforce(self, weights: Callable[[], "Policy"], goals: list[float]) -> None:
        """Run REINFORCE, from the first weights again where it finds no more; goals come best first."""
        from .reinforce import Learner, Learning  # noqa: PLC0415 -- see above

        starts = 0
        while self.rounds < self.method.rounds and self.deadline.left_s() > 0:
            learner = Learner(self.problem, weights(), Learning(samples=self.method.samples), self.generator)
            learner.aim(goals[starts % len(goals)])
            starts, best, idle = starts + 1, np.inf, 0
            for own in range(1, self.method.rounds - self.rounds + 1):
                draws, evaluation = learner.round()
                self.archive.add(draws.types, draws.begins, evaluation)
                self.rounds += 1
                tell(fraction=self.rounds / self.method.rounds)
                value = float(np.min(evaluation.values))
                best, idle = (value, 0) if value < best else (best, idle + 1)
                if idle >= self.method.patience or self.deadline.left_s() < 0:
                    break
                if starts == 1 and own % _AIM_AGAIN == 0 and self.archive.best.throughput > 0:
                    learner.aim(self.archive.best.throughput)
        self.restarts = max(0, starts - 1)


def _goals(problem: Problem, archive: Archive) -> list[float]:
    """Return the throughputs worth aiming at: from the floor up, or without one around the best simple plan's.

    What is to be fast begins at the best simple plan; a plan of low latency may be as slow as it likes.
    """
    is_fast = problem.objective not in ("cost", "price")
    base = max(problem.min_throughput, archive.best.throughput if is_fast else 0.0)
    if base > 0:
        is_fixed = OBJECTIVES[problem.objective].sums_at_floor
        return [base * factor for factor in ((1,) if is_fixed else _ABOVE_FLOOR)]
    base = archive.best.throughput
    if base <= 0:
        once_s = np.where(np.isfinite(problem.compute_s), problem.compute_s, 1e9).min(axis=1)
        base = problem.batch / max(float(once_s.sum()), 1e-12)
    return [base * factor for factor in _WITHOUT_FLOOR]
