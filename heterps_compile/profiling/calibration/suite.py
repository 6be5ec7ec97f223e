"""Small networks that cover the kinds of work, each at sizes that differ by orders of magnitude.

They are made for the stopwatch and are nobody's model: what is fitted to them is judged on others. Of the first layer
of each the forward alone is counted, which begins with cold caches, and that where a pass displaces some MiB from them.

Left out: kinds of layers that no common network spends its time on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import cast

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Sample:
    """One network of the suite.

    Attributes:
        make: Makes it, with inputs of two samples by argument.
        batches: To measure it at, ascending.
    """

    make: Callable[[], tuple[nn.Module, Inputs]]
    batches: tuple[int, ...]


def _gemms() -> tuple[nn.Module, Inputs]:
    widths = (48, 192, 768, 384, 1536, 96, 1024, 1024, 32, 256)
    parts = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*parts), {"input": torch.randn(2, widths[0])}


def _words() -> tuple[nn.Module, Inputs]:
    def block(width: int) -> list[nn.Module]:
        return [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width)]

    parts = [*block(80), nn.Linear(80, 288), *block(288), nn.Linear(288, 64)]
    return nn.Sequential(*parts), {"input": torch.randn(2, 20, 80)}


class _Attention(nn.Module):
    """Attention with the fused operation, with one that drops weights, or product by product."""

    def __init__(self, width: int, heads: int, how: str) -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.enter(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        if self.how == "products":
            mixed = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1) @ value
        else:
            dropped = 0.1 if self.how == "dropping" else 0.0
            mixed = nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=dropped)
        return cast(Tensor, self.leave(mixed.transpose(1, 2).flatten(2)))


def _attention(how: str, words: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    def make() -> tuple[nn.Module, Inputs]:
        parts = [_Attention(96, 3, how), _Attention(96, 6, how), nn.Linear(96, 256), _Attention(256, 4, how)]
        return nn.Sequential(*parts), {"input": torch.randn(2, words, 96)}

    return make


def _conv(inputs: int, outputs: int, size: int, *, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def _convs() -> tuple[nn.Module, Inputs]:
    parts = [
        *_conv(3, 24, 5, stride=2),
        *_conv(24, 40, 3),
        nn.MaxPool2d(2),
        *_conv(40, 160, 1),
        *_conv(160, 40, 1),
        *_conv(40, 96, 3),
        *_conv(96, 96, 3, stride=2),
        *_conv(96, 320, 1),
        *_conv(320, 128, 3),
    ]
    return nn.Sequential(*parts), {"input": torch.randn(2, 3, 56, 56)}


def _depthwise() -> tuple[nn.Module, Inputs]:
    parts = [
        *_conv(16, 80, 1),
        *_conv(80, 80, 3, groups=80),
        *_conv(80, 24, 1),
        *_conv(24, 24, 5, groups=24),
        *_conv(24, 200, 1, stride=2),
        *_conv(200, 200, 3, groups=200),
        *_conv(200, 200, 5, stride=2, groups=200),
    ]
    return nn.Sequential(*parts), {"input": torch.randn(2, 16, 36, 36)}


class _Tables(nn.Module):
    """Tables side by side; the rows of some are put together."""

    def __init__(self, sizes: Sequence[tuple[int, int]], *, together: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows, width in sizes)
        self.together = together

    def forward(self, ids: Tensor) -> Tensor | tuple[Tensor, ...]:
        rows = tuple(table(ids) for table in self.tables)
        return torch.cat(rows, -1) if self.together else rows


_LARGE = ((12_000, 4), (12_000, 8), (12_000, 24), (12_000, 64), (12_000, 256))
"""As many rows each, as they share their ids: rows of all of a table are looked up, and are in no cache."""
_SMALL = (
    (900, 8),
    (300, 4),
    (1_500, 8),
    (700, 32),
    (4_000, 12),
    (3_000, 40),
    (900, 200),
    (12_000, 24),
    (700, 8),
    (1_200, 20),
)


def _tables(sizes: Sequence[tuple[int, int]], columns: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    def make() -> tuple[nn.Module, Inputs]:
        fewest = min(rows for rows, _ in sizes)
        return _Tables(sizes, together=sizes is _SMALL), {"ids": torch.randint(0, fewest, (2, columns))}

    return make


class _Columns(nn.Module):
    """A table for every column of the ids, or for every few of them; their rows are put together."""

    def __init__(self, sizes: Sequence[tuple[int, int]], columns: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows, width in sizes)
        self.columns = columns

    def forward(self, ids: Tensor) -> Tensor:
        if self.columns == 1:
            return torch.cat([table(ids[:, at]) for at, table in enumerate(self.tables)], -1)
        starts = range(0, self.columns * len(self.tables), self.columns)
        parts = [ids[:, at : at + self.columns] for at in starts]
        return torch.cat([table(part) for table, part in zip(self.tables, parts, strict=True)], -1)


def _columns(columns: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    def make() -> tuple[nn.Module, Inputs]:
        fewest = min(rows for rows, _ in _SMALL)
        return _Columns(_SMALL, columns), {"ids": torch.randint(0, fewest, (2, columns * len(_SMALL)))}

    return make


class _Chain(nn.Module):
    """Two layers, and some functions one after the other that join the second."""

    def __init__(self, layers: Sequence[nn.Module], functions: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.layers, self.functions = nn.Sequential(*layers), functions

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(x)
        for function in self.functions:
            x = function(x)
        return x


def _chain(shape: Sequence[int], *functions: Callable[[Tensor], Tensor]) -> Callable[[], tuple[nn.Module, Inputs]]:
    def make() -> tuple[nn.Module, Inputs]:
        layers = [nn.Linear(8, 8), nn.Linear(8, shape[-1])]
        return _Chain(layers, functions), {"x": torch.randn(2, *shape[:-1], 8)}

    return make


def _pools() -> tuple[nn.Module, Inputs]:
    functions = (nn.MaxPool2d(3, 2, 1), lambda x: nn.functional.avg_pool2d(x, 2))
    return _Chain([nn.Conv2d(2, 4, 1), nn.Conv2d(4, 16, 1)], functions), {"x": torch.randn(2, 2, 32, 32)}


def _norms(width: int) -> Callable[[], tuple[nn.Module, Inputs]]:
    norms = [nn.LayerNorm(width), nn.BatchNorm1d(width), nn.LayerNorm(width)]
    return lambda: (nn.Sequential(nn.Linear(8, 8), nn.Linear(8, width), *norms), {"input": torch.randn(2, 8)})


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(8, 40)
        self.first, self.second = nn.LSTM(40, 96, batch_first=True), nn.GRU(96, 56, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.second(self.first(self.enter(x))[0])[0])


def _recurrent() -> tuple[nn.Module, Inputs]:
    return _Recurrent(), {"x": torch.randn(2, 12, 8)}


def _drop(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.1)


def _numbers(x: Tensor) -> Tensor:
    """Positions and a mask, made anew in every pass."""
    places = torch.arange(x.shape[1], device=x.device)
    seen = places[:, None] >= torch.arange(x.shape[2], device=x.device)
    return x + torch.where(seen, torch.zeros(x.shape[1:], device=x.device), torch.ones(x.shape[1:], device=x.device))


def _turned(x: Tensor) -> Tensor:
    """Look at numbers another way, and again, which moves none."""
    return x.unsqueeze(1).transpose(1, 2).flatten(1, 2).unsqueeze(-1).squeeze(-1)


def _counted(x: Tensor) -> Tensor:
    """Add numbers that are made anew in every pass, one tensor after the other."""
    width = x.shape[2]
    x = x + torch.arange(width, device=x.device) + torch.zeros(width, device=x.device)
    return x + torch.ones(width, device=x.device) + torch.arange(1, width + 1, device=x.device)


_SMOOTH = (torch.sigmoid, torch.tanh, lambda x: x * 0.5 + 0.1, lambda x: x * x, nn.functional.gelu)
_PLAIN = (torch.relu, lambda x: x + 1, torch.relu, lambda x: x * 2, lambda x: x + x)

SUITE: Mapping[str, Sample] = MappingProxyType(
    {
        "gemms": Sample(_gemms, (1, 12, 160)),
        "gemms over words": Sample(_words, (1, 6, 24)),
        "fused attention, 20 words": Sample(_attention("fused", 20), (1, 4, 16)),
        "fused attention, 130 words": Sample(_attention("fused", 130), (1, 4)),
        "attention that drops, 20 words": Sample(_attention("dropping", 20), (1, 4, 16)),
        "attention that drops, 130 words": Sample(_attention("dropping", 130), (1, 4)),
        "attention by products, 20 words": Sample(_attention("products", 20), (1, 4, 16)),
        "attention by products, 130 words": Sample(_attention("products", 130), (1, 4)),
        "convolutions": Sample(_convs, (1, 3, 8)),
        "depthwise convolutions": Sample(_depthwise, (1, 2, 6)),
        "tables, 1 id": Sample(_tables(_LARGE, 1), (8, 96, 1200)),
        "tables, 20 ids": Sample(_tables(_LARGE, 20), (8, 96, 600)),
        "small tables, 1 id": Sample(_tables(_SMALL, 1), (4, 48, 900)),
        "small tables, 12 ids": Sample(_tables(_SMALL, 12), (2, 24, 200)),
        "columns of ids": Sample(_columns(1), (4, 48, 900)),
        "columns of 3 ids": Sample(_columns(3), (4, 60, 600)),
        "elementwise, narrow": Sample(_chain((300,), *_SMOOTH), (1, 30, 900)),
        "elementwise, wide": Sample(_chain((40, 500), *_SMOOTH), (1, 8, 40)),
        "relus": Sample(_chain((40, 500), *_PLAIN), (1, 8, 40)),
        "relus, narrow": Sample(_chain((300,), *_PLAIN), (1, 30, 900)),
        "dropouts, narrow": Sample(_chain((300,), _drop, torch.relu, _drop), (1, 30, 300)),
        "dropouts, wide": Sample(_chain((40, 200), _drop, torch.relu, _drop), (1, 8, 40)),
        "numbers": Sample(_chain((40, 60), _numbers, _numbers), (1, 20)),
        "constants": Sample(_chain((40, 60), _counted, _counted, _counted), (1, 20)),
        "views": Sample(_chain((40, 60), _turned, _turned, _turned), (1, 8, 60)),
        "norms, narrow": Sample(_norms(64), (2, 60, 900)),
        "norms, wide": Sample(_norms(1500), (2, 60, 400)),
        "softmaxes": Sample(_chain((6, 30, 30), lambda x: x.softmax(-1), lambda x: x.softmax(1)), (1, 8, 60)),
        "sums": Sample(_chain((40, 200), lambda x: x - x.mean(-1, keepdim=True), lambda x: x.sum(1)), (1, 8, 100)),
        "moves": Sample(
            _chain((40, 200), lambda x: torch.cat([x, x], 1), lambda x: x.transpose(1, 2).contiguous()), (1, 8, 100)
        ),
        "pools": Sample(_pools, (1, 8, 40)),
        "recurrent": Sample(_recurrent, (1, 8, 24)),
    }
)
"""The networks by name."""
