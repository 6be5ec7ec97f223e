"""LARS and LAMB step by step as their papers write them, alone and with norms that ranks share out."""

from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

from heterps_compile.errors import InputError, RunError
from heterps_compile.runtime.checkpoint.optimizer_state import put_state, take_state
from heterps_compile.runtime.layerwise import Lamb, Lars, Layerwise
from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync.collective import CountedGroup
from heterps_compile.runtime.sync.contract import Shared

SHAPES = {"w": (40, 30), "bias": (30,), "zero": (7,), "v": (1, 5000)}
STEPS = 4
MADE: dict[str, Any] = {
    "lars": lambda parameters: Lars(parameters, lr=0.5, momentum=0.9, weight_decay=0.1, trust=0.02),
    "lamb": lambda parameters: Lamb(parameters, lr=0.05, weight_decay=0.1),
}


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    made = {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    made["zero"].data.zero_()
    return made


def gradients(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(50 + step)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def train(optimizer: Layerwise, named: dict[str, nn.Parameter], steps: range = range(STEPS)) -> list[Tensor]:
    for step in steps:
        for name, gradient in gradients(step).items():
            named[name].grad = gradient
        optimizer.step()
    return [parameter.detach().clone() for parameter in named.values()]


def lars_by_hand() -> list[Tensor]:
    named = {name: parameter.detach().double() for name, parameter in parameters().items()}
    moved = {name: torch.zeros_like(weight) for name, weight in named.items()}
    for step in range(STEPS):
        for name, gradient in gradients(step).items():
            weight, wide = named[name], gradient.double()
            length = weight.norm()
            rate = 0.02 * length / (wide.norm() + 0.1 * length) if length else 1.0
            moved[name] = 0.9 * moved[name] + 0.5 * rate * (wide + 0.1 * weight)
            named[name] = weight - moved[name]
    return list(named.values())


def lamb_by_hand() -> list[Tensor]:
    named = {name: parameter.detach().double() for name, parameter in parameters().items()}
    first, second = ({name: torch.zeros_like(weight) for name, weight in named.items()} for _ in range(2))
    for step in range(1, STEPS + 1):
        for name, gradient in gradients(step - 1).items():
            weight, wide = named[name], gradient.double()
            first[name] = 0.9 * first[name] + 0.1 * wide
            second[name] = 0.999 * second[name] + 0.001 * wide**2
            root = (second[name] / (1 - 0.999**step)).sqrt() + 1e-6
            move = first[name] / (1 - 0.9**step) / root + 0.1 * weight
            rate = weight.norm() / move.norm() if weight.norm() else 1.0
            named[name] = weight - 0.05 * rate * move
    return list(named.values())


def apart(ours: list[Tensor], theirs: list[Tensor]) -> float:
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("kind", "by_hand"), [("lars", lars_by_hand), ("lamb", lamb_by_hand)])
def test_a_step_is_that_of_the_paper(kind, by_hand):
    named = parameters()
    assert apart(train(MADE[kind](named.values()), named), by_hand()) < 1e-6


@pytest.mark.parametrize("kind", MADE)
def test_it_goes_on_from_the_state_that_a_checkpoint_holds(kind):
    named = parameters()
    whole = train(MADE[kind](named.values()), named)
    named = parameters()
    first = MADE[kind](named.values())
    train(first, named, range(2))
    state = take_state(first, named)
    second = MADE[kind](named.values())
    put_state(second, named, state)
    assert all(map(torch.equal, train(second, named, range(2, STEPS)), whole))


def test_a_group_that_does_not_adapt_takes_the_rate_as_it_is():
    named = parameters()
    plain = Lars([{"params": [named["w"]], "adapts": False}], lr=0.5, momentum=0.0)
    named["w"].grad = gradients(0)["w"]
    before = named["w"].detach().clone()
    plain.step()
    assert torch.allclose(named["w"], before - 0.5 * gradients(0)["w"])


def test_what_has_no_dense_gradient_and_numbers_that_are_none_are_refused():
    table = nn.Embedding(5, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RunError, match=r"Lamb.*5x2"):
        Lamb(table.parameters(), lr=0.1).step()
    with pytest.raises(InputError, match=r"\b1\b.*\b0\b.*\b1\b"):
        Lars(table.parameters(), lr=0.1, momentum=1.0)
    with pytest.raises(InputError, match=r"-1.*\b0\b"):
        Lamb(table.parameters(), lr=-1.0)


def in_group(rank: int) -> dict[str, Any]:
    group, found = make_group(range(3)), {}
    for kind, make in MADE.items():
        named = parameters()
        held = {name: named[name] for name in ("w", "bias", "v")}  # the fourth is nobody else's
        counted = CountedGroup(group, rank)
        optimizer = make(named.values())
        optimizer.split_norms([Shared(counted, rank, held, 1 / 3)])
        found[kind] = [one.numpy() for one in train(optimizer, named)], counted.sent_bytes
    return found


def test_norms_that_ranks_share_out_are_the_serial_ones_to_a_millionth():
    ranks = run_ranks(in_group, 3)
    for kind, make in MADE.items():
        named = parameters()
        serial = train(make(named.values()), named)
        for of_rank in ranks:
            ours = [torch.from_numpy(one) for one in of_rank[kind][0]]
            assert apart(ours, serial) < 1e-6
            assert all((ours[place] == torch.from_numpy(ranks[0][kind][0][place])).all() for place in range(4))
        assert sum(of_rank[kind][1] for of_rank in ranks) == STEPS * 2 * (3 - 1) * 16 * 3
