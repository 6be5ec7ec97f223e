"""The best of both (``--method best``): the exact search, and beside it an annealing of whole plans.

Most problems are closed by the exact search in some tenths of a second, and nothing else ever begins. Where one stays
open, the two take turns in one thread, share the best plan and the bound, and stop as soon as these meet::

    exact search    |=== alone ===|   |=====|     |=====|     |==| closed, or no more to do
    annealing                     |===|     |=====|     |=====|  |====== to its end, if not closed

Without a time limit, turns are measured by work (segments and stages priced, plans evaluated), as much for each, so
that a seed gives the same plan again, unless ``proof_s`` ends the proof. With one, the annealing gets three times the
seconds of the proof, turns come while HiGHS works in a thread of its own too, and the annealing goes on to its end.

The annealing begins with random plans and with priced paths (``local/priced_paths.py``).

Left out: the searches (``proof/``, ``local/``), and learning on the problem, for which ``rl`` imports PyTorch.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate, evaluate_one, to_arrays
from heterps_compile.cost.finders import POLISH, SIMPLE_PLAN, WARM_START
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.passes.deadline import Budget, Deadline, now_s
from heterps_compile.passes.placement.compiled_loops import NOT_COMPILED, CompiledBeside
from heterps_compile.passes.placement.incumbent import Incumbent
from heterps_compile.progress import tell

from .local.annealing import Anneal, Annealing, drawing
from .local.archive import Archive
from .local.kept_loops import compile_loop_beside
from .local.priced_paths import PAID, PricedPaths, Pricing
from .local.sampling import draw_plans, stage_rules, uniform_proposal
from .local.segment_table import segment_table
from .proof.effort import EFFORT, Effort
from .proof.exact import no_plan, why_open
from .proof.prove import prove
from .proof.trivial_bounds import GAP
from .proof.why_infeasible import explain_infeasible
from .simple_plans import seed_placements

_LOOK_S = 0.05  # between two looks at the deadline, while the loop is compiled
_STAGES_OF_A_SEGMENT = 2  # that the annealing prices while the exact search prices one


@dataclass(frozen=True, slots=True)
class Turns:
    """How much each of the two searches works before it is the other's turn.

    Attributes:
        alone_work: Segments that the exact search prices before the other begins, where there is no time limit.
        alone_share, alone_s: Where there is one: the share of it, and the seconds at most, that it works alone.
        beside: Seconds that the annealing works afterwards for each of the exact search, where there is one.
        compile_share: Share of that after which another process compiles the loop of the annealing, where no earlier
            search did.
    """

    alone_work: int = 30_000_000
    alone_share: float = 0.1
    alone_s: float = 1.0
    beside: float = 3.0
    compile_share: float = 0.5


@dataclass(frozen=True, slots=True)
class Best:
    """Exact search and annealing side by side (``--method best``).

    Attributes:
        proof_s: Most seconds that the exact search works where there is no time limit.
        effort: What it may do; no answer depends on it.
        annealing: How the search beside it works.
        pricing: How plans are drawn for its walks at times of a batch; None for none such.
        drawn: Plans it begins from.
        turns: Who works when.
    """

    proof_s: float = 20.0
    effort: Effort = EFFORT
    annealing: Annealing = field(default_factory=lambda: Annealing(fresh=0.6))
    pricing: Pricing | None = field(default_factory=Pricing)
    drawn: int = 128
    turns: Turns = Turns()

    name: ClassVar[str] = "best"
    proves: ClassVar[bool] = True

    def __call__(
        self, problem: Problem, *, seed: int = 0, time_limit_s: float | None = None, warm_start: Placement | None = None
    ) -> SearchResult:
        """Find the placement of the lowest objective; see :class:`~.method.PlacementMethod`.

        Raises:
            InfeasibleError: where no placement is feasible, with the reason, or where none was found in time.
        """
        started, deadline = now_s(), Deadline.after(time_limit_s)
        if problem.min_stages > problem.layer_count:  # tables as large as that would be no help
            raise explain_infeasible(problem)
        starts, incumbent = seed_placements(problem, warm_start), Incumbent(problem, tells=True)
        _offer_starts(incumbent, starts, warm_start)
        beside = _Beside(self, incumbent, starts, seed, deadline)
        proof = prove(problem, beside.deadline_of_proof, starts, self.effort, incumbent=incumbent)
        incumbent.raise_bound(proof.bound)
        why_open = "" if proof.is_complete else self._why_open(beside, incumbent)
        if not proof.is_complete:
            beside.finish()
            why_open += "" if beside.has_annealed else f"; {NOT_COMPILED}"
        if incumbent.placement is None:
            raise no_plan(problem, proof, beside.deadline, time_limit_s)
        value = evaluate_one(problem, incumbent.placement)
        is_proven = incumbent.bound >= value * (1 - GAP)
        return SearchResult(
            placement=incumbent.placement,
            value=value,
            bound=value if is_proven else incumbent.bound,
            method=self.name,
            seed=seed,
            evaluations=proof.evaluations + beside.evaluations,
            search_s=now_s() - started,
            notes=() if is_proven else (why_open,),
            found_by=incumbent.found_by,
        )

    def _why_open(self, beside: "_Beside", incumbent: Incumbent) -> str:
        """Say what ended the proof."""
        if beside.deadline.left_s() > 0 >= beside.deadline_of_proof.left_s():
            return f"the proof was ended after {self.proof_s:g} s"
        return why_open(incumbent, beside.deadline)


def _offer_starts(incumbent: Incumbent, starts: Sequence[Placement], warm_start: Placement | None) -> None:
    values = evaluate(incumbent.problem, *to_arrays(list(starts))).values
    for start, value in zip(starts, values.tolist(), strict=True):
        if np.isfinite(value):
            incumbent.offer(start, value, WARM_START if start is warm_start else SIMPLE_PLAN)


class _Beside:
    """The annealing: begun when the exact search has had its time alone, and run in turns with it.

    Attributes:
        deadline: Of both.
        deadline_of_proof: Of the exact search, whose own seconds are limited where there is no time limit.
        evaluations: How many plans it evaluated.
    """

    def __init__(
        self, method: Best, incumbent: Incumbent, starts: Sequence[Placement], seed: int, deadline: Deadline
    ) -> None:
        self._method, self._incumbent, self._starts, self._seed = method, incumbent, starts, seed
        self.deadline, self._has_limit, turns = deadline, np.isfinite(deadline.end_s), method.turns
        self._alone_s = min(turns.alone_s, turns.alone_share * deadline.left_s())
        self._proof = Budget(np.inf, self._meanwhile) if self._has_limit else Budget(method.proof_s)
        self.deadline_of_proof = replace(self.deadline, budget=self._proof)
        self._work_of_proof, self._spent_s = 0, 0.0
        self._archive = Archive(incumbent.problem)
        self._anneal: Anneal | None = None
        self._paths: PricedPaths | None = None
        self._steps = self._begin()
        self._is_over, self._is_working = False, False
        self._loop: CompiledBeside | None = None
        incumbent.take_turns(self._turn)

    @property
    def has_annealed(self) -> bool:
        """Return whether its loop was compiled in time."""
        return self._loop is None or self._loop.is_ready()

    @property
    def evaluations(self) -> int:
        """Return how many plans it evaluated."""
        return self._archive.evaluations

    def finish(self) -> None:
        """Run to the end, to the deadline, or until nothing better can exist."""
        while not self._is_over:
            self._step()

    def _turn(self, work: int) -> None:
        """Work until the exact search is behind, which has priced so many segments more."""
        self._work_of_proof += work
        if self._loop is None and self._is_alone_for(self._method.turns.compile_share):
            self._loop = compile_loop_beside()
        if self._is_over or self._is_working or not self._is_due:
            return
        began_s, self._is_working = now_s(), True
        try:
            while not self._is_over and self._is_due:
                self._step()
                spent_s = now_s() - began_s
                self._proof.pause(spent_s)
                began_s, self._spent_s = began_s + spent_s, self._spent_s + spent_s
        finally:
            self._is_working = False

    def _meanwhile(self) -> bool:
        """Take a turn where the exact search lists segments or waits for a solver; return whether there was one."""
        before_s = self._spent_s
        self._turn(0)
        return self._spent_s > before_s

    @property
    def _is_due(self) -> bool:
        if self._has_limit:
            is_ready = self._loop is None or self._loop.is_ready()
            beside_s = self._method.turns.beside * (self._proof.spent_s - self._alone_s)
            return is_ready and beside_s > self._spent_s
        return self._work_of_proof - self._method.turns.alone_work > self._work

    def _is_alone_for(self, share: float) -> bool:
        """Return whether a share of what the exact search works alone is over."""
        if self._has_limit:
            return self._proof.spent_s > share * self._alone_s
        return self._work_of_proof > share * self._method.turns.alone_work

    @property
    def _work(self) -> int:
        """Return how much it has worked, in segments of the exact search that take as long."""
        priced = 0 if self._anneal is None else self._anneal.priced
        priced += 0 if self._paths is None else self._paths.priced
        return priced // _STAGES_OF_A_SEGMENT + self.evaluations * self._incumbent.problem.layer_count

    def _step(self) -> None:
        incumbent, archive = self._incumbent, self._archive
        is_met = incumbent.bound >= incumbent.value * (1 - GAP)
        if is_met or self.deadline.left_s() <= 0 or next(self._steps, True):
            self._is_over = True
        if not archive.evaluations:
            return
        best = archive.best
        if best.value < incumbent.value:
            incumbent.offer(best.placement(), best.value, POLISH)
        elif incumbent.value < best.value and incumbent.placement is not None:
            archive.add_placements([incumbent.placement])

    def _begin(self) -> Iterator[None]:
        tell("annealing beside the proof")
        problem, generator = self._incumbent.problem, np.random.default_rng(self._seed)
        how, rules = self._method.annealing, stage_rules(problem)
        if self._has_limit:
            how = replace(how, patience=sys.maxsize, most_priced=sys.maxsize)
        self._archive.add_placements(self._starts)
        proposal = uniform_proposal(problem)
        draws = draw_plans(proposal, rules, self._method.drawn, generator)
        self._archive.add(draws.types, draws.begins)
        yield
        if self._loop is None:
            self._loop = compile_loop_beside()
        while not self._loop.is_ready(_LOOK_S):
            yield
        draw, pricing = drawing(problem, [proposal], generator), self._method.pricing
        self._anneal = anneal = Anneal(segment_table(problem), self._archive, generator, self.deadline, how)
        if pricing is not None and problem.objective in PAID:
            self._paths = PricedPaths(anneal, self._archive, generator, pricing)
            draw = self._paths.drawing(draw)
        yield from anneal.steps(draw)
