"""Trainings under every rule of synchronisation, with the replicas in this process; `bench_sync.py --runs` prints them.

Replicas are flat tensors and step one after the other; the rules' arithmetic is that of runtime/sync, and
bytes are counted message by message. Time is not measured: a step takes as long as it is said to compute, and waits for
what its rule leaves exposed on a link.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from plain_rules import combine_all, replica_gap, send_with_feedback
from sync_laws import Line
from sync_replicas import (
    BlockPredictors,
    CountedLink,
    average,
    sum_dense,
    sum_of_selections,
)
from sync_tasks import Adam, Batch, ClickModel, Clicks, FlatModel, Task, click_loss
from torch import Tensor

from heterps_compile.runtime.sync.shadow import BlockMomentum
from heterps_compile.runtime.sync.top_k import select_threshold
from heterps_compile.sync_rules.adasum import Adasum
from heterps_compile.sync_rules.all_reduce_rule import AllReduce
from heterps_compile.sync_rules.local_steps import LocalSteps
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, SyncRule
from heterps_compile.sync_rules.rule_text import rule_text
from heterps_compile.sync_rules.shadow import Shadow
from heterps_compile.sync_rules.through_servers import Servers
from heterps_compile.sync_rules.topk import TopK

REPLICAS = 4
STEP_S = 0.005
LINKS = {"10 Gbit/s": Network(8 / 10e9, 20e-6), "200 Mbit/s": Network(8 / 200e6, 500e-6)}
CHECKS = 40
TARGET = 1.02
SYNC_STEPS = 4
"""Steps that an exchange in the background takes."""

RULES: tuple[SyncRule, ...] = (
    AllReduce(),
    TopK(0.01),
    TopK(0.01, feedback=False),
    Adasum(),
    Adasum(on="step"),
    LocalSteps(8),
    LocalSteps(64),
    Shadow(8, "average"),
    Shadow(8, "easgd"),
    Shadow(8, "bmuf"),
    Servers(4),
    Servers(16),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A training that ended.

    Attributes:
        rule: Its rule.
        checks: Steps and held-back loss then, in order.
        sent_bytes: Counted, of all replicas.
        planned_bytes: What the rule says.
        gap: Mean distance of replicas from their mean, in parts of its length, over the checks.
        group: What agreed.
    """

    rule: SyncRule
    checks: tuple[tuple[int, float], ...]
    sent_bytes: int
    planned_bytes: float
    gap: float
    group: SyncGroup

    @property
    def loss(self) -> float:
        """Return the mean of the last four checks."""
        last = [loss for _, loss in self.checks[-4:]]
        return sum(last) / len(last)

    def steps_to(self, target: float) -> int | None:
        """Return the step of the first check at a loss or below it."""
        return next((step for step, loss in self.checks if loss <= target), None)

    def time_s(self, target: float, network: Network) -> float | None:
        """Return the seconds to a loss on a link, where it is reached."""
        steps = self.steps_to(target)
        group = replace(self.group, network=network)
        return None if steps is None else steps * (STEP_S + self.rule.exposed(group).time_s)


class Together:
    """Replicas that take the same step on what a rule makes of their gradients."""

    def __init__(self, rule: SyncRule, model: FlatModel, rate: float) -> None:
        self._rule, self._model = rule, model
        self._adam = Adam(model.start, rate)
        self._kept: list[Tensor | None] = [None] * REPLICAS
        stale = rule.staleness or 0 if isinstance(rule, Servers) else 0
        self._seen: deque[Tensor] = deque([model.start] * (stale + 1), stale + 1)
        self.link, self.gap = CountedLink(1), 0.0

    def step(self, step: int, batches: Sequence[Batch]) -> None:
        gradients = [self._model.gradient(self._seen[0], batch) for batch in batches]
        self._adam.step(self._agreed(gradients))
        self._seen.append(self._adam.now.clone())

    def _agreed(self, gradients: Sequence[Tensor]) -> Tensor:
        ranks = range(REPLICAS)
        size_bytes = gradients[0].numel() * 4
        match self._rule:
            case TopK(feedback=feedback) as rule:
                k = rule.kept(gradients[0].numel())
                parts = zip(gradients, self._kept, strict=True)
                sent = [send_with_feedback(own / REPLICAS, kept, k, select_threshold) for own, kept in parts]
                self._kept = [residual if feedback else None for _, residual in sent]
                self.link.all_gather(ranks, [selection.size_bytes for selection, _ in sent])
                return sum_of_selections([selection for selection, _ in sent], gradients[0].numel())
            case Adasum():
                self.link.halve(ranks, gradients[0].numel(), 4, len(self._model.sizes))
                return combine_all(gradients, self._model.sizes)
            case Servers():
                self.link.between_bytes += 2 * REPLICAS * size_bytes
                return average(gradients)
            case _:
                return sum_dense(self.link, gradients) / REPLICAS

    @property
    def weights(self) -> Tensor:
        return self._adam.now


