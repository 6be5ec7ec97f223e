"""REINFORCE on one problem: draw plans, evaluate them, make the better ones more likely (Williams, 1992).

The baseline is a moving average of what plans cost; advantages are normalised; a bonus on the entropy of the types
keeps a policy from settling too early. What a plan costs is the logarithm of its value; an infeasible one costs more
than any feasible one of its round, the more the further it is from feasible.

Left out: which throughput to aim at and when to start again (``rl.py``).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from heterps_compile.cost.evaluate import Evaluation, evaluate
from heterps_compile.cost.problem import Floats, Problem

from .policy import Policy, policy_input
from .sampling import Draws, StageRules, draw_plans, stage_rules

_CLIP = 3.0  # of normalised advantages
_GRADIENT_NORM = 1.0
_WORST = 2.0  # log of a value, above the best of the round


@dataclass(frozen=True, slots=True)
class Learning:
    """How the policy learns on one problem.

    Attributes:
        samples: Plans in a round.
        learning_rate: Of Adam.
        entropy: Weight of the entropy bonus.
        baseline_decay: Of the moving average.
    """

    samples: int = 64
    learning_rate: float = 5e-3
    entropy: float = 0.02
    baseline_decay: float = 0.8


class Learner:
    """A policy that learns on one problem, aiming at one throughput at a time."""

    def __init__(self, problem: Problem, policy: Policy, learning: Learning, generator: np.random.Generator) -> None:
        self.problem = problem
        self.policy = policy
        self.rules: StageRules = stage_rules(problem)
        self._learning = learning
        self._generator = generator
        self._optimizer = torch.optim.Adam(policy.parameters(), learning.learning_rate)
        self._baseline: float | None = None
        self._features = policy_input(problem, [1.0])

    def aim(self, throughput: float) -> None:
        """Set the throughput that the features speak of; the baseline starts again."""
        self._features = policy_input(self.problem, [throughput])
        self._baseline = None

    def round(self) -> tuple[Draws, Evaluation]:
        """Draw plans, evaluate them, learn from them."""
        scores, begin_logits = self.policy(self._features)
        scores, begin_logits = scores[:, 0], begin_logits[:, 0]
        draws = draw_plans(
            scores.detach().numpy().astype(np.float64),
            begin_logits.detach().numpy().astype(np.float64),
            self.rules,
            self._learning.samples,
            self._generator,
        )
        evaluation = evaluate(self.problem, draws.types, draws.begins)
        loss = self._loss(scores, begin_logits, draws, self._advantages(evaluation))
        self._optimizer.zero_grad()
        torch.autograd.backward([loss])
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), _GRADIENT_NORM)
        self._optimizer.step()
        return draws, evaluation

    def _advantages(self, evaluation: Evaluation) -> Floats:
        costs = _costs(evaluation)
        decay = self._learning.baseline_decay
        mean = float(costs.mean())
        self._baseline = mean if self._baseline is None else decay * self._baseline + (1 - decay) * mean
        return np.asarray(np.clip((self._baseline - costs) / (costs.std() + 1e-6), -_CLIP, _CLIP))

    def _loss(self, scores: Tensor, begin_logits: Tensor, draws: Draws, advantages: Floats) -> Tensor:
        first, end, type_, plan = (torch.from_numpy(a) for a in (draws.first, draws.end, draws.type, draws.plan))
        sums = functional.pad(scores.cumsum(0), (0, 0, 1, 0))
        log_types = torch.log_softmax(sums[end] - sums[first], dim=1)
        chosen = log_types.gather(1, type_[:, None])[:, 0]
        begins = torch.from_numpy(draws.begins[:, 1:].astype(np.float32))
        surprise = functional.binary_cross_entropy_with_logits(
            begin_logits[1:].expand_as(begins), begins, reduction="none"
        )
        weight = torch.from_numpy(advantages.astype(np.float32))
        learned = (weight[plan] * chosen).sum() - (weight[:, None] * surprise).sum()
        entropy = -(log_types.exp() * log_types).sum(1).mean()
        return -learned / len(weight) - self._learning.entropy * entropy


def _costs(evaluation: Evaluation) -> Floats:
    """Give [N], the logarithm of the value, or more than that of any feasible plan, by the violation."""
    feasible = np.isfinite(evaluation.values)
    if not feasible.any():
        return np.asarray(np.log1p(evaluation.violation))
    values = np.log(np.maximum(evaluation.values, 1e-300), where=feasible, out=np.zeros(len(feasible)))
    best = values[feasible].min()
    worst = min(values[feasible].max(), best + _WORST)
    return np.asarray(np.where(feasible, np.minimum(values, worst), worst + 0.3 + 0.2 * np.log1p(evaluation.violation)))


def proposal(policy: Policy, problem: Problem, throughput: float) -> tuple[Floats, Floats]:
    """Give the scores [L, T] and the begin logits [L] of a policy for a throughput."""
    with torch.no_grad():
        scores, begin_logits = policy(policy_input(problem, [throughput]))
    return scores[:, 0].numpy().astype(np.float64), begin_logits[:, 0].numpy().astype(np.float64)
