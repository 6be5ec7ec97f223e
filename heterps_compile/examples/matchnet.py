"""MATCHNET: two towers, one for users and one for items, matched by the cosine of what they give.

Left out: sampling of negatives; the loss is the caller's.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Tower(nn.Module):
    """Gives a vector for a bag of ids: mean of their embeddings, then an MLP."""

    def __init__(self, rows: int, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        layers: list[nn.Module] = []
        for before, after in zip((width, *hidden), hidden, strict=False):
            layers += [nn.Linear(before, after), nn.Tanh()]
        self.mlp = nn.Sequential(*layers)

    def forward(self, ids: Tensor) -> Tensor:
        """Return vectors [batch, hidden[-1]] from ids [batch, bag]."""
        vectors: Tensor = self.mlp(self.table(ids).mean(dim=1))
        return vectors


class MatchNet(nn.Module):
    """Gives how well a user and an item match, in [-scale, scale]."""

    def __init__(self, users: int, items: int, width: int, hidden: Sequence[int], scale: float) -> None:
        super().__init__()
        self.user = Tower(users, width, hidden)
        self.item = Tower(items, width, hidden)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, user_ids: Tensor, item_ids: Tensor) -> Tensor:
        """Return scores [batch] from ids [batch, user bag] and [batch, item bag]."""
        user = nn.functional.normalize(self.user(user_ids), dim=1)
        item = nn.functional.normalize(self.item(item_ids), dim=1)
        return self.scale * (user * item).sum(dim=1)


def matchnet(
    *,
    batch: int = 256,
    users: int = 50_000,
    items: int = 20_000,
    bags: tuple[int, int] = (10, 4),
    width: int = 32,
    hidden: Sequence[int] = (256, 128, 64),
    scale: float = 10.0,
    seed: int = 0,
) -> tuple[MatchNet, tuple[Tensor, Tensor]]:
    """Build the model and inputs for it.

    Args:
        batch: Samples in the example inputs.
        users: Rows of the user table.
        items: Rows of the item table.
        bags: Ids of a user, and of an item.
        width: Width of the embeddings.
        hidden: Widths of each tower's layers.
        scale: What the cosine is multiplied by at the start.
        seed: Of weights and inputs.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MatchNet(users, items, width, hidden, scale)
        return model, (torch.randint(0, users, (batch, bags[0])), torch.randint(0, items, (batch, bags[1])))
