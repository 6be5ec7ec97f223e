"""Reinforcement learning, the HeterPS method: a recurrent policy learns on the problem, its best plans are polished.

1. Simple plans and the warm start are evaluated: there is always something to give back.
2. The policy draws plans for a ladder of throughputs, since how far above the floor the best plan runs is not known.
3. REINFORCE, aiming at the best rung; where it finds no more, it starts again from the first weights, at the next.
4. The polish climbs from the best plans, and from plans kicked with more draws.

``rl`` is an LSTM that starts from weights trained on generated problems and shipped with the package; ``rl-rnn`` is
the paper's Elman cell and knows nothing at the start. torch is imported when the search begins, not before.

Left out: a bound (``certificate.py``).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from heterps_compile.cost.problem import Floats, Placement, Problem, SearchResult

from .archive import Archive
from .climb import Climb, Climbing
from .paths import Deadline
from .sampling import Proposals, draw_plans, stage_rules, uniform_proposal
from .seeds import require_feasible, seed_placements

if TYPE_CHECKING:
    from .policy import Policy

_ABOVE_FLOOR = (1, 1.04, 1.1, 1.2, 1.35, 1.6, 2, 3, 5, 9, 16, 32, 64)
_WITHOUT_FLOOR = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 0.7, 1, 1.4, 2, 4, 8, 16, 32)
_ON_A_RUNG = 16  # plans drawn
_AIM_AGAIN = 30  # rounds, after which the policy aims at what the best plan attains
_WARMTH = 2.0  # temperature of draws for kicks


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: the network is small, and threads cost it more than they bring."""
    import torch  # noqa: PLC0415 -- more than a second, and only a search needs it

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


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
    """Search with a learning policy.

    Attributes:
        rounds: Rounds of REINFORCE, restarts included.
        samples: Plans in a round.
        patience: Start again after so many rounds without a better plan of this start.
        start: ``"shipped"``: from the weights that come with the package; ``"fresh"``: from random ones;
            ``"uniform"``: no policy at all, plans are drawn blindly (to see what the policy is worth).
        cell: ``"lstm"`` or ``"rnn"``.
        kicks: Kicks of the polish; 0 to climb from the best plans only.
    """

    name: ClassVar[str] = "rl"

    rounds: int = 120
    samples: int = 64
    patience: int = 40
    start: Literal["shipped", "fresh", "uniform"] = "shipped"
    cell: Literal["lstm", "rnn"] = "lstm"
    kicks: int = 80

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Search; see :class:`.method.PlacementMethod`."""
        return self.trace(problem, seed=seed, time_limit_s=time_limit_s, warm_start=warm_start)[0]

    def trace(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> tuple[SearchResult, RlTrace]:
        """Search, and tell what each part contributed."""
        started, deadline = time.monotonic(), Deadline.after(time_limit_s)
        generator = np.random.default_rng(seed)
        archive = Archive(problem)
        archive.add_placements(seed_placements(problem, warm_start))
        with _one_thread() if self.start != "uniform" else nullcontext():
            proposals, rounds, restarts = self._learn(problem, archive, seed, generator, deadline)
        drawn, learned_s, learned = archive.evaluations, time.monotonic(), archive.best.value
        climb = Climb(problem, archive, Climbing(kicks=self.kicks), generator, deadline)
        climb.run(proposals)
        placement = archive.best.placement()
        value = require_feasible(problem, placement, self.name)
        now = time.monotonic()
        trace = RlTrace(
            policy_value=learned,
            polished_value=value,
            rounds=rounds,
            restarts=restarts,
            drawn=drawn,
            polished=archive.evaluations - drawn,
            stages_priced=climb.polish.priced,
            policy_s=learned_s - started,
            polish_s=now - learned_s,
        )
        gain = 1 - value / learned if learned > 0 else 0.0
        notes = [f"the polish made the policy's best plan {gain:.2%} cheaper" if np.isfinite(learned) else ""]
        if deadline.left_s() < 0:
            notes.append(f"the time limit ended the search after {rounds} of {self.rounds} rounds")
        result = SearchResult(
            placement=placement,
            value=value,
            bound=-np.inf,
            method=self.name,
            seed=seed,
            evaluations=archive.evaluations,
            search_s=now - started,
            notes=tuple(note for note in notes if note),
        )
        return result, trace

    def _learn(
        self, problem: Problem, archive: Archive, seed: int, generator: np.random.Generator, deadline: Deadline
    ) -> tuple[Proposals, int, int]:
        """Run REINFORCE; give what kicks are drawn from, the rounds and the restarts."""
        if self.start == "uniform":
            return self._draw_blindly(problem, archive, generator, deadline), 0, 0
        from .policy import fresh_policy, shipped_policy  # noqa: PLC0415 -- torch takes more than a second
        from .reinforce import Learner, Learning  # noqa: PLC0415 -- likewise

        def first_weights() -> "Policy":
            return shipped_policy() if self.start == "shipped" else fresh_policy(problem, self.cell, seed)

        goals = _goals(problem, archive)
        ladder = self._climb_ladder(
            problem, archive, first_weights(), goals=goals, generator=generator, deadline=deadline
        )
        if not ladder:
            return [uniform_proposal(problem)], 0, 0
        aims = [goal for _, goal, _ in sorted(ladder, key=lambda rung: rung[0])]
        rounds = restarts = 0
        while rounds < self.rounds and deadline.left_s() > 0:
            learner = Learner(problem, first_weights(), Learning(samples=self.samples), generator)
            learner.aim(aims[restarts % len(aims)])
            best, idle = np.inf, 0
            for own in range(self.rounds - rounds):
                draws, evaluation = learner.round()
                archive.add(draws.types, draws.begins, evaluation)
                rounds += 1
                value = float(np.min(evaluation.values))
                best, idle = (value, 0) if value < best else (best, idle + 1)
                if idle >= self.patience or deadline.left_s() < 0:
                    break
                if own % _AIM_AGAIN == _AIM_AGAIN - 1 and archive.best.throughput > 0 and restarts == 0:
                    learner.aim(archive.best.throughput)
            restarts += 1
        return [(scores / _WARMTH, logits / _WARMTH) for _, _, (scores, logits) in ladder], rounds, max(0, restarts - 1)

    def _climb_ladder(
        self,
        problem: Problem,
        archive: Archive,
        policy: "Policy",
        *,
        goals: list[float],
        generator: np.random.Generator,
        deadline: Deadline,
    ) -> list[tuple[tuple[float, float], float, tuple[Floats, Floats]]]:
        """Draw plans for every goal; give, for each: rank of its best plan, the goal, what plans are drawn from."""
        from .reinforce import proposal  # noqa: PLC0415 -- see above

        rules, rungs = stage_rules(problem), []
        for goal in goals:
            if deadline.left_s() < 0:
                break
            scores, logits = proposal(policy, problem, goal)
            draws = draw_plans(scores, logits, rules, _ON_A_RUNG, generator)
            best = archive.add(draws.types, draws.begins)[0]
            rungs.append((best.rank, goal, (scores, logits)))
        return rungs

    def _draw_blindly(
        self, problem: Problem, archive: Archive, generator: np.random.Generator, deadline: Deadline
    ) -> Proposals:
        """Evaluate as many plans as a policy would, none of them learned."""
        rules, blind = stage_rules(problem), uniform_proposal(problem)
        for _ in range(self.rounds + len(_ABOVE_FLOOR) * _ON_A_RUNG // self.samples):
            if deadline.left_s() < 0:
                break
            draws = draw_plans(*blind, rules, self.samples, generator)
            archive.add(draws.types, draws.begins)
        return [blind]


@dataclass(frozen=True, slots=True)
class RlRnn(Rl):
    """The paper's variant: an Elman network that learns from nothing, on every problem anew."""

    name: ClassVar[str] = "rl-rnn"

    rounds: int = 240
    start: Literal["shipped", "fresh", "uniform"] = "fresh"
    cell: Literal["lstm", "rnn"] = "rnn"


def _goals(problem: Problem, archive: Archive) -> list[float]:
    """Give the throughputs worth aiming at: from the floor up, or without one around the best simple plan's."""
    if problem.min_throughput > 0:
        return [problem.min_throughput * factor for factor in _ABOVE_FLOOR]
    base = archive.best.throughput
    if base <= 0:
        usable_s = np.where(np.isfinite(problem.compute_s), problem.compute_s, np.inf).min(axis=1)
        base = problem.batch / max(float(usable_s.sum()), 1e-12)
    return [base * factor for factor in _WITHOUT_FLOOR]
