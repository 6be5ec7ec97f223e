"""What rules that know how data come must come to, beside what the objects come to that a run has: `bench_sync.py`.

On quadratics ``|x - c|^2 / 2`` all is linear. What `adsaga` has after an epoch is a matrix times what it had before.
The largest root of it says how fast it settles; where it reaches 1 the step is too long.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from plain_rules import steady_models
from torch import Tensor, nn

from heterps_compile.runtime.launch.block_models import BlockModels
from heterps_compile.runtime.sync.adsaga import Adsaga
from heterps_compile.runtime.sync.contract import Flat, Shared
from heterps_compile.sync_rules import adsaga
from heterps_compile.sync_rules.local_steps import LocalSteps

BLOCKS, BATCHES = 5, 8


@dataclass(frozen=True, slots=True)
class Line:
    """A number that is expected and measured.

    Attributes:
        rule: Whose.
        what: It is.
        expected: As it is told.
        measured: As it is told.
        holds: Whether the two agree.
        why: Where the expected one comes from, and how far off is allowed.
    """

    rule: str
    what: str
    expected: str
    measured: str
    holds: bool
    why: str

    @classmethod
    def near(cls, rule: str, what: str, expected: float, measured: float, within: float, why: str) -> "Line":
        """Return one that may be off by so much."""
        holds = abs(measured - expected) <= within
        return cls(rule, what, f"{expected:.6g}", f"{measured:.6g}", holds, why)

    @classmethod
    def fact(cls, rule: str, what: str, holds: bool, measured: str, why: str) -> "Line":
        """Return one that is true or not."""
        return cls(rule, what, "yes", measured, holds, why)


def predictors(centres: Tensor, q: float, cycles: int, skip: int = 0) -> tuple[Tensor, Tensor]:
    """Return the predictors of a chain of one average a block, and its last model."""
    weight = nn.Parameter(torch.full((centres.shape[1],), 100.0, dtype=torch.float64))
    rule = LocalSteps(1, "mm", blocks=len(centres), block_steps=1, skip=skip)
    models = BlockModels(rule, {0: {"weight": weight}})
    for step in range(cycles * len(centres)):
        with torch.no_grad():
            centre = centres[rule.block_of(step)]
            weight.copy_(centre + q * (weight - centre))
        models.take(step + 1)
    found = [models.of_stage(block, 0)["weight"] for block in range(len(centres))]
    return torch.stack(found), weight.detach()


def blocks() -> Iterator[Line]:
    centres, q = torch.eye(BLOCKS, dtype=torch.float64), 0.1
    found, _ = predictors(centres, q, 20, skip=15)
    off = float((found - steady_models(centres, q)).abs().max())
    why = "x_m = (1 - q) sum q^j c_(m-j) / (1 - q^M), the predictors that a run keeps"
    yield Line(
        "local",
        "predictors of the last 5 of 20 cycles, off the formula by",
        "<= 1e-12",
        f"{off:.1e}",
        off <= 1e-12,
        why,
    )
    alike, q = torch.zeros(BLOCKS, 1, dtype=torch.float64), 0.9
    found, last = predictors(alike, q, 2)
    means = [(q ** (m + 1) + q ** (m + 1 + BLOCKS)) / 2 for m in range(BLOCKS)]
    expected = sum(mean**2 for mean in means) / BLOCKS / q ** (4 * BLOCKS)
    measured = float(found.square().mean() / last.square().mean())
    why = "loses: where blocks are alike, predictors are the older models; means of q^(m + 1 + k M)"
    yield Line.near("local", "blocks alike, 2 cycles: loss of mm over the last average", expected, measured, 1e-9, why)


class _Group:
    """Two replicas in one process: the last tensor makes the sum."""

    ranks = (0, 1)

    def __init__(self) -> None:
        self._tensors: list[Tensor] = []

    def sum(self, tensor: Tensor) -> Any:
        self._tensors.append(tensor)
        if len(self._tensors) == len(self.ranks):
            total = torch.stack(self._tensors).sum(0)
            for one in self._tensors:
                one.copy_(total)
            self._tensors.clear()
        return SimpleNamespace(wait=lambda: None)


def distances(rate: float, delay: int, epochs: int) -> list[float]:
    """Return how far two replicas are from the minimum after every epoch."""
    centres = torch.randn(BATCHES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    group, place = _Group(), nn.Parameter(torch.zeros(1, dtype=torch.float64))
    asked = adsaga.Adsaga(BATCHES, delay)
    rules = [Adsaga(Shared(group, rank, {"x": place}, 0.5), asked) for rank in group.ranks]  # type: ignore[arg-type]
    flats = [[Flat(torch.zeros(1, dtype=torch.float64), ("x",), (torch.Size([1]),))] for _ in rules]
    x, found = torch.ones(1, dtype=torch.float64), []
    for step in range(epochs * BATCHES):
        for rule, flat, part in zip(rules, flats, (0.75, 0.25), strict=True):
            rule.begin(step)
            flat[0].tensor.copy_(part * (x - centres[step % BATCHES]))
            if not step:
                rule.prepare(flat)
            rule.after_backward(flat, 1.0)
        for rule in rules:
            rule.finish()
        x = x - rate * flats[0][0].tensor
        if (step + 1) % BATCHES == 0:
            found.append(float((x - centres.mean()).abs()))
    return found


def radius(rate: float, delay: int) -> float:
    """Return the largest root of an epoch of x, the table, and what is on its way; the mean follows from these."""
    size = 1 + BATCHES + delay
    unit = torch.eye(size, dtype=torch.float64)
    table, late = unit[1 : 1 + BATCHES], unit[1 + BATCHES :]
    mean = (table.sum(0) - late.sum(0)) / BATCHES
    epoch = unit
    for batch in range(BATCHES):
        new = unit[0] - table[batch]
        step = unit.clone()
        step[0] = unit[0] - rate * ((late[0] if delay else new) + mean)
        step[1 + batch] = unit[0]
        if delay:
            step[1 + BATCHES :] = torch.stack([*late[1:], new])
        epoch = step @ epoch
    return float(torch.linalg.eigvals(epoch).abs().max())


def _largest(settles: Any) -> float:
    low, high = 0.0, 3.0
    for _ in range(12):
        rate = (low + high) / 2
        low, high = (rate, high) if settles(rate) else (low, rate)
    return low


def _stands(rate: float, delay: int) -> bool:
    """Whether the last of 150 epochs are nearer than those in the middle."""
    found = distances(rate, delay, 150)
    return max(found[110:]) < max(found[40:80]) or max(found[110:]) < 1e-12


def table() -> Iterator[Line]:
    for delay in (0, 2):
        found = distances(0.1, delay, 60)
        expected, measured = radius(0.1, delay), (found[50] / found[10]) ** (1 / 40)
        what = f"8 batches, delay {delay}, step 0.1: distance after an epoch over before"
        yield Line.near("adsaga", what, expected, measured, 0.05 * expected, "largest root of an epoch's matrix; 5 %")
    for delay in (0, 2, 7):
        expected = _largest(lambda rate, delay=delay: radius(rate, delay) < 1)
        measured = _largest(lambda rate, delay=delay: _stands(rate, delay))
        why = "loses: where the root is 1; SGD stands steps up to 2"
        what = f"8 batches, delay {delay}: largest step on a curvature of 1"
        yield Line.near("adsaga", what, expected, measured, 0.02 * expected, why)


LAWS = {"blocks": blocks, "table": table}
