"""Models that call flex_attention are held against scaled_dot_product_attention with the same scores masked."""

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import heterps_compile

LENGTH = 8
compiled_attention = torch.compile(flex_attention, backend="eager")


class Attention(nn.Module):
    """Grouped queries, a bias by head, and a mask by documents that leaves the first row empty."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv, self.last = nn.Linear(16, 64), nn.Linear(32, 4)
        self.register_buffer("bias", torch.randn(4))
        self.register_buffer("document", torch.tensor([0, 0, 0, 1, 1, 1, 1, 1]))

    def parts(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [part.unflatten(-1, (-1, 8)).transpose(1, 2) for part in self.qkv(x).split([32, 16, 16], -1)]

    def is_seen(self, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (i >= j) & (self.document[i] == self.document[j]) & (j > 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def is_seen(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
            return self.is_seen(i, j)

        mask = create_block_mask(is_seen, None, None, LENGTH, LENGTH, device=x.device.type)
        made = compiled_attention(
            *self.parts(x),
            score_mod=lambda score, b, h, i, j: score - (i - j) * self.bias[h],
            block_mask=mask,
            enable_gqa=True,
        )
        return self.last(made.transpose(1, 2).flatten(2))

    def expected(self, x: torch.Tensor) -> torch.Tensor:
        i, j = torch.meshgrid(torch.arange(LENGTH), torch.arange(LENGTH), indexing="ij")
        scores = -(i - j) * self.bias[:, None, None]
        masked = torch.where(self.is_seen(i, j), scores, -torch.inf)
        made = nn.functional.scaled_dot_product_attention(*self.parts(x), attn_mask=masked, enable_gqa=True)
        return self.last(made.transpose(1, 2).flatten(2))


@pytest.mark.slow  # torch.export takes seconds
@pytest.mark.parametrize(("backend", "mode"), [("torch", "training"), ("onnxruntime", "inference")])
def test_flex_attention_compiles(backend: str, mode: str) -> None:
    model, x = Attention().train(mode == "training"), torch.randn(2, LENGTH, 16)
    compiled = heterps_compile.compile(model, (x,), backend=backend, mode=mode)
    assert compiled.plan.verification is not None
    assert any("flex_attention" in note for note in compiled.plan.notes)
    made = compiled.run(x)
    torch.testing.assert_close(torch.as_tensor(made), model.expected(x), rtol=1e-4, atol=1e-5)
