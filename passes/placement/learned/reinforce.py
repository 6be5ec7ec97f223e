"""Learning on one problem: REINFORCE on drawn plans.

REINFORCE (Williams, 1992): draw plans, evaluate them, make the better ones more likely. The baseline is a moving
average of what plans cost, advantages are normalised, and a bonus on the entropy of the types keeps a policy from
settling too early. What a plan costs is the logarithm of its value; an infeasible one costs more than any feasible one
of its round, the more the further it is from feasible.

Left out: which throughput to aim at and when to start again (``rl.py``).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from heterps_compile.cost.evaluate import Evaluation, evaluate
from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.passes.placement.local.sampling import Draws, Proposal, draw_plans, stage_rules
from heterps_compile.process_state import beside

from .policy import Policy, policy_input

_CLIP = 3.0  # of normalised advantages
_GRADIENT_NORM = 1.0
_WORST = 2.0  # log of a value, above the best of the round


@dataclass(frozen=True, slots=True)
class Learning:
    """How the policy learns by REINFORCE.

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
    """A policy that learns by REINFORCE, aiming at one throughput at a time."""

    def __init__(self, problem: Problem, policy: Policy, learning: Learning, generator: np.random.Generator) -> None:
        self.problem = problem
        self.policy = policy
        self._rules = stage_rules(problem)
        self._learning = learning
        self._generator = generator
        self._optimizer = torch.optim.Adam(policy.parameters(), learning.learning_rate)
        self._baseline: float | None = None
        self._throughput = 1.0
        self._features = policy_input(problem, [1.0])

    def aim(self, throughput: float) -> None:
        """Set the throughput that the features speak of; the baseline starts again."""
        self._throughput = throughput
        self._features = policy_input(self.problem, [throughput])
        self._baseline = None

    def round(self) -> tuple[Draws, Evaluation]:
        """Draw plans, evaluate them, learn from them."""
        with beside():
            return self._round()

    def _round(self) -> tuple[Draws, Evaluation]:
        scores, begin_logits = self.policy(self._features)
        proposal = _proposal(scores.detach(), begin_logits.detach(), 0, self._throughput)
        draws = draw_plans(proposal, self._rules, self._learning.samples, self._generator)
        evaluation = evaluate(self.problem, draws.types, draws.begins)
        loss = self._loss(scores[:, 0], begin_logits[:, 0], draws, self._advantages(evaluation))
        _step(self._optimizer, self.policy, loss)
        return draws, evaluation

    def _advantages(self, evaluation: Evaluation) -> Floats:
        costs = _costs(evaluation)
        decay = self._learning.baseline_decay
        mean = float(costs.mean())
        self._baseline = mean if self._baseline is None else decay * self._baseline + (1 - decay) * mean
        return np.asarray(np.clip((self._baseline - costs) / (costs.std() + 1e-6), -_CLIP, _CLIP), np.float64)

    def _loss(self, scores: Tensor, begin_logits: Tensor, draws: Draws, advantages: Floats) -> Tensor:
        first, end, type_, plan = (torch.from_numpy(a) for a in (draws.first, draws.end, draws.type, draws.plan))
        sums = functional.pad(scores.cumsum(0), (0, 0, 1, 0))
        log_types = torch.log_softmax(sums[end] - sums[first], dim=1)
        begins = torch.from_numpy(draws.begins[:, 1:].astype(np.float32))
        surprise = functional.binary_cross_entropy_with_logits(
            begin_logits[1:].expand_as(begins), begins, reduction="none"
        )
        weight = torch.from_numpy(advantages.astype(np.float32))
        learned = (weight[plan] * _chosen(log_types, type_)).sum() - (weight[:, None] * surprise).sum()
        return -learned / len(weight) - self._learning.entropy * _entropy(log_types)


def propose(policy: Policy, problem: Problem, throughput: float) -> Proposal:
    """Return what a policy draws plans from when it aims at a throughput."""
    with beside(), torch.no_grad():
        scores, begin_logits = policy(policy_input(problem, [throughput]))
    return _proposal(scores, begin_logits, 0, throughput)


@contextmanager
def single_thread() -> Iterator[None]:
    """Run torch on one thread: the network is small, and results do not depend on the number of cores.

    Searches in several threads share the setting: the first saves it, the last puts it back.
    """
    with _setting:
        if not _threads:
            _threads.append(torch.get_num_threads())
            torch.set_num_threads(1)
        _threads.append(1)
    try:
        yield
    finally:
        with _setting:
            _threads.pop()
            if len(_threads) == 1:
                torch.set_num_threads(_threads.pop())


_setting = threading.Lock()
_threads: list[int] = []  # what to put back, and an entry for everybody inside


def _proposal(scores: Tensor, begin_logits: Tensor, row: int, throughput: float) -> Proposal:
    """Return one of the B proposals of a pass: scores [L, B, T], logits [L, B]."""
    return Proposal(
        throughput, scores[:, row].numpy().astype(np.float64), begin_logits[:, row].numpy().astype(np.float64)
    )


def _step(optimizer: torch.optim.Optimizer, policy: Policy, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    torch.nn.utils.clip_grad_norm_(policy.parameters(), _GRADIENT_NORM)
    optimizer.step()


def _chosen(log_types: Tensor, types: Tensor) -> Tensor:
    return log_types.gather(1, types[:, None])[:, 0]


def _entropy(log_types: Tensor) -> Tensor:
    return -(log_types.exp() * log_types).sum(1).mean()


def _costs(evaluation: Evaluation) -> Floats:
    """Return [N], the logarithm of the value, or more than that of any feasible plan, by the violation."""
    feasible = np.isfinite(evaluation.values)
    if not feasible.any():
        return np.asarray(np.log1p(evaluation.violation), np.float64)
    values = np.log(np.maximum(evaluation.values, 1e-300), where=feasible, out=np.zeros(len(feasible)))
    best = values[feasible].min()
    worst = min(values[feasible].max(), best + _WORST)
    beyond = worst + 0.3 + 0.2 * np.log1p(evaluation.violation)
    return np.asarray(np.where(feasible, np.minimum(values, worst), beyond), np.float64)
