"""The policy network: scores for every pair of layer and device type, from one recurrent pass over the layers.

::

    features [L, T, F] -> linear -> + what the other types look like -> LSTM along the layers, one row a type
        -> + what the other types look like -> score [L, T] of the type for the layer
                                            -> logit [L] of a stage beginning at the layer

All types share the weights, and the other types are seen through their mean and maximum: the network works for any
number of types, in any order. All plans drawn in a round share one pass.

Left out: how plans are drawn from scores (``sampling.py``) and learned from (``reinforce.py``).
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from heterps_compile.cost.problem import Problem
from heterps_compile.process_state import alone

from .features import FEATURE_COUNT, layer_features

_WIDTH = 16  # hidden units in each direction
_CPU_FLOAT32: Mapping[str, Any] = MappingProxyType({"dtype": torch.float32, "device": "cpu"})


class Policy(nn.Module):
    """Scores for a problem; see the drawing in the module's docstring.

    Args:
        cell: ``"lstm"``, or ``"rnn"`` for Elman's cell, which the HeterPS paper uses.
    """

    def __init__(self, cell: Literal["lstm", "rnn"]) -> None:
        super().__init__()
        recurrent, width = nn.LSTM if cell == "lstm" else nn.RNN, _WIDTH
        # stated, since a caller may have set other defaults for models of its own
        self.read = nn.Linear(FEATURE_COUNT, width, **_CPU_FLOAT32)
        self.compare = nn.Linear(2 * width, width, **_CPU_FLOAT32)
        self.along = recurrent(width, width, bidirectional=True, **_CPU_FLOAT32)
        self.keep = nn.Linear(2 * width, 2 * width, **_CPU_FLOAT32)
        self.compare_again = nn.Linear(4 * width, 2 * width, **_CPU_FLOAT32)
        self.score = nn.Linear(2 * width, 1, **_CPU_FLOAT32)
        self.begin = nn.Linear(4 * width, 1, **_CPU_FLOAT32)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores [L, B, T] of types and the logits [L, B] of stages beginning; features [L, B, T, F]."""
        with torch.autocast("cpu", enabled=False):  # a caller's is for a model of its own
            return self._scores(features)

    def _scores(self, features: Tensor) -> tuple[Tensor, Tensor]:
        layers, batch, types, _ = features.shape
        hidden = torch.tanh(self.read(features))
        hidden = hidden + torch.tanh(self.compare(_others(hidden)))[:, :, None]
        along, _ = self.along(hidden.reshape(layers, batch * types, -1))
        along = along.reshape(layers, batch, types, -1)
        others = _others(along)
        scored = self.score(torch.tanh(self.keep(along) + self.compare_again(others)[:, :, None]))
        return scored[..., 0], self.begin(others)[..., 0]


def _others(hidden: Tensor) -> Tensor:
    return torch.cat([hidden.mean(2), hidden.amax(2)], -1)


def fresh_policy(problem: Problem, cell: Literal["lstm", "rnn"], seed: int) -> Policy:
    """Initialise a policy at random; it draws four stages on average. torch's global generator stays as it is."""
    with alone(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy(cell)
    nn.init.constant_(policy.begin.bias, -math.log(max(problem.layer_count / 4 - 1, 0.5)))
    return policy


def policy_input(problem: Problem, throughputs: Sequence[float]) -> Tensor:
    """Return the features [L, B, T, F] of a problem for B throughputs."""
    return torch.from_numpy(np.stack([layer_features(problem, goal) for goal in throughputs], axis=1))