class Apart:
    """Replicas that step alone, and are brought together at once or in the background."""

    def __init__(self, rule: SyncRule, model: FlatModel, rate: float, delay_steps: int) -> None:
        self._rule, self._model, self._delay_steps = rule, model, delay_steps
        self._adams = [Adam(model.start, rate) for _ in range(REPLICAS)]
        self._centre, self._momentum = model.start.clone(), BlockMomentum.beginning(model.start)
        self._due: tuple[int, list[Tensor]] | None = None
        self.link = CountedLink(1)

    def step(self, step: int, batches: Sequence[Batch]) -> None:
        before = self._adams[0].now.clone()
        for adam, batch in zip(self._adams, batches, strict=True):
            adam.step(self._model.gradient(adam.now, batch))
        if isinstance(self._rule, Adasum):
            self.link.halve(range(REPLICAS), before.numel(), 4, len(self._model.sizes))
            moves = [adam.now - before for adam in self._adams]
            after = before + combine_all(moves, self._model.sizes)
            for adam in self._adams:
                adam.put(after)
            return
        if self._due is not None and step == self._due[0]:
            self._arrive(self._rule, self._due[1])
            self._due = None
        if (step + 1) % self._rule.period_steps == 0:
            models = [adam.now.clone() for adam in self._adams]
            if isinstance(self._rule, Shadow):
                if self._delay_steps:
                    self._due = (step + self._delay_steps, models)
                else:
                    self._arrive(self._rule, models)
            else:
                mean = self._mean(models)
                for adam in self._adams:
                    adam.put(mean)

    def _mean(self, models: Sequence[Tensor]) -> Tensor:
        return sum_dense(self.link, models) / REPLICAS

    def _arrive(self, rule: SyncRule, snapshots: Sequence[Tensor]) -> None:
        mean, pull, target = self._mean(snapshots), 1.0, None
        kind = rule.rule if isinstance(rule, Shadow) else "average"
        if kind == "easgd":
            pull, target = 0.9 / REPLICAS, self._centre
            self._centre = self._centre + REPLICAS * pull * (mean - self._centre)
        elif kind == "bmuf":
            self._momentum = self._momentum.after_block(mean, 1 - 1 / REPLICAS)
            target = self._momentum.weights
        for adam, snapshot in zip(self._adams, snapshots, strict=True):
            adam.put(adam.now + pull * ((mean if target is None else target) - snapshot))

    @property
    def weights(self) -> Tensor:
        return average([adam.now for adam in self._adams])

    @property
    def gap(self) -> float:
        return replica_gap([adam.now for adam in self._adams])


