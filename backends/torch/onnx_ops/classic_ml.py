"""Ops of the domain ``ai.onnx.ml``: linear models, forests, and what comes before them.

What a node has in its attributes arrives as tensors behind its input, laid out by
``backends/onnx_stage/ml_attributes.py``.

Left out: text and maps.
"""

import math

import torch
from torch import Tensor

from .table import op

ML = "ai.onnx.ml"

_TESTS = (torch.le, torch.lt, torch.ge, torch.gt, torch.eq, torch.ne)
"""How a node of a tree compares, in the order of ``ml_attributes.py``."""


def _transformed(scores: Tensor, how: str) -> Tensor:
    """Return scores as the attribute ``post_transform`` says."""
    if how == "SOFTMAX":
        return torch.softmax(scores, -1)
    if how == "LOGISTIC":
        return torch.sigmoid(scores)
    if how == "SOFTMAX_ZERO":
        most = scores.amax(-1, keepdim=True)
        some = scores.abs() > 1e-7
        shares = torch.where(some, torch.exp(scores - most), scores * torch.exp(-most))
        return shares / torch.where(some, shares, 0.0).sum(-1, keepdim=True)
    if how == "PROBIT":  # by the formula that ONNX Runtime has for the inverse of the error function
        x = 2 * scores - 1
        log = torch.log((1 - x) * (1 + x))
        v = 2 / (3.14159 * 0.147) + 0.5 * log
        return math.sqrt(2) * torch.sign(x) * torch.sqrt(-v + torch.sqrt(v * v - log / 0.147))
    return scores


def _two_scores(scores: Tensor, binary: str, how: str) -> Tensor:
    """Return scores of two classes from that of one."""
    if how == "LOGISTIC":
        return torch.cat([torch.sigmoid(-scores), torch.sigmoid(scores)], 1)
    return torch.cat([1 - scores if binary == "share" else -scores, scores], 1)


@op("LinearRegressor", 1, domain=ML)
def linear_regressor(x: Tensor, coefficients: Tensor, intercepts: Tensor, *, post_transform: str = "NONE") -> Tensor:
    return _transformed(torch.matmul(x.to(coefficients.dtype), coefficients) + intercepts, post_transform)


@op("LinearClassifier", 1, domain=ML)
def linear_classifier(
    x: Tensor, coefficients: Tensor, intercepts: Tensor, labels: Tensor, *, post_transform: str = "NONE"
) -> tuple[Tensor, Tensor]:
    rows = x if x.dim() > 1 else x.unsqueeze(0)
    scores = torch.matmul(rows.to(coefficients.dtype), coefficients) + intercepts
    if scores.shape[1] > 1:
        return labels[scores.argmax(1)], _transformed(scores, post_transform)
    label = torch.where(scores[:, 0] > 0, labels[1], labels[0])
    return label, _two_scores(scores, "share", post_transform)


@op("Scaler", 1, domain=ML)
def scaler(x: Tensor, offset: Tensor, scale: Tensor) -> Tensor:
    return (x.to(torch.float32) - offset) * scale


@op("Normalizer", 1, domain=ML)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    rows = x.to(torch.float32)
    if norm == "L1":
        length = rows.abs().sum(-1, keepdim=True)
    elif norm == "L2":
        length = rows.square().sum(-1, keepdim=True).sqrt()
    else:
        length = rows.amax(-1, keepdim=True)
    return rows / torch.where(length == 0, 1.0, length)


@op("Imputer", 1, domain=ML)
def imputer(x: Tensor, values: Tensor, *, replaced: float = 0.0) -> Tensor:
    missing = torch.isnan(x) if math.isnan(replaced) else x == replaced
    return torch.where(missing, values.to(x.dtype), x)


@op("LabelEncoder", 2, domain=ML)
def label_encoder_before_4(x: Tensor, keys: Tensor, values: Tensor, default: Tensor) -> Tensor:
    """Before opset 4: what is no number is no key."""
    place = torch.searchsorted(keys, x.contiguous()).clamp(max=keys.shape[0] - 1)
    return torch.where(keys[place] == x, values[place], default)


@op("LabelEncoder", 4, domain=ML)
def label_encoder(x: Tensor, keys: Tensor, values: Tensor, default: Tensor) -> Tensor:
    found = label_encoder_before_4(x, keys, values, default)
    if not x.is_floating_point():
        return found
    last = torch.isnan(keys[-1]) & torch.isnan(x)  # a key that is no number
    return torch.where(last, values[-1], found)


