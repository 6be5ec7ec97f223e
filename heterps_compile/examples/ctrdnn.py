"""CTRDNN: click-through prediction with one embedding per sparse field and a deep MLP.

Left out: fields with several values, and feature crosses.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class CTRDNN(nn.Module):
    """Gives the logit of a click.

    Attributes:
        tables: One embedding per sparse field.
        mlp: Linear layers with ReLU between them, over all embeddings and the dense features.
    """

    def __init__(self, rows: Sequence[int], dense: int, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in rows)
        sizes = (len(rows) * width + dense, *hidden)
        layers: list[nn.Module] = []
        for before, after in pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.mlp = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, sparse: Tensor, dense: Tensor) -> Tensor:
        """Return logits [batch] from ids [batch, fields] and numbers [batch, dense]."""
        embedded = [table(sparse[:, field]) for field, table in enumerate(self.tables)]
        logits: Tensor = self.mlp(torch.cat([*embedded, dense], dim=1))
        return logits.squeeze(1)


def ctrdnn(
    *,
    batch: int = 256,
    fields: int = 26,
    rows: int = 10_000,
    dense: int = 13,
    width: int = 16,
    hidden: Sequence[int] = (512, 256, 128, 64),
    seed: int = 0,
) -> tuple[CTRDNN, tuple[Tensor, Tensor]]:
    """Build the model, five linear layers deep by default, and inputs for it.

    Args:
        batch: Samples in the example inputs.
        fields: Sparse fields, each with a table of its own.
        rows: Rows of each table.
        dense: Dense features.
        width: Width of each embedding.
        hidden: Widths of the hidden layers.
        seed: Of weights and inputs.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = CTRDNN((rows,) * fields, dense, width, hidden)
        return model, (torch.randint(0, rows, (batch, fields)), torch.randn(batch, dense))
