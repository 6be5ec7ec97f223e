"""A buffer that a submodule replaces is written as one that it changes in place."""

import pytest
import torch
from torch import nn

import heterps_compile
from heterps_compile.errors import InputError


class Average(nn.Module):
    """Puts a new tensor into the place of its buffer, and uses the old one and the new one."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.register_buffer("mean", torch.ones(4))

    def forward(self, x):
        before = self.mean
        if self.kind == "twice":
            self.mean = self.mean * 0.5
        self.mean = self.mean * 0.9 + 0.1 * x.detach().mean(0)
        return (x - before, before) if self.kind == "old" else (x + self.mean, self.mean)


class Around(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.inner = nn.Sequential(Average(kind))
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        made, buffer = self.inner(self.first(x))
        return self.last(made), buffer


@pytest.mark.parametrize("kind", ["new", "old", "twice"])
def test_a_buffer_that_a_submodule_replaces_moves_from_call_to_call(kind):
    torch.manual_seed(0)
    model, twin = Around(kind), Around(kind)
    twin.load_state_dict(model.state_dict())
    compiled = heterps_compile.compile(model, (torch.randn(3, 4),), min_stages=2, method="greedy")
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled.run(x), twin(x))


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])


def test_a_tensor_made_in_a_forward_is_nothing_that_it_changes():
    model, x = Scaled(), torch.randn(3, 4)
    compiled = heterps_compile.compile(model, (x,), backend="onnxruntime", method="greedy")
    assert compiled.graph.source.writes == {}
    torch.testing.assert_close(torch.from_numpy(compiled.run(x)), model(x).detach())


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        self.calls += 1
        return self.layer(x), self.calls


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_buffer_that_is_returned_is_compared_as_it_was_at_each_call(backend):
    model, x = Counting(), torch.randn(3, 4)
    compiled = heterps_compile.compile(model, (x,), backend=backend, method="greedy")
    assert [float(compiled.run(x)[1][0]) for _ in range(3)] == [1.0, 2.0, 3.0]


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 4))

    def forward(self, x):
        self.seen = torch.cat([self.seen, x])
        return x + self.seen.mean(0)


def test_a_buffer_that_grows_is_refused_by_name():
    with pytest.raises(InputError, match=r"'0.seen'.*torch.float32\[1, 4\].*torch.float32\[4, 4\]"):
        heterps_compile.compile(nn.Sequential(Growing(), nn.Linear(4, 4)), (torch.ones(3, 4),), method="greedy")
