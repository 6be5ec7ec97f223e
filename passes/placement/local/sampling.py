"""Plans drawn from a policy's scores: where stages begin is drawn for every layer, then a type for every stage.

A stage's type is drawn from the softmax of the *sum* of its layers' scores: the layers of a stage vote, and what is
true of the cost (a stage's work is the sum of its layers') is true of the scores. So one pass of the network serves
any number of plans, and still no stage is torn apart by layers that chose alone.

Left out: the network (``policy.py``), and how it learns (``reinforce.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from heterps_compile.cost.problem import Bools, Floats, Ints, Problem

_FORBIDDEN = 1e9  # taken off a stage's score for every layer that its type may not run


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """What plans can be drawn from.

    Attributes:
        throughput: Samples/s that they aim at.
        scores: [L, T], of a type for a layer.
        begin_logits: [L], of a stage beginning at a layer.
    """

    throughput: float
    scores: Floats
    begin_logits: Floats

    def warmed(self, temperature: float) -> "Proposal":
        """Return a proposal of more varied plans."""
        return Proposal(self.throughput, self.scores / temperature, self.begin_logits / temperature)


Proposals = Sequence[Proposal]

Draw = Callable[[], tuple[Ints, Bools]]
"""Draws a plan: the type of every layer, and where stages begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """N plans, and their stages one after the other.

    Attributes:
        types: [N, L].
        begins: [N, L], True where a stage begins, 0 included; what ``evaluate`` takes as cuts.
        plan: [M], which plan a stage belongs to.
        first, end: [M], layers first .. end - 1.
        type: [M].
    """

    types: Ints
    begins: Bools
    plan: Ints
    first: Ints
    end: Ints
    type: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StageRules:
    """What holds for every plan of a problem.

    Attributes:
        may_begin: [L], True where a stage may begin.
        banned: [L + 1, T], how many layers before a position the type may not run.
        fewest, most: Bounds on the number of stages.
    """

    may_begin: Bools
    banned: Ints
    fewest: int
    most: int


def stage_rules(problem: Problem) -> StageRules:
    """Return the rules of a problem."""
    banned = ~(problem.allowed & np.isfinite(problem.compute_s) & np.isfinite(problem.data_s))
    may_begin = ~problem.uncuttable[:-1]
    may_begin[0] = True
    most = int(np.count_nonzero(may_begin))
    return StageRules(
        may_begin=may_begin,
        banned=np.concatenate([np.zeros((1, banned.shape[1]), np.int64), np.cumsum(banned, axis=0, dtype=np.int64)]),
        fewest=min(problem.min_stages, most),
        most=min(problem.max_stages, most),
    )


def draw_plans(proposal: Proposal, rules: StageRules, count: int, generator: np.random.Generator) -> Draws:
    """Draw plans.

    Args:
        proposal: Scores and logits.
        rules: Of the problem.
        count: N.
        generator: Where chance comes from.
    """
    scores, begin_logits = proposal.scores, proposal.begin_logits
    layers, types = scores.shape
    noisy = begin_logits + generator.logistic(size=(count, layers))  # above 0 with the logit's probability
    noisy = np.where(rules.may_begin, noisy, -np.inf)
    noisy[:, 0] = np.inf
    begins = _within_bounds(noisy, rules)
    plan, first = np.nonzero(begins)
    end = np.append(first[1:], layers)
    end[end == 0] = layers
    sums = np.concatenate([np.zeros((1, types)), np.cumsum(scores, axis=0)])
    votes = sums[end] - sums[first] - _FORBIDDEN * (rules.banned[end] - rules.banned[first])
    type_ = np.argmax(votes + generator.gumbel(size=votes.shape), axis=1)
    return Draws(np.repeat(type_, end - first).reshape(count, layers), begins, plan, first, end, type_)


def _within_bounds(noisy: Floats, rules: StageRules) -> Bools:
    """Let a stage begin where ``noisy`` is above 0, or at the highest ones where that is too few or too many."""
    begins = noisy > 0
    stages = begins.sum(1)
    for bound, wrong in ((rules.fewest, stages < rules.fewest), (rules.most, stages > rules.most)):
        if np.any(wrong):
            rank = np.argsort(np.argsort(-noisy[wrong], axis=1), axis=1)
            begins[wrong] = rank < bound
    return begins


def uniform_proposal(problem: Problem, throughput: float = 1.0) -> Proposal:
    """Return what plans of some four stages are drawn from, every type as likely as any other."""
    layers = problem.layer_count
    logits = np.full(layers, -np.log(max(layers / 4 - 1, 0.5)))
    return Proposal(throughput, np.zeros((layers, problem.type_count)), logits)
