"""Placements by a fixed rule: the paper's baselines, and what people do by hand.

A layer the rule's type may not run goes where it is cheapest instead, and a note names it. Stages are divided where
the plan needs more of them, or where they are too large or too slow undivided, at the positions that cost least.

Left out: any search.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from heterps_compile.cost.evaluate import evaluate, evaluate_one, to_arrays, to_placement
from heterps_compile.cost.problem import Bools, Ints, Placement, Problem, SearchResult
from heterps_compile.cost.segments import problem_tables
from heterps_compile.errors import InfeasibleError
from heterps_compile.passes.deadline import Deadline, now_s
from heterps_compile.passes.placement.proof.prove import prove
from heterps_compile.passes.placement.simple_plans import divide, require_feasible, seed_placements

_NAMED = 5  # layers that a note names; the others it counts
_DIVIDING_S = 5.0  # for finding cuts where a rule's stages do not fit


@dataclass(frozen=True, slots=True)
class FixedRule:
    """A method that takes the cheapest of a few placements, each given by a rule."""

    name: ClassVar[str]

    def rules(self, problem: Problem) -> list[Ints]:
        """Return the type of every layer, [L], as each rule has it.

        Raises:
            InfeasibleError: where the pool lacks a kind of device the rule needs.
        """
        raise NotImplementedError

    def __call__(
        self,
        problem: Problem,
        *,
        seed: int = 0,
        time_limit_s: float | None = None,
        warm_start: Placement | None = None,
    ) -> SearchResult:
        """Place by the rules; see :class:`~.method.PlacementMethod`. A warm start is one more candidate.

        Raises:
            InfeasibleError: where the pool lacks a kind of device the rule needs, or its placements are infeasible.
        """
        started, deadline = now_s(), Deadline.after(time_limit_s)
        rules, usable = self.rules(problem), problem_tables(problem).usable
        placements = [_divided(problem, _usable_types(problem, rule, usable), deadline) for rule in rules]
        if warm_start is not None:
            placements.append(seed_placements(problem, warm_start)[0])
        evaluation = evaluate(problem, *to_arrays(placements))
        best = int(np.lexsort((evaluation.violation, evaluation.values))[0])
        return SearchResult(
            placement=placements[best],
            value=require_feasible(problem, placements[best], self.name),
            bound=-np.inf,
            method=self.name,
            seed=seed,
            evaluations=len(placements),
            search_s=now_s() - started,
            notes=_moved(problem, self.name, placements[best], rules[best]) if best < len(rules) else (),
        )


@dataclass(frozen=True, slots=True)
class CpuOnly(FixedRule):
    """All layers on the CPU type that is cheapest for the plan (``--method cpu-only``)."""

    name: ClassVar[str] = "cpu-only"

    def rules(self, problem: Problem) -> list[Ints]:
        """Return one placement for every CPU type."""
        return [np.full(problem.layer_count, t) for t in _types_of_kind(problem, ("cpu",), self.name)]


@dataclass(frozen=True, slots=True)
class GpuOnly(FixedRule):
    """All layers on the GPU type that is cheapest for the plan (``--method gpu-only``)."""

    name: ClassVar[str] = "gpu-only"

    def rules(self, problem: Problem) -> list[Ints]:
        """Return one placement for every GPU type."""
        return [np.full(problem.layer_count, t) for t in _types_of_kind(problem, ("gpu",), self.name)]


@dataclass(frozen=True, slots=True)
class Heuristic(FixedRule):
    """Embeddings, and layers that read more than they compute, on a CPU; the rest on a GPU or NPU."""

    name: ClassVar[str] = "heuristic"

    def rules(self, problem: Problem) -> list[Ints]:
        """Return one placement for every pair of such types."""
        tables = problem_tables(problem)
        is_embedding = np.array([kind == "embedding" for kind in problem.layer_kinds])
        rules = []
        for cpu in _types_of_kind(problem, ("cpu",), self.name):
            is_data = is_embedding | (tables.data_s[:, cpu] > tables.compute_s[:, cpu])
            rules += [np.where(is_data, cpu, t) for t in _types_of_kind(problem, ("gpu", "npu"), self.name)]
        return rules


def _types_of_kind(problem: Problem, kinds: tuple[str, ...], method: str) -> list[int]:
    found = [t for t, kind in enumerate(problem.type_kinds) if kind in kinds]
    if not found:
        have = ", ".join(f"{n} ({k})" for n, k in zip(problem.type_names, problem.type_kinds, strict=True))
        raise InfeasibleError(f"{method} needs a {' or '.join(kinds)} in the pool, which has {have}")
    return found


def _moved(problem: Problem, method: str, placement: Placement, rule: Ints) -> tuple[str, ...]:
    """Name the layers that are not where the rule would have them."""
    moved = np.flatnonzero(np.array(placement.types) != rule)
    if not len(moved):
        return ()
    names = ", ".join(problem.layer_names[layer] for layer in moved[:_NAMED])
    more = f" and {len(moved) - _NAMED} more" if len(moved) > _NAMED else ""
    return (f"{method} could not place {names}{more} where its rule says; they go where they are cheapest",)


def _usable_types(problem: Problem, rule: Ints, usable: Bools) -> Ints:
    """Return the rule's types, but where they may not run a block of layers the cheapest that may."""
    layers = problem.layer_count
    starts = np.append(0, np.flatnonzero(~problem.uncuttable[1:layers]) + 1)
    types = rule.copy()
    tables = problem_tables(problem)
    once = np.maximum(tables.compute_s, tables.data_s) * problem.price_per_hour
    for first, end in zip(starts, np.append(starts[1:], layers), strict=True):
        wanted = types[first]
        types[first:end] = wanted
        if not usable[first:end, wanted].all():
            cost = np.where(usable[first:end].all(axis=0), once[first:end].sum(axis=0), np.inf)
            types[first:end] = int(np.argmin(cost))
    return types


def _divided(problem: Problem, types: Ints, deadline: Deadline) -> Placement:
    """Return the placement with these types, with as few cuts as are asked for, or else those that make it feasible."""
    placement = divide(problem, to_placement(types))
    if np.isfinite(evaluate_one(problem, placement)):
        return placement
    as_ruled = replace(problem, allowed=problem.allowed & (np.arange(problem.type_count) == types[:, None]))
    return prove(as_ruled, deadline.within(_DIVIDING_S), [placement]).placement or placement
