"""Small modules that keep something from one call to the next, and are differentiated through it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH = 4


class Keeps(nn.Module):
    """Two layers, and a buffer that a step between them reads and changes."""

    def __init__(self, step: "Callable[[Keeps, Tensor], Tensor]", buffer: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("k", buffer)
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.step(self, self.first(x))))


def counted(keeps: Keeps, h: Tensor) -> Tensor:
    keeps.k += 1
    return h * keeps.k


def multiplied(keeps: Keeps, h: Tensor) -> Tensor:
    keeps.k.mul_(0.9)
    return h * keeps.k


def averaged(keeps: Keeps, h: Tensor) -> Tensor:
    keeps.k.lerp_(h.detach().mean(0), 0.1)
    return h * keeps.k


def twice_changed(keeps: Keeps, h: Tensor) -> Tensor:
    keeps.k += 1
    keeps.k.mul_(2)
    return h * keeps.k


def put(keeps: Keeps, h: Tensor) -> Tensor:
    keeps.k[torch.tensor([1])] = h.detach()[0, 0]
    return h * keeps.k


def replaced(keeps: Keeps, h: Tensor) -> Tensor:
    read = h * keeps.k
    keeps.k = keeps.k * 0.9
    return read * keeps.k


def remembered(keeps: Keeps, h: Tensor) -> Tensor:
    read = h * keeps.k.unsqueeze(0)
    keeps.k = h.detach().mean(0)
    return read


def rolled(keeps: Keeps, h: Tensor) -> Tensor:
    keeps.k.copy_(torch.roll(keeps.k, 1) + 0.5)
    return h * keeps.k


class Far(nn.Module):
    """A buffer that changes before the first cut and is read after it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.register_buffer("k", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers
        h = first(x)
        self.k.add_(h.detach().mean(0))
        return fourth(third(second(h)) * self.k)


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, WIDTH))


def spectral() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
    return nn.Sequential(layer, nn.Tanh(), nn.Linear(WIDTH, WIDTH))


KEEPING: dict[str, Callable[[], nn.Module]] = {
    "a counter": lambda: Keeps(counted, torch.zeros(())),
    "a decay": lambda: Keeps(multiplied, torch.ones(WIDTH)),
    "a running average": lambda: Keeps(averaged, torch.ones(WIDTH)),
    "two changes": lambda: Keeps(twice_changed, torch.zeros(WIDTH)),
    "an element put": lambda: Keeps(put, torch.ones(WIDTH)),
    "a new tensor": lambda: Keeps(replaced, torch.ones(())),
    "the last hidden state": lambda: Keeps(remembered, torch.ones(WIDTH)),
    "a copy": lambda: Keeps(rolled, torch.arange(4.0)),
    "a buffer read far away": Far,
    "batch norm": normed,
    "spectral norm": spectral,
}
