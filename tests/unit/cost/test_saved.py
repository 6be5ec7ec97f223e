"""What a plan counts as saved for the backward, against autograd's own count of the stage that a run executes.

``pytest tests/unit/cost/test_saved.py -rP`` prints the ratios that ``docs/cost-model.md`` shows.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - as PyTorch writes it

import heterps_compile
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.precision import PRECISIONS

WIDTH, HEADS = 64, 4
PAPER = load_cluster("heterps-paper")
CPUS = replace(PAPER, device_types=tuple(device for device in PAPER.device_types if device.kind == "cpu"))


class Attention(nn.Module):
    """Attention as models write it: eager, with dropout of the weights, or by PyTorch's one op."""

    def __init__(self, *, eager: bool, causal: bool = False, masks: bool = False, drops: float = 0.1) -> None:
        super().__init__()
        self.qkv, self.out, self.eager, self.causal = (
            nn.Linear(WIDTH, 3 * WIDTH),
            nn.Linear(WIDTH, WIDTH),
            eager,
            causal,
        )
        self.masks, self.drops = masks, drops

    def forward(self, x: Tensor) -> Tensor:
        samples, rows, _ = x.shape
        heads = [part.view(samples, rows, HEADS, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)]
        if not self.eager:
            mask = (x.mean(-1) > -1)[:, None, None, :].expand(-1, 1, rows, -1) if self.masks else None
            found = F.scaled_dot_product_attention(*heads, attn_mask=mask, dropout_p=self.drops, is_causal=self.causal)
        else:
            weights = heads[0] @ heads[1].transpose(2, 3) / 4
            if self.causal:
                weights = weights.masked_fill(torch.ones(rows, rows, dtype=torch.bool).triu(1), -1e4)
            found = F.dropout(weights.softmax(-1), self.drops) @ heads[2]
        return self.out(found.transpose(1, 2).reshape(samples, rows, WIDTH))


class Block(nn.Module):
    """A layer of a transformer, norms before or after."""

    def __init__(self, *, first: bool, **how: bool | float) -> None:
        super().__init__()
        self.attention, self.first = Attention(**how), first  # type: ignore[arg-type]
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = x + self.attention(self.one(x))
            return x + self.wide(self.two(x))
        x = self.one(x + self.attention(x))
        return self.two(x + self.wide(x))


class Patches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.cut(x).flatten(2).transpose(1, 2)


class Last(nn.Module):
    """Recurrence over a sequence, of which the last state is read."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.states, self.head = (
            nn.Embedding(50, 32),
            nn.LSTM(32, WIDTH, 2, batch_first=True),
            nn.Linear(WIDTH, 10),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.states(self.table(x))[0][:, -1])


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(100, 16) for _ in range(4))
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(torch.cat([table(x[:, i]) for i, table in enumerate(self.tables)], 1))


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = self.block(3, 16), self.block(16, 32), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join, self.head = self.block(32, 16), nn.Conv2d(16, 1, 1)

    @staticmethod
    def block(entering: int, leaving: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(entering, leaving, 3, 1, 1), nn.GroupNorm(4, leaving), nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        down = self.down(x)
        return self.head(self.join(torch.cat([self.up(self.deep(F.max_pool2d(down, 2))), down], 1)))


def of_convolutions(*, by_channel: bool) -> nn.Module:
    first = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
    if by_channel:
        more = [
            nn.Conv2d(16, 16, 3, 1, 1, groups=16),
            nn.BatchNorm2d(16),
            nn.ReLU6(),
            nn.Conv2d(16, 32, 1),
            nn.Hardswish(),
        ]
    else:
        more = [nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU()]
    return nn.Sequential(*first, *more, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def transformer(*, ids: bool = True, **how: bool | float) -> nn.Module:
    first = nn.Sequential(nn.Embedding(50, WIDTH), nn.Dropout(0.1)) if ids else Patches()
    return nn.Sequential(first, *(Block(**how) for _ in range(2)), nn.LayerNorm(WIDTH))  # type: ignore[arg-type]


IDS, IMAGES = torch.arange(512).reshape(16, 32) % 50, torch.rand(16, 3, 32, 32)
MODELS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh()), torch.rand(16, 32)),
    "convolutions": (lambda: of_convolutions(by_channel=False), IMAGES),
    "depthwise": (lambda: of_convolutions(by_channel=True), IMAGES),
    "BERT, eager": (lambda: transformer(first=False, eager=True), IDS),
    "BERT, SDPA": (lambda: transformer(first=False, eager=False), IDS),
    "GPT": (lambda: transformer(first=True, eager=True, causal=True), IDS),
    "ViT, SDPA": (lambda: transformer(ids=False, first=True, eager=False, drops=0.0), IMAGES),
    "ViT, SDPA, masked": (lambda: transformer(ids=False, first=True, eager=False, masks=True, drops=0.0), IMAGES),
    "LSTM": (Last, IDS),
    "clicks": (Clicks, IDS[:, :4].contiguous()),
    "U-Net": (Skips, IMAGES),
}


def saved_bytes(stage: nn.Module, entering: Tensor, precision: str) -> int:
    """Return the bytes of distinct storages that autograd saves, but of parameters and copies of them."""
    held = {tensor.untyped_storage().data_ptr() for tensor in (*stage.parameters(), *stage.buffers())}
    shapes = {shape for tensor in stage.parameters() for shape in (tensor.shape, tensor.shape[::-1])}
    found: dict[int, tuple[int, Tensor]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held and tensor.shape not in shapes:
            found[storage.data_ptr()] = (storage.nbytes(), tensor)  # which keeps it, so that no other takes its place
        return tensor

    narrow = getattr(torch, PRECISIONS[precision])
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", narrow if precision != "fp32" else torch.bfloat16, enabled=precision != "fp32"),
    ):
        stage(entering)
    return sum(size for size, _ in found.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_stage_holds_what_autograd_saves_of_it(name: str, precision: str) -> None:
    if (name, precision) == ("LSTM", "fp16"):
        pytest.skip("oneDNN has no recurrence in float16 for this CPU")
    make, entering = MODELS[name]
    compiled = heterps_compile.compile(
        make().train(),
        (entering,),
        cluster=CPUS,
        mode="training",
        precision=precision,
        max_stages=1,
        method="greedy",
        verify=False,
    )
    memory = compiled.plan.stages[0].memory
    assert memory is not None
    ratio = memory.activations_bytes / saved_bytes(compiled.stages[0], entering, precision)
    print(f"{name} | {precision} | {ratio:.3f}")
    assert 0.95 <= ratio <= 1.1