@op("OneHotEncoder", 1, domain=ML)
def one_hot_encoder(x: Tensor, categories: Tensor) -> Tensor:
    return (x.unsqueeze(-1).to(torch.int64) == categories).to(torch.float32)


@op("FeatureVectorizer", 1, domain=ML)
def feature_vectorizer(*xs: Tensor, inputdimensions: list[int]) -> Tensor:
    parts = [x.reshape(-1, x.shape[-1])[:, :n] for x, n in zip(xs, inputdimensions, strict=True)]
    return torch.cat([part.to(torch.float32) for part in parts], 1)


@op("SVMRegressor", 1, domain=ML)
def svm_regressor(
    x: Tensor,
    vectors: Tensor,
    weights: Tensor,
    rho: Tensor,
    *,
    kernel: str = "LINEAR",
    gamma: float = 0.0,
    shift: float = 0.0,
    degree: float = 0.0,
    one_class: int = 0,
) -> Tensor:
    rows = x.to(torch.float32)
    if kernel == "RBF":
        near = torch.exp(-gamma * (rows.unsqueeze(1) - vectors).square().sum(-1))
    else:
        near = torch.matmul(rows, vectors.t())
        if kernel == "POLY":
            near = (gamma * near + shift) ** degree
        elif kernel == "SIGMOID":
            near = torch.tanh(gamma * near + shift)
    y = torch.matmul(near, weights.unsqueeze(1)) + rho
    return torch.where(y > 0, 1.0, -1.0) if one_class else y


def _leaves(x: Tensor, forest: tuple[Tensor, ...], depth: int, mode: int, misses: bool) -> Tensor:
    """Return the leaf that each sample ends at in each tree (samples, trees)."""
    roots, features, thresholds, modes, on_true, on_false, missing_is_true = forest
    rows = x.to(thresholds.dtype)
    node = roots.unsqueeze(0).expand(rows.shape[0], roots.shape[0])
    for _ in range(depth):
        value, limit = rows.gather(1, features[node]), thresholds[node]
        if mode >= 0:
            holds = _TESTS[mode](value, limit)
        else:
            every = torch.stack([test(value, limit) for test in _TESTS], -1)
            holds = every.gather(-1, modes[node].unsqueeze(-1)).squeeze(-1)
        if misses:
            holds = holds | (torch.isnan(value) & missing_is_true[node])
        node = torch.where(holds, on_true[node], on_false[node])
    return node


@op("TreeEnsemble", 5, domain=ML)
@op("TreeEnsembleRegressor", 1, domain=ML)
def tree_regressor(
    x: Tensor,
    roots: Tensor,
    features: Tensor,
    thresholds: Tensor,
    modes: Tensor,
    on_true: Tensor,
    on_false: Tensor,
    missing_is_true: Tensor,
    weights: Tensor,
    base: Tensor,
    *,
    depth: int,
    mode: int,
    misses: bool,
    aggregate: str = "SUM",
    post_transform: str = "NONE",
) -> Tensor:
    forest = (roots, features, thresholds, modes, on_true, on_false, missing_is_true)
    found = weights[_leaves(x, forest, depth, mode, misses)]  # (samples, trees, targets)
    if aggregate in ("MIN", "MAX"):
        score = found.amin(1) if aggregate == "MIN" else found.amax(1)
        score = torch.where(torch.isinf(score), 0.0, score)
    else:
        score = found.sum(1) / roots.shape[0] if aggregate == "AVERAGE" else found.sum(1)
    return _transformed(score + base, post_transform)


@op("TreeEnsembleClassifier", 1, domain=ML)
def tree_classifier(
    x: Tensor,
    roots: Tensor,
    features: Tensor,
    thresholds: Tensor,
    modes: Tensor,
    on_true: Tensor,
    on_false: Tensor,
    missing_is_true: Tensor,
    weights: Tensor,
    base: Tensor,
    labels: Tensor,
    *,
    depth: int,
    mode: int,
    misses: bool,
    binary: str = "",
    threshold: float = 0.0,
    post_transform: str = "NONE",
) -> tuple[Tensor, Tensor]:
    forest = (roots, features, thresholds, modes, on_true, on_false, missing_is_true)
    scores = (weights[_leaves(x, forest, depth, mode, misses)].sum(1) + base).to(torch.float32)
    if scores.shape[1] > 2:
        return labels[scores.argmax(1)], _transformed(scores, post_transform)
    label = torch.where(scores[:, -1] > threshold, labels[1], labels[0])
    made = _two_scores(scores, binary, post_transform) if binary else _transformed(scores, post_transform)
    return label, made
