"""``adsaga``: what replicas step on is what the recursion of SAGA gives; it is kept, divided and refused as said."""

import re
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from heterps_compile.errors import RunError
from heterps_compile.runtime.sync import adsaga as module
from heterps_compile.runtime.sync.adsaga import Adsaga
from heterps_compile.runtime.sync.contract import Flat, Shared
from heterps_compile.sync_rules import adsaga

BATCHES, RATE = 5, 0.1
CENTRES = torch.randn(BATCHES, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
PARTS = (0.5, 0.3, 0.2)
"""Of a batch's gradient, what each of three replicas has."""


class Work:
    def wait(self) -> None:
        pass


class InOneProcess:
    """The group of some rules that are called one after the other: the last one's tensor makes the sum."""

    def __init__(self, count: int) -> None:
        self.ranks = tuple(range(count))
        self._tensors: list[Tensor] = []

    def sum(self, tensor: Tensor) -> Work:
        self._tensors.append(tensor)
        if len(self._tensors) == len(self.ranks):
            total = torch.stack(self._tensors).sum(0)
            for one in self._tensors:
                one.copy_(total)
            self._tensors.clear()
        return Work()


def replicas(count: int, *, delay: int = 0, batches: int = BATCHES, order: Sequence[int] | None = None) -> list[Adsaga]:
    group, weight = InOneProcess(count), nn.Parameter(torch.zeros(3, dtype=torch.float64))
    orders = None if order is None else lambda step: order[step % len(order)]
    asked = adsaga.Adsaga(batches, delay)
    return [
        Adsaga(Shared(group, rank, {"w": weight}, 1 / count, order=orders), asked)  # type: ignore[arg-type]
        for rank in range(count)
    ]


def train(rules: Sequence[Adsaga], x: Tensor, steps: range, parts: Sequence[float] = PARTS) -> list[Tensor]:
    """Step on ``|x - c_b|^2 / 2`` of every batch, each replica with its part; return x after every step."""
    flats = [[Flat(torch.zeros(3, dtype=torch.float64), ("w",), (torch.Size([3]),))] for _ in rules]
    found = []
    for step in steps:
        for rule, flat, part in zip(rules, flats, parts, strict=True):
            rule.begin(step)
            batch = rule.shared.batch_of(step, BATCHES)
            flat[0].tensor.copy_(part * (x - CENTRES[batch]))
            if not rule._flats:
                rule.prepare(flat)
        for rule, flat in zip(rules, flats, strict=True):
            rule.after_backward(flat, 1.0)
        for rule in rules:
            rule.finish()
        gradients = [flat[0].tensor for flat in flats]
        assert all(torch.equal(gradients[0], one) for one in gradients)
        x = x - RATE * gradients[0]
        found.append(x)
    return found


def recursion(steps: int, delay: int, order: Sequence[int]) -> list[Tensor]:
    """SAGA as it is written in the paper, of one worker whose innovations come so many steps late."""
    x, table = torch.ones(3, dtype=torch.float64), torch.zeros(BATCHES, 3, dtype=torch.float64)
    mean, late, found = torch.zeros(3, dtype=torch.float64), list[Tensor](), list[Tensor]()
    for step in range(steps):
        batch = order[step % len(order)]
        late.append(x - CENTRES[batch] - table[batch])
        table[batch] = x - CENTRES[batch]
        if len(late) > delay:
            x = x - RATE * (late[0] + mean)
            mean = mean + late.pop(0) / BATCHES
        found.append(x)
    return found


@pytest.mark.parametrize("delay", [0, 2])
def test_it_converges_at_the_rate_of_its_linear_map_where_sgd_stays_apart(delay):
    """One epoch is a linear map of x, the table and what is late: its largest root says how fast all of it settles."""
    size = 1 + BATCHES + delay + 1  # x, the table, innovations on their way, the mean; for every entry by itself
    epoch = torch.eye(size, dtype=torch.float64)
    for batch in range(BATCHES):
        step = torch.eye(size, dtype=torch.float64)
        new = torch.zeros(size, dtype=torch.float64)
        new[0], new[1 + batch] = 1, -1
        first = new if not delay else torch.eye(size, dtype=torch.float64)[1 + BATCHES]
        mean = torch.eye(size, dtype=torch.float64)[-1]
        step[0] = torch.eye(size, dtype=torch.float64)[0] - RATE * (first + mean)
        step[-1] = mean + first / BATCHES
        step[1 + batch] = torch.eye(size, dtype=torch.float64)[0]
        for late in range(delay):
            following = 1 + BATCHES + late + 1
            step[1 + BATCHES + late] = torch.eye(size, dtype=torch.float64)[following] if late + 1 < delay else new
        epoch = step @ epoch
    roots = torch.linalg.eigvals(epoch).abs()
    rate = float(roots[roots < 1 - 1e-9].max())  # the mean is that of the table, so that one root is 1 and stays 0
    epochs = 100
    found = train(replicas(3, delay=delay), torch.ones(3, dtype=torch.float64), range(epochs * BATCHES))
    off = [float((found[epoch * BATCHES - 1] - CENTRES.mean(0)).norm()) for epoch in range(1, epochs + 1)]
    assert off[-1] < 100 * rate**epochs + 1e-13
    measured = (off[60] / off[20]) ** (1 / 40)
    assert measured == pytest.approx(rate, rel=0.05)
    x, q = torch.ones(3, dtype=torch.float64), 1 - RATE
    for step in range(epochs * BATCHES):
        x = x - RATE * (x - CENTRES[step % BATCHES])
    late = torch.stack([q**j * CENTRES[-1 - j] for j in range(BATCHES)])
    steady = (1 - q) * late.sum(0) / (1 - q**BATCHES)
    assert torch.allclose(x, steady, rtol=0, atol=1e-9)
    assert float((steady - CENTRES.mean(0)).norm()) > 0.05


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("counts", [(3, 3), (3, 2), (2, 3)])
def test_it_goes_on_with_as_many_replicas_or_others(delay, counts):
    """Of other replicas the tables are added up and divided, as ``own_state.py`` does it."""
    parts = [PARTS if count == 3 else (0.25, 0.75) for count in counts]
    before, after = (replicas(count, delay=delay) for count in counts)
    x = torch.ones(3, dtype=torch.float64)
    whole = recursion(17, delay, range(BATCHES))
    (*_, x) = train(before, x, range(8), parts[0])
    states = [rule.state() for rule in before]
    for place, rule in enumerate(after):
        if counts[0] == counts[1]:
            rule.load_state(states[place])
        else:
            table = torch.stack([state["table:w"] for state in states]).sum(0)
            rule.load_state({**states[0], "table:w": table / counts[1]})
    for ours, theirs in zip(train(after, x, range(8, 17), parts[1]), whole[8:], strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-12)


def test_a_state_before_the_first_step_is_the_one_that_was_read():
    first, second = replicas(1)[0], replicas(1)[0]
    train([first], torch.ones(3, dtype=torch.float64), range(3), (1.0,))
    second.load_state(first.state())
    assert second.state().keys() == first.state().keys() == {"table:w", "mean:w"}


def test_a_table_for_which_there_is_no_room_is_refused_with_its_numbers(monkeypatch):
    monkeypatch.setattr(module, "available_bytes", lambda: 100)
    rules = replicas(2)
    with pytest.raises(RunError) as refused:
        train(rules, torch.ones(3, dtype=torch.float64), range(1), (0.5, 0.5))
    assert re.search(r"adsaga.*5 x 3 x 8 bytes \(120 B, 240 B.*\b2 replicas", str(refused.value))
    assert re.search(r"\b100 B\b.*--batch.*batches=.*--sync", str(refused.value))


def test_a_table_of_other_batches_and_residuals_that_would_be_lost_are_refused():
    first, other = replicas(1)[0], replicas(1, batches=4)[0]
    train([first], torch.ones(3, dtype=torch.float64), range(3), (1.0,))
    other.load_state(first.state())
    with pytest.raises(RunError, match=r"\b5\b.*'w'.*\b4\b"):
        train([other], torch.ones(3, dtype=torch.float64), range(1), (1.0,))
    other = replicas(1)[0]
    other.load_state({"pending:w": torch.tensor(1.0)})  # of a file that somebody else wrote
    with pytest.raises(RunError, match=r"\b1\b.*'w'"):
        train([other], torch.ones(3, dtype=torch.float64), range(1), (1.0,))
    with pytest.raises(RunError, match=r"'w'.*sent"):
        other.load_state({"residual:w": torch.ones(3)})
