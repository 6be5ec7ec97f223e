"""``powersgd`` against PyTorch's own hook in its data parallel training, and what it keeps, sends and goes on with."""

from collections.abc import Sequence
from math import inf
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

from heterps_compile.errors import InputError
from heterps_compile.runtime.pipeline.world import make_group
from heterps_compile.runtime.sync.collective import Collective, CountedGroup
from heterps_compile.runtime.sync.contract import Flat, Rule, Shared
from heterps_compile.runtime.sync.find import make_rule
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.network import Network
from heterps_compile.sync_rules.powersgd import PowerSGD
from heterps_compile.sync_rules.rule import FlatBuffer, SyncGroup, TensorShape

STEPS, WHOLE_STEPS = 8, 2  # PyTorch sums whole gradients in its first two steps
RATE = 0.05
SHAPES = {"a": (32, 16), "bias": (32,), "b": (16, 8, 4), "c": (32, 16), "small": (3, 4), "one": ()}
SHARES = 0.5, 0.3, 0.2


def model() -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 32), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(32, 1))


def loss_of(net: nn.Module, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs, targets = torch.randn(8, 16, generator=generator), torch.randn(8, 1, generator=generator)
    return (net(inputs) - targets).square().mean()


def by_torch(rank: int) -> tuple[list[str], list[Tensor]]:
    """Train two replicas with DDP and its hook; return its order of parameters in the bucket, and weights by step."""
    import torch.distributed as dist  # noqa: PLC0415 - in the ranks alone
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import (  # noqa: PLC0415
        PowerSGDState,
        powerSGD_hook,
    )
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    pair = dist.new_group([0, 1], use_local_synchronization=True)
    net = DistributedDataParallel(model(), process_group=pair)
    names = {parameter: name for name, parameter in net.module.named_parameters()}
    order: list[str] = []

    def hook(state, bucket):  # DDP looks at annotations
        order[:] = [names[parameter] for parameter in bucket.parameters()]
        return powerSGD_hook(state, bucket)

    state = PowerSGDState(pair, 2, start_powerSGD_iter=WHOLE_STEPS, orthogonalization_epsilon=1e-8)
    net.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(net, rank, step).backward()
        optimizer.step()
        found.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    return order, found


def by_rule(rank: int, order: Sequence[str]) -> list[Tensor]:
    """Train the same with the rule, its buffer in the order of the bucket."""
    net = model()
    parameters = dict(net.named_parameters())
    group = make_group((0, 1))
    shared = Shared(CountedGroup(group, rank), rank, parameters, 0.5)
    rule = make_rule(parse_rule("powersgd(rank=2)"), shared)
    whole = make_rule(parse_rule("all-reduce"), shared)
    shapes = tuple(parameters[name].shape for name in order)
    flat = Flat(torch.zeros(sum(shape.numel() for shape in shapes)), tuple(order), shapes)
    rule.prepare([flat])
    whole.prepare([flat])
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        (loss_of(net, rank, step) / 2).backward()
        flat.tensor.copy_(torch.cat([parameters[name].grad.flatten() for name in order]))
        now = whole if step < WHOLE_STEPS else rule
        now.after_backward([flat], 1.0)
        now.finish()
        for name, part in flat.by_name(flat.tensor).items():
            parameters[name].grad = part.clone()
        optimizer.step()
        now.after_step(step, is_skipped=False)
        found.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    return found


def gradient_of(rank: int, step: int) -> Tensor:
    length = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    return torch.randn(length, generator=torch.Generator().manual_seed(100 * step + rank))


def rule_of(text: str, group: Collective, rank: int, *, is_scaled: bool = False) -> tuple[Rule, CountedGroup, Flat]:
    counted = CountedGroup(group, rank)
    parameters = {name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}
    rule = make_rule(parse_rule(text), Shared(counted, rank, parameters, SHARES[rank], is_scaled))
    shapes = tuple(map(torch.Size, SHAPES.values()))
    return rule, counted, Flat(torch.zeros(gradient_of(0, 0).numel()), tuple(SHAPES), shapes)


def combine(rule: Rule, flat: Flat, gradient: Tensor, *, scale: float = 1.0, is_skipped: bool = False) -> Tensor:
    flat.tensor.copy_(gradient)
    rule.after_backward([flat], scale)
    rule.finish()
    rule.after_step(0, is_skipped=is_skipped)
    return flat.tensor.clone()


def kept(rule: Rule) -> Tensor:
    state = rule.state()
    return torch.cat([state[f"residual:{name}"].reshape(-1) for name in SHAPES])


def of_three(rank: int) -> dict[str, Any]:
    group = make_group(range(3))
    rule, counted, flat = rule_of("powersgd(rank=2)", group, rank)
    rule.prepare([flat])
    steps = [(combine(rule, flat, gradient_of(rank, step)).numpy(), kept(rule).numpy()) for step in range(3)]
    state = {key: tensor.clone() for key, tensor in rule.state().items()}
    again, _, other = rule_of("powersgd(rank=2)", group, rank)
    again.load_state(state)
    assert again.state().keys() == state.keys()
    again.prepare([other])
    went_on, restored = (combine(one, of, gradient_of(rank, 3)) for one, of in ((rule, flat), (again, other)))
    plain, _, flat = rule_of("powersgd(rank=2, feedback=false)", group, rank)
    plain.prepare([flat])
    combine(plain, flat, gradient_of(rank, 0))
    return {
        "steps": steps,
        "sent": counted.sent_bytes,
        "restored": bool(torch.equal(went_on, restored)),
        "factors": {key: tuple(tensor.shape) for key, tensor in state.items() if key.startswith("factor:")},
        "without": sorted(plain.state()),
        "skipped": skipped(rank, group),
    }


def skipped(rank: int, group: Collective) -> tuple[bool, bool, bool]:
    """Overflow on one rank: is it seen, is what was before it kept, and does what follows come out as without it."""
    rule, _, flat = rule_of("powersgd(rank=2)", group, rank, is_scaled=True)
    rule.prepare([flat])
    combine(rule, flat, gradient_of(rank, 0) * 8, scale=8.0)
    before = {key: tensor.clone() for key, tensor in rule.state().items()}
    gradient = gradient_of(rank, 1)
    gradient[5] = inf if rank == 2 else gradient[5]
    out = combine(rule, flat, gradient * 8, scale=8.0, is_skipped=True)
    after = rule.state()
    plain, _, other = rule_of("powersgd(rank=2)", group, rank)
    plain.prepare([other])
    combine(plain, other, gradient_of(rank, 0))
    halved = combine(rule, flat, gradient_of(rank, 1) * 4, scale=4.0) / 4
    same = torch.allclose(halved, combine(plain, other, gradient_of(rank, 1)), atol=1e-6)
    return not bool(out.isfinite().all()), all(torch.equal(before[key], after[key]) for key in before), same


def in_group(rank: int) -> dict[str, Any]:
    found = of_three(rank)
    if rank < 2:
        order, theirs = by_torch(rank)
        found["torch"] = [one.numpy() for one in theirs], [one.numpy() for one in by_rule(rank, order)]
    return found


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_ranks(in_group, 3)


def test_weights_are_step_by_step_those_of_data_parallel_training_with_its_own_hook(ranks):
    for of_rank in ranks[:2]:
        for theirs, ours in zip(*of_rank["torch"], strict=True):
            assert abs(theirs - ours).max() < 2e-6 * abs(theirs).max()
    first, last = ranks[0]["torch"][0][WHOLE_STEPS - 1], ranks[0]["torch"][0][-1]
    assert abs(last - first).max() > 1e-2, "factors have trained something"


def test_what_is_stepped_on_and_what_all_keep_are_the_gradients_whatever_the_shares(ranks):
    before = [torch.zeros_like(gradient_of(0, 0)) for _ in ranks]
    for step in range(3):
        outs = [torch.from_numpy(of_rank["steps"][step][0]) for of_rank in ranks]
        after = [torch.from_numpy(of_rank["steps"][step][1]) for of_rank in ranks]
        assert all(torch.equal(out, outs[0]) for out in outs)
        whole = sum(gradient_of(place, step) for place in range(3)) + sum(before)
        assert torch.allclose(outs[0] + sum(after), whole, atol=2e-5)
        assert (outs[0] - whole).abs().max() > 0.5, "rank 2 leaves something out"
        before = after


def test_bytes_that_are_counted_are_those_of_its_formula(ranks):
    shapes = tuple(TensorShape(shape) for shape in SHAPES.values())
    elements = sum(torch.Size(shape).numel() for shape in SHAPES.values())
    group = SyncGroup(3, (FlatBuffer(elements),), (FlatBuffer(elements),), len(SHAPES), Network(1.0), shapes)
    planned = PowerSGD(2).exchange(group)
    factors = 2 * (2 * (32 + 16) + (16 + 32))  # a, c, and b as a matrix of 16 x 32
    assert planned.sent_bytes == 2 * 2 * 4 * (32 + 12 + 1 + factors)
    assert sum(of_rank["sent"] for of_rank in ranks) == 4 * planned.sent_bytes  # with the step that goes on


def test_it_goes_on_to_the_bit_with_what_a_checkpoint_holds(ranks):
    for of_rank in ranks:
        assert of_rank["restored"]
        assert of_rank["factors"] == {"factor:a": (16, 2), "factor:b": (32, 2), "factor:c": (16, 2)}
        assert of_rank["without"] == ["factor:a", "factor:b", "factor:c"]


def test_a_step_that_overflows_on_one_rank_is_seen_by_all_and_leaves_what_was_before_it(ranks):
    assert [of_rank["skipped"] for of_rank in ranks] == [(True, True, True)] * 3


def test_only_matrices_that_are_large_enough_have_factors():
    rule = PowerSGD(2)
    assert [rule.factors(shape).rank for shape in ((32, 16), (16, 8, 4), (32,), (3, 4), (), (1, 1000))] == [
        2,
        2,
    ] + 4 * [0]
    assert PowerSGD(100).factors((32, 16)).rank == 0
    with pytest.raises(InputError, match=r"\b0\b.*\b1\b"):
        parse_rule("powersgd(rank=0)")
    assert "shapes of gradients, which are not known here" in rule.refusal(SyncGroup(2, (FlatBuffer(4),), ()))
    assert rule.refusal(SyncGroup(1, (FlatBuffer(4),), ())) == ""
