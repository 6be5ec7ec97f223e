"""2EMB: two look-ups in one shared embedding (a query and a title, say), then a joint MLP.

The shared table is what makes the model interesting to place: both branches have to sit where the table is.

Left out: the paper does not say what its two embeddings hold.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class TwoEmb(nn.Module):
    """Gives the logit of a query and a title belonging together."""

    def __init__(self, rows: int, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.words = nn.Embedding(rows, width)
        self.query = nn.Linear(width, width)
        self.title = nn.Linear(width, width)
        layers: list[nn.Module] = []
        for before, after in zip((3 * width, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden[-1], 1))

    def forward(self, query_ids: Tensor, title_ids: Tensor) -> Tensor:
        """Return logits [batch] from word ids [batch, query words] and [batch, title words]."""
        query = torch.tanh(self.query(self.words(query_ids).sum(dim=1)))
        title = torch.tanh(self.title(self.words(title_ids).sum(dim=1)))
        logits: Tensor = self.mlp(torch.cat([query, title, query * title], dim=1))
        return logits.squeeze(1)


def two_emb(
    *,
    batch: int = 256,
    rows: int = 30_000,
    words: tuple[int, int] = (8, 16),
    width: int = 64,
    hidden: Sequence[int] = (256, 128),
    seed: int = 0,
) -> tuple[TwoEmb, tuple[Tensor, Tensor]]:
    """Build the model and inputs for it.

    Args:
        batch: Samples in the example inputs.
        rows: Rows of the shared table.
        words: Words of a query, and of a title.
        width: Width of the embedding.
        hidden: Widths of the joint layers.
        seed: Of weights and inputs.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TwoEmb(rows, width, hidden)
        return model, (torch.randint(0, rows, (batch, words[0])), torch.randint(0, rows, (batch, words[1])))