def train(task: Task, rule: SyncRule, delay_steps: int = SYNC_STEPS) -> Ended:
    """Train a task under a rule; all rules see the same samples. Without a delay ``shadow`` is in the foreground."""
    model = FlatModel(task.make, task.loss)
    alone = isinstance(rule, LocalSteps | Shadow) or rule == Adasum(on="step")
    replicas = Apart(rule, model, task.rate, delay_steps) if alone else Together(rule, model, task.rate)
    held_back = task.held_back
    checks, gaps = [], []
    for step in range(task.steps):
        whole = task.draw(REPLICAS * task.samples, step)
        batches = list(zip(*(part.chunk(REPLICAS) for part in whole), strict=True))
        replicas.step(step, batches)
        if (step + 1) % max(task.steps // CHECKS, 1) == 0:
            checks.append((step + 1, model.loss(replicas.weights, held_back)))
            gaps.append(replicas.gap)
    buffer = (FlatBuffer(model.start.numel()),)
    group = SyncGroup(REPLICAS, buffer, buffer, len(model.sizes), Network(1.0))
    exchanges = task.steps // rule.period_steps
    if isinstance(rule, Shadow):  # the last one is on its way at the end
        exchanges -= exchanges * rule.every - 1 + delay_steps >= task.steps
    planned = exchanges * rule.exchange(group).sent_bytes
    return Ended(rule, tuple(checks), replicas.link.between_bytes, planned, sum(gaps) / len(gaps), group)


def run_table(task: Task, ended: Sequence[Ended]) -> Iterator[str]:
    dense = ended[0]
    target = TARGET * dense.loss
    group = dense.group
    yield (
        f"{task.name}: {group.gradients[0].elements:,} weights, {REPLICAS} replicas of {task.samples} samples, "
        f"{task.steps} steps of Adam, {1000 * STEP_S:g} ms a step; time to a held-back loss of {target:.4f}, which is "
        f"{TARGET:g} of dense."
    )
    yield ""
    yield f"| rule | loss | of dense | kB a step and replica | gap | steps | {' | '.join(LINKS)} |"
    yield "|---|---|---|---|---|---|" + "---|" * len(LINKS)
    for one in ended:
        times = [one.time_s(target, network) for network in LINKS.values()]
        told = [f"{time_s:.1f} s" if time_s is not None else "not reached" for time_s in times]
        kilo = one.sent_bytes / REPLICAS / task.steps / 1000
        steps = one.steps_to(target)
        yield (
            f"| `{rule_text(one.rule)}` | {one.loss:.4f} | {100 * (one.loss / dense.loss - 1):+.1f} % | {kilo:.1f} | "
            f"{100 * one.gap:.1f} % | {'-' if steps is None else steps} | {' | '.join(told)} |"
        )


def byte_lines(task: Task, ended: Sequence[Ended]) -> Iterator[Line]:
    """Yield whether as many bytes were counted as the rules say."""
    counted = [one for one in ended if one.sent_bytes != one.planned_bytes]
    said = ", ".join(f"{rule_text(one.rule)} {one.sent_bytes} for {one.planned_bytes:.0f}" for one in counted) or "yes"
    why = "what sync_rules/ plan with"
    yield Line.fact("all", f"{task.name}: bytes of {len(ended)} rules as planned", not counted, said, why)


def click_lines(task: Task, ended: Sequence[Ended]) -> Iterator[Line]:
    """Yield what the rules must keep of the dense training on clicks."""
    by_rule = {one.rule: one.loss for one in ended}
    dense = by_rule[AllReduce()]
    worse, lost = (by_rule[TopK(0.01, feedback=feedback)] / dense - 1 for feedback in (True, False))
    yield Line(
        "topk", "clicks, 1 %, feedback: loss over dense", "<= +1 %", f"{100 * worse:+.2f} %", worse <= 0.01, "wanted"
    )
    holds = lost > max(5 * worse, 0.02)
    why = "loses: clearly worse, wanted"
    yield Line("topk", "the same without feedback", "> +2 %", f"{100 * lost:+.2f} %", holds, why)
    for rule in (Shadow(8, "average"), Shadow(8, "easgd"), Shadow(8, "bmuf")):
        beside = by_rule[rule] / train(task, rule, delay_steps=0).loss - 1
        what = f"clicks: loss of {rule.rule}, every 8, over the same in the foreground"
        yield Line("shadow", what, "<= +1 %", f"{100 * beside:+.2f} %", beside <= 0.01, "wanted")


def auc(scores: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve; scores are all but distinct."""
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = labels.sum().double()
    rank_sum = (ranks * labels).sum()
    return float((rank_sum - positive * (positive + 1) / 2) / (positive * (len(labels) - positive)))


def block_cycle(share: float) -> Iterator[Line]:
    """Train on a day of five blocks, again and again: one averaged model, and a predictor a block."""
    blocks, steps, rounds, cycles = 5, 8, 4, max(2, round(8 * share))
    clicks = Clicks(blocks)
    model = FlatModel(ClickModel, click_loss)
    held_back = [clicks.draw(20_000, 2_000_000 + block, block) for block in range(blocks)]
    mixed = [Adam(model.start, 5e-3) for _ in range(REPLICAS)]
    separate = [[Adam(model.start, 5e-3) for _ in range(REPLICAS)] for _ in range(blocks)]
    several, chains = BlockPredictors(), BlockPredictors()
    seed = 0
    for cycle in range(cycles):
        for block in range(blocks):
            for _ in range(rounds):
                ends: list[tuple[Tensor, float]] = []
                batches = [clicks.draw(128, seed + i, block) for i in range(REPLICAS * steps)]
                seed += len(batches)
                for clients in (mixed, separate[block]):
                    for client, adam in enumerate(clients):
                        for batch in batches[client::REPLICAS]:
                            adam.step(model.gradient(adam.now, batch))
                    mean = average([adam.now for adam in clients])
                    for adam in clients:
                        adam.put(mean)
                    losses = [model.loss(mean, batch) for batch in batches[-REPLICAS:]]
                    ends.append((mean, sum(losses) / len(losses)))
                if cycle:  # models of the first cycle are hardly trained
                    several.take(block, ends[0][0])
                    chains.take_better(block, *ends)
    last = average([adam.now for adam in mixed])
    areas = {
        name: sum(auc(model.outputs(of(b), batch), batch[-1]) for b, batch in enumerate(held_back)) / blocks
        for name, of in (("average", lambda _: last), ("mm", several.of), ("mc", chains.of))
    }
    for name in ("mm", "mc"):
        what = f"clicks of {blocks} blocks: AUC of {name} over the last averaged model"
        measured = f"{areas[name]:.4f} over {areas['average']:.4f}"
        yield Line("local", what, "higher", measured, areas[name] > areas["average"], "wanted of mm")
