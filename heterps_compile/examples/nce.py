"""NCE: a word from its context, trained by noise-contrastive estimation (Gutmann & Hyvarinen, AISTATS 2010).

The true word and k words of noise compete; each candidate's logit is its score less the log of how often noise would
have drawn it, so that the model learns to tell data from noise.

Left out: drawing the noise, which is the data loader's work; the candidates are an input.
"""

import torch
from torch import Tensor, nn


class NCE(nn.Module):
    """Gives the logit of each candidate being the true word.

    Attributes:
        log_noise: Log of k times the noise's probability of each word.
    """

    log_noise: Tensor

    def __init__(self, rows: int, width: int, noise: int) -> None:
        super().__init__()
        self.context = nn.Embedding(rows, width)
        self.hidden = nn.Linear(width, width)
        self.word = nn.Embedding(rows, width)
        self.bias = nn.Embedding(rows, 1)
        rank = torch.arange(1, rows + 1, dtype=torch.float64)  # words in order of frequency, as Zipf has it
        self.register_buffer("log_noise", (noise / rank / (1 / rank).sum()).log().float())

    def forward(self, context_ids: Tensor, candidates: Tensor) -> Tensor:
        """Return logits [batch, candidates] from ids [batch, context] and [batch, candidates]."""
        hidden = torch.tanh(self.hidden(self.context(context_ids).mean(dim=1)))
        scores = torch.bmm(self.word(candidates), hidden.unsqueeze(2)).squeeze(2)
        logits: Tensor = scores + self.bias(candidates).squeeze(2) - self.log_noise[candidates]
        return logits


def nce(
    *, batch: int = 256, rows: int = 30_000, context: int = 6, noise: int = 20, width: int = 64, seed: int = 0
) -> tuple[NCE, tuple[Tensor, Tensor]]:
    """Build the model and inputs for it.

    Args:
        batch: Samples in the example inputs.
        rows: Words.
        context: Words of a context.
        noise: Words of noise beside the true one.
        width: Width of the embeddings.
        seed: Of weights and inputs.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = NCE(rows, width, noise)
        return model, (torch.randint(0, rows, (batch, context)), torch.randint(0, rows, (batch, 1 + noise)))
