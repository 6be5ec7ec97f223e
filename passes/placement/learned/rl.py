"""Reinforcement learning, the HeterPS method: a recurrent policy learns on the problem, its best plans are annealed.

1. Simple plans and the warm start are evaluated: there is always something to give back.
2. The policy draws plans for a grid of throughputs, since how far above the floor the best plan runs is not known.
3. REINFORCE, aiming at the best of them; where it finds no more, it starts again from the first weights, at the next.
4. Annealing (``annealing.py``), from the best plans, from plans drawn as in step 2, and from cheapest paths.

``rl`` is an LSTM, ``rl-rnn`` the Elman cell that the paper compares it with. Both learn on every problem from random
weights. torch is imported when the search begins, not before.

Left out: a bound (``certificate.py``).
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import ClassVar, Literal

import numpy as np

from heterps_compile.cost.finders import POLICY, POLISH, SIMPLE_PLAN
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.local.annealing import Anneal, Annealing, drawing
from heterps_compile.passes.placement.local.archive import Archive
from heterps_compile.passes.placement.local.kept_loops import compile_loop_beside
from heterps_compile.passes.placement.local.priced_paths import PAID, PricedPaths
from heterps_compile.passes.placement.local.sampling import (
    Proposal,
    Proposals,
    draw_plans,
    stage_rules,
    uniform_proposal,
)
from heterps_compile.passes.placement.local.segment_table import segment_table
from heterps_compile.passes.placement.simple_plans import require_feasible, seed_placements
from heterps_compile.progress import tell

from .goals import EVERY_GOAL

_DRAWN_ON_A_RUNG = 16
_WARMTH = 1.5  # temperature of the policy's draws for the annealing
_LOOK_S = 0.05  # between two looks at the deadline, while the loop is compiled
_AIM_AGAIN = 30  # rounds, after which the policy aims at what the best plan attains


@dataclass(frozen=True, slots=True)
class RlTrace:
    """What each part of a search contributed.

    Attributes:
        policy_value: Best value before the annealing; inf where nothing was feasible.
        polished_value: Best value after it.
        rounds: Rounds of REINFORCE.
        restarts: How often it started again.
        drawn: Plans evaluated before the annealing.
        polished: Plans evaluated during the annealing.
        stages_priced: Stages that the annealing priced.
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
        is_blind: Whether plans are drawn without a policy, to measure what a policy adds.
        cell: ``"lstm"`` or ``"rnn"``.
        annealing: How plans are annealed.
    """

    name: ClassVar[str] = "rl"

    rounds: int = 60
    samples: int = 64
    patience: int = 40
    is_blind: bool = False
    cell: Literal["lstm", "rnn"] = "lstm"
    annealing: Annealing = field(default_factory=lambda: Annealing(fresh=0.6, patience=120))

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
        search = RlSearch(self, problem, seed_placements(problem, warm_start), seed, deadline)
        archive = search.archive
        for _ in search.learning():
            tell(fraction=search.rounds / self.rounds)
        drawn, learned_s, learned = archive.evaluations, now_s(), archive.best.value
        for _ in search.annealing():
            pass
        placement = archive.best.placement()
        value = require_feasible(problem, placement, self.name)
        now = now_s()
        trace = RlTrace(
            policy_value=learned,
            polished_value=value,
            rounds=search.rounds,
            restarts=search.restarts,
            drawn=drawn,
            polished=archive.evaluations - drawn,
            stages_priced=search.stages_priced,
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
            found_by=search.found_by,
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
                f"the time limit ended the {'annealing' if whole else 'search'}, after {after} rounds of learning"
            )
        return tuple(notes)


@dataclass(frozen=True, slots=True)
class RlRnn(Rl):
    """The paper's other network (``--method rl-rnn``): Elman's cell in the place of the LSTM."""

    name: ClassVar[str] = "rl-rnn"

    rounds: int = 240
    cell: Literal["lstm", "rnn"] = "rnn"


_Rung = tuple[tuple[float, float], Proposal]


class RlSearch:
    """One search, a step at a time: first :meth:`learning`, then :meth:`annealing`.

    Attributes:
        archive: The best plans so far; it may be given others meanwhile.
        rounds, restarts: Of REINFORCE.
        stages_priced: Stages that the annealing priced.
    """

    def __init__(
        self, method: Rl, problem: Problem, starts: Sequence[Placement], seed: int, deadline: Deadline
    ) -> None:
        """Evaluate the plans to begin from."""
        self._method, self._problem, self._seed, self._deadline = method, problem, seed, deadline
        self._generator = np.random.default_rng(seed)
        self.archive = Archive(problem)
        self.archive.add_placements(starts)
        self._simple = self._before_polish = self.archive.best.rank
        self._proposals: Proposals = []
        self.rounds, self.restarts, self.stages_priced = 0, 0, 0
        self._loop = compile_loop_beside()

    @property
    def found_by(self) -> str:
        """Return which part found the best plan."""
        best = self.archive.best.rank
        if best == self._simple:
            return SIMPLE_PLAN
        return POLICY if best == self._before_polish else POLISH

    def learning(self) -> Iterator[None]:
        """Draw on the ladder, then REINFORCE: a step is a rung or a round."""
        self._proposals = yield from self._draw_blindly() if self._method.is_blind else self._learn()
        self._before_polish = self.archive.best.rank

    def annealing(self) -> Iterator[None]:
        """Anneal plans, walk after walk.

        Raises:
            ValueError: before :meth:`learning` has come to its end.
        """
        if not self._proposals:
            raise ValueError("the annealing draws from what was learned; run learning() first")
        problem, generator = self._problem, self._generator
        while not self._loop.is_ready(_LOOK_S):
            if self._deadline.left_s() < 0:
                return
            yield
        anneal = Anneal(segment_table(problem), self.archive, generator, self._deadline, self._method.annealing)
        draw = drawing(problem, self._proposals, generator)
        if problem.objective in PAID:
            draw = PricedPaths(anneal, self.archive, generator).drawing(draw)
        for _ in anneal.steps(draw):
            self.stages_priced = anneal.priced
            yield

    def _draw_blindly(self) -> Generator[None, None, Proposals]:
        """Evaluate as many plans as a policy would draw, none of them learned."""
        goals = EVERY_GOAL.of(self._problem, self.archive.best.throughput)
        blind, rules = uniform_proposal(self._problem, goals[0]), stage_rules(self._problem)
        for _ in range(self._method.rounds + len(goals) * _DRAWN_ON_A_RUNG // self._method.samples):
            if self._deadline.left_s() < 0:
                break
            draws = draw_plans(blind, rules, self._method.samples, self._generator)
            self.archive.add(draws.types, draws.begins)
            yield
        return [blind]

    def _learn(self) -> Generator[None, None, Proposals]:
        ladder = yield from self._draw_on_ladder()
        if not ladder:
            return [uniform_proposal(self._problem, EVERY_GOAL.of(self._problem, self.archive.best.throughput)[0])]
        goals = [proposal.throughput for _, proposal in sorted(ladder, key=itemgetter(0))]
        yield from self._reinforce(goals)
        return [proposal.warmed(_WARMTH) for _, proposal in ladder]

    def _draw_on_ladder(self) -> Generator[None, None, list[_Rung]]:
        """Draw plans for every goal; return the rank of the best plan and the proposal."""
        from .policy import fresh_policy  # noqa: PLC0415 -- torch takes more than a second
        from .reinforce import propose, single_thread  # noqa: PLC0415 -- see above

        policy = fresh_policy(self._problem, self._method.cell, self._seed)
        rules, rungs = stage_rules(self._problem), list[_Rung]()
        for goal in EVERY_GOAL.of(self._problem, self.archive.best.throughput):
            if self._deadline.left_s() < 0:
                break
            with single_thread():
                proposal = propose(policy, self._problem, goal)
            draws = draw_plans(proposal, rules, _DRAWN_ON_A_RUNG, self._generator)
            rungs.append((self.archive.add(draws.types, draws.begins)[0].rank, proposal))
            yield
        return rungs

    def _reinforce(self, goals: list[float]) -> Iterator[None]:
        """Run REINFORCE, from the first weights again if it finds no more, at the next goal; goals come best first."""
        from .policy import fresh_policy  # noqa: PLC0415 -- see above
        from .reinforce import Learner, Learning, single_thread  # noqa: PLC0415 -- see above

        starts, method = 0, self._method
        while self.rounds < method.rounds and self._deadline.left_s() > 0:
            policy = fresh_policy(self._problem, method.cell, self._seed)
            learner = Learner(self._problem, policy, Learning(samples=method.samples), self._generator)
            learner.aim(goals[starts % len(goals)])
            starts, best, idle = starts + 1, np.inf, 0
            for own in range(1, method.rounds - self.rounds + 1):
                with single_thread():
                    draws, evaluation = learner.round()
                self.archive.add(draws.types, draws.begins, evaluation)
                self.rounds += 1
                yield
                value = float(np.min(evaluation.values))
                best, idle = (value, 0) if value < best else (best, idle + 1)
                if idle >= method.patience or self._deadline.left_s() < 0:
                    break
                if starts == 1 and own % _AIM_AGAIN == 0 and self.archive.best.throughput > 0:
                    learner.aim(self.archive.best.throughput)
        self.restarts = max(0, starts - 1)
