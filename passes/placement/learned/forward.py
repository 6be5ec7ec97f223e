"""The policy's forward pass in numpy, so that a search draws from the shipped policy without importing PyTorch.

It computes what :class:`~.policy.Policy` does with an LSTM, for all layers, types and throughputs at once; both
directions of the LSTM advance together, one layer a step. Tests hold it to PyTorch's.

Left out: learning (``reinforce.py``), which needs gradients, and the network's drawing (``policy.py``).
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from io import BytesIO
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Problem
from heterps_compile.passes.placement.local.sampling import Proposal

from .features import layer_features

SHIPPED_FILE = "policy.npz"
"""Weights trained on generated problems by ``tools/train_policy.py``, in half precision, by their names in PyTorch."""

Reals = NDArray[np.floating]
Weights = Mapping[str, Reals]


@cache
def shipped_weights() -> Weights:
    """Return the weights that come with the package."""
    return read_weights(files("heterps_compile.passes.placement.learned").joinpath(SHIPPED_FILE).read_bytes())


def read_weights(data: bytes) -> Weights:
    """Return the weights that a file of ``tools/train_policy.py`` holds."""
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        return MappingProxyType({name: arrays[name].astype(np.float32) for name in arrays.files})


def network_input(problem: Problem, throughputs: Sequence[float]) -> Reals:
    """Compute the features [L, B, T, F] of a problem for B throughputs in samples/s."""
    return np.stack([layer_features(problem, goal) for goal in throughputs], axis=1)


def network_output(weights: Weights, features: Reals) -> tuple[Reals, Reals]:
    """Return the scores [L, B, T] of types and the logits [L, B] of stages beginning; features [L, B, T, F]."""

    def linear(name: str, values: Reals) -> Reals:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    layers, batch, types, _ = features.shape
    hidden = np.tanh(linear("read", features))
    hidden = hidden + np.tanh(linear("compare", _others(hidden)))[:, :, None]
    along = _lstm(weights, hidden.reshape(layers, batch * types, -1)).reshape(layers, batch, types, -1)
    others = _others(along)
    kept = np.tanh(linear("keep", along) + linear("compare_again", others)[:, :, None])
    return linear("score", kept)[..., 0], linear("begin", others)[..., 0]


def propose_at(weights: Weights, problem: Problem, throughputs: Sequence[float]) -> list[Proposal]:
    """Compute the distribution of plans per throughput in samples/s that the policy aims at."""
    scores, begin_logits = network_output(weights, network_input(problem, throughputs))
    return [
        Proposal(goal, scores[:, row].astype(np.float64), begin_logits[:, row].astype(np.float64))
        for row, goal in enumerate(throughputs)
    ]


def _others(hidden: Reals) -> Reals:
    return np.concatenate([hidden.mean(2), hidden.max(2)], axis=-1)


def _lstm(weights: Weights, inputs: Reals) -> Reals:
    """Return the states [L, N, 2 H] of both directions; inputs [L, N, H]. Gates come in PyTorch's order: i, f, g, o."""
    ends = ("_l0", "_l0_reverse")
    layers, rows, width = inputs.shape
    recurrent = np.stack([weights[f"along.weight_hh{end}"].T for end in ends])
    gates = np.stack(
        [
            inputs @ weights[f"along.weight_ih{end}"].T
            + (weights[f"along.bias_ih{end}"] + weights[f"along.bias_hh{end}"])
            for end in ends
        ],
        axis=1,
    )
    gates[:, 1] = gates[::-1, 1].copy()  # so that both advance in one step
    state, cell = np.zeros((2, 2, rows, width), inputs.dtype)
    states = np.empty((layers, 2, rows, width), inputs.dtype)
    for layer in range(layers):
        at = gates[layer] + state @ recurrent
        at[..., 2 * width : 3 * width] *= 2  # tanh(x) is 2 sigmoid(2 x) - 1
        opened = 0.5 * np.tanh(0.5 * at) + 0.5
        let_in, kept, offered, let_out = np.split(opened, 4, axis=-1)
        cell = kept * cell + let_in * (2 * offered - 1)
        state = states[layer] = let_out * np.tanh(cell)
    return np.concatenate([states[:, 0], states[::-1, 1]], axis=-1)
