"""The model of the demonstration: click-through prediction from what a user did lately, who it is and what is shown.

Eight lists of the user's last 100 actions, each looked up in a table of its own and averaged; eight fields of
the user and eight of the advertisement; one layer each brings user and advertisement down to 256 numbers before a deep
network. Tables are uneven, as those of users, goods and countries are.

Left out: lists shorter than 100 (padding), training, trained weights.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

RECENT = 100  # actions in each list
BEHAVIOURS = (2_000_000, 1_500_000, 1_500_000, 1_000_000, 500_000, 300_000, 100_000, 20_000)  # rows of each table
USER = (1_500_000, 500_000, 50_000, 10_000, 2_000, 500, 200, 100)
ADVERTISEMENT = (500_000, 300_000, 150_000, 50_000, 10_000, 5_000, 2_000, 500)
TABLES = (*BEHAVIOURS, *USER, *ADVERTISEMENT)
WIDTH = 32  # of every embedding
TOWER = 256
DENSE = 13
HIDDEN = (2048, 1024, 512)

Inputs = tuple[list[Tensor], list[Tensor], list[Tensor], Tensor]


class ClickModel(nn.Module):
    """Gives the logit of a click."""

    def __init__(self) -> None:
        super().__init__()
        self.behaviours = _tables(BEHAVIOURS)
        self.user_fields = _tables(USER)
        self.advertisement_fields = _tables(ADVERTISEMENT)
        self.user = nn.Linear((len(BEHAVIOURS) + len(USER)) * WIDTH, TOWER)
        self.advertisement = nn.Linear(len(ADVERTISEMENT) * WIDTH + DENSE, TOWER)
        layers: list[nn.Module] = []
        for before, after in pairwise((2 * TOWER, *HIDDEN)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.deep = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, lists: list[Tensor], user: list[Tensor], advertisement: list[Tensor], dense: Tensor) -> Tensor:
        """Return logits [batch] from lists of ids [batch, 100], fields [batch] and numbers [batch, 13]."""
        recent = [table(ids).mean(dim=1) for table, ids in zip(self.behaviours, lists, strict=True)]
        is_who = [table(ids) for table, ids in zip(self.user_fields, user, strict=True)]
        is_shown = [table(ids) for table, ids in zip(self.advertisement_fields, advertisement, strict=True)]
        of_user = torch.relu(self.user(torch.cat([*recent, *is_who], dim=1)))
        of_advertisement = torch.relu(self.advertisement(torch.cat([*is_shown, dense], dim=1)))
        logits: Tensor = self.deep(torch.cat([of_user, of_advertisement], dim=1))
        return logits.squeeze(1)

    def tables(self) -> list[nn.Embedding]:
        """Return the embeddings."""
        return [module for module in self.modules() if isinstance(module, nn.Embedding)]


def _tables(rows: Sequence[int]) -> nn.ModuleList:
    return nn.ModuleList(nn.Embedding(count, WIDTH) for count in rows)


def click_model(seed: int = 0) -> ClickModel:
    """Build the model, 1.28 GB of tables."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ClickModel().eval()


def samples(batch: int, seed: int = 0) -> Inputs:
    """Draw inputs for the model: ids of every table alike often."""
    draw = torch.Generator().manual_seed(seed)

    def ids(rows: Sequence[int], *shape: int) -> list[Tensor]:
        return [torch.randint(0, count, (batch, *shape), generator=draw) for count in rows]

    return ids(BEHAVIOURS, RECENT), ids(USER), ids(ADVERTISEMENT), torch.randn(batch, DENSE, generator=draw)
