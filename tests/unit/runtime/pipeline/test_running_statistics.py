"""Running statistics over replicas, without processes: two replicas in turns, and the sum of what they would send."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps_compile.errors import RunError
from heterps_compile.runtime.pipeline.running_statistics import RunningStatistics

MICRO_BATCHES = 5


class Pair:
    """A group of two replicas in one process: it sums once both have begun."""

    def __init__(self) -> None:
        self.given: list[Tensor] = []

    def sum(self, tensor: Tensor) -> "Pair":
        self.given.append(tensor)
        return self

    def wait(self) -> None:
        if self.given:
            one, other = self.given
            one += other
            other.copy_(one)
            self.given.clear()


def on_replicas(
    make: Callable[[], nn.Module], steps: int = 2, momentum: Mapping[str, float] = MappingProxyType({})
) -> list[dict[str, Tensor]]:
    """Run micro-batches on two replicas in turns, step by step; give the buffers of both."""
    modules, pair = [make(), make()], Pair()
    replicas = [RunningStatistics(0, dict(module.named_buffers()), MICRO_BATCHES, pair, momentum) for module in modules]
    for step in range(steps):
        for replica in replicas:
            replica.begin()
        for i, x in enumerate(inputs(step)):
            replicas[i % 2].run(i, lambda m=modules[i % 2], x=x: m(x))
        for replica in replicas:
            replica.start()
        for replica in replicas:
            replica.finish()
    return [dict(module.named_buffers()) for module in modules]


def inputs(step: int) -> list[Tensor]:
    return list(torch.randn(MICRO_BATCHES, 6, 3, generator=torch.Generator().manual_seed(step)))


def in_order(make: Callable[[], nn.Module], steps: int = 2) -> dict[str, Tensor]:
    module = make()
    for step in range(steps):
        for x in inputs(step):
            module(x)
    return dict(module.named_buffers())


class Spelled(nn.Module):
    """A batch norm in the words of a written stage."""

    def __init__(self, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.call = call
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, self.mean, self.variance)


SPELLINGS = {
    "module": lambda: nn.BatchNorm1d(3, momentum=0.3),
    "torch": lambda: Spelled(lambda x, m, v: torch.batch_norm(x, None, None, m, v, True, 0.2, 1e-5, False)),
    "aten": lambda: Spelled(
        lambda x, m, v: torch.ops.aten.batch_norm.default(x, None, None, m, v, True, 0.2, 1e-5, False)
    ),
    "functional": lambda: Spelled(lambda x, m, v: functional.batch_norm(x, m, v, training=True)),
    "instance": lambda: Spelled(lambda x, m, v: functional.instance_norm(x.T.unsqueeze(0), m, v, momentum=0.5)),
}


@pytest.mark.parametrize("spelling", list(SPELLINGS))
def test_replicas_end_where_one_process_ends(spelling):
    expected = in_order(SPELLINGS[spelling])
    for found in on_replicas(SPELLINGS[spelling]):
        for name, buffer in expected.items():
            torch.testing.assert_close(found[name], buffer, rtol=1e-6, atol=1e-7)


class ByHand(nn.Module):
    """A running average that no function of torch keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.average.mul_(0.7).add_(0.3 * x.mean(0))
        return x


def test_a_stage_may_say_itself_what_its_running_averages_are():
    expected = in_order(ByHand)["average"]
    for found in on_replicas(ByHand, momentum={"average": 0.3}):
        torch.testing.assert_close(found["average"], expected, rtol=1e-6, atol=1e-7)


def test_an_evaluated_norm_changes_nothing():
    for found in on_replicas(lambda: nn.BatchNorm1d(3).eval()):
        assert found["running_mean"].tolist() == [0, 0, 0]
        assert int(found["num_batches_tracked"]) == 0


def test_a_backward_after_the_next_forward_of_a_batch_norm_works():
    module = nn.BatchNorm1d(3)
    statistics = RunningStatistics(0, dict(module.named_buffers()), MICRO_BATCHES, Pair())
    first, second, third = (statistics.run(i, lambda x=x: module(x)) for i, x in enumerate(inputs(0)[:3]))
    first.square().sum().backward()
    (second.sum() + third.sum()).backward()
    assert module.weight.grad is not None


def test_a_buffer_that_follows_no_known_rule_is_refused():
    module = nn.Module()
    module.register_buffer("odd", torch.zeros(2))
    statistics = RunningStatistics(7, dict(module.named_buffers()), MICRO_BATCHES, Pair())
    with pytest.raises(RunError, match=r"stage 7\b.*'odd'.*give"):
        statistics.run(0, lambda: module.odd.add_(1.5))
