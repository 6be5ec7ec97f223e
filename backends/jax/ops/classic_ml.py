"""Ops of the domain ``ai.onnx.ml``: linear models, forests, and what comes before them.

What a node has in its attributes arrives as arrays behind its input, laid out by
``backends/onnx_stage/ml_attributes.py``.

Left out: text and maps.
"""

from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from .known import Array


def transformed(scores: Array, how: str) -> Array:
    """Return scores as the attribute ``post_transform`` says."""
    if how == "SOFTMAX":
        return jax.nn.softmax(scores, -1)
    if how == "LOGISTIC":
        return jax.nn.sigmoid(scores)
    if how == "SOFTMAX_ZERO":
        most = jnp.max(scores, -1, keepdims=True)
        some = jnp.abs(scores) > 1e-7
        shares = jnp.where(some, jnp.exp(scores - most), scores * jnp.exp(-most))
        return shares / jnp.sum(jnp.where(some, shares, 0), -1, keepdims=True)
    if how == "PROBIT":  # by the formula that ONNX Runtime has for the inverse of the error function
        x = 2 * scores - 1
        log = jnp.log((1 - x) * (1 + x))
        v = 2 / (3.14159 * 0.147) + 0.5 * log
        return jnp.sign(x) * jnp.sqrt(2 * (-v + jnp.sqrt(v * v - log / 0.147)))
    return scores


def two_scores(scores: Array, binary: str, how: str) -> Array:
    """Return scores of two classes from that of one."""
    if how == "LOGISTIC":
        return jnp.concatenate([jax.nn.sigmoid(-scores), jax.nn.sigmoid(scores)], 1)
    return jnp.concatenate([1 - scores if binary == "share" else -scores, scores], 1)


def linear_regressor(x: Array, coefficients: Array, intercepts: Array, *, post_transform: str = "NONE") -> Array:
    """Return x times coefficients plus intercepts."""
    return transformed(x.astype(coefficients.dtype) @ coefficients + intercepts, post_transform)


def linear_classifier(
    x: Array, coefficients: Array, intercepts: Array, labels: Array, *, post_transform: str = "NONE"
) -> Any:
    """Return the label of the highest score, and the scores; two classes may have a single score."""
    rows = x if x.ndim > 1 else x[None]
    scores = rows.astype(coefficients.dtype) @ coefficients + intercepts
    if scores.shape[1] > 1:
        return jnp.asarray(labels)[jnp.argmax(scores, 1)], transformed(scores, post_transform)
    label = jnp.where(scores[:, 0] > 0, labels[1], labels[0])
    return label, two_scores(scores, "share", post_transform)


def scaler(x: Array, offset: Array, scale: Array) -> Array:
    """Return (x - offset) scale."""
    return (x.astype(np.float32) - offset) * scale


def normalizer(x: Array, *, norm: str = "MAX") -> Array:
    """Divide rows by a norm, or by their largest element."""
    rows = x.astype(np.float32)
    if norm == "L1":
        length = jnp.sum(jnp.abs(rows), -1, keepdims=True)
    elif norm == "L2":
        length = jnp.sqrt(jnp.sum(jnp.square(rows), -1, keepdims=True))
    else:
        length = jnp.max(rows, -1, keepdims=True)
    return rows / jnp.where(length == 0, 1, length)


def imputer(x: Array, values: Array, *, replaced: float = 0.0) -> Array:
    """Put values in the place of what is missing."""
    missing = jnp.isnan(x) if np.isnan(replaced) else x == replaced
    return jnp.where(missing, values.astype(x.dtype), x)


def label_encoder_before_4(x: Array, keys: Array, values: Array, default: Array) -> Array:
    """Return the value of a key; before opset 4 what is no number is no key."""
    place = jnp.clip(jnp.searchsorted(keys, x), 0, keys.shape[0] - 1)
    return jnp.where(jnp.asarray(keys)[place] == x, jnp.asarray(values)[place], default)


def label_encoder(x: Array, keys: Array, values: Array, default: Array) -> Array:
    """Return the value of a key, or the default."""
    found = label_encoder_before_4(x, keys, values, default)
    if not jnp.issubdtype(keys.dtype, jnp.floating):
        return found
    last = jnp.isnan(x) & jnp.isnan(keys[-1])  # a key that is no number
    return jnp.where(last, jnp.asarray(values)[-1], found)


def one_hot_encoder(x: Array, categories: Array) -> Array:
    """Return 1 in the place of an element's category, else 0."""
    return (x[..., None].astype(categories.dtype) == categories).astype(np.float32)


def feature_vectorizer(*xs: Array, inputdimensions: tuple[int, ...]) -> Array:
    """Put features beside each other."""
    parts = [x.reshape(-1, x.shape[-1])[:, :n] for x, n in zip(xs, inputdimensions, strict=True)]
    return jnp.concatenate([part.astype(np.float32) for part in parts], 1)


def svm_regressor(
    x: Array, vectors: Array, weights: Array, rho: Array, *,
    kernel: str = "LINEAR", gamma: float = 0.0, shift: float = 0.0, degree: float = 0.0, one_class: int = 0,
) -> Array:  # fmt: skip
    """Return the weighted nearness of x to support vectors, plus rho."""
    rows = x.astype(np.float32)
    if kernel == "RBF":
        near = jnp.exp(-gamma * jnp.sum(jnp.square(rows[:, None] - vectors), -1))
    else:
        near = rows @ vectors.T
        if kernel == "POLY":
            near = (gamma * near + shift) ** degree
        elif kernel == "SIGMOID":
            near = jnp.tanh(gamma * near + shift)
    y = near @ weights[:, None] + rho
    return jnp.where(y > 0, 1, -1).astype(np.float32) if one_class else y


def leaves(x: Array, forest: Any, depth: int, mode: int, misses: bool) -> Array:
    """Return the leaf that each sample ends at in each tree (samples, trees)."""
    roots, features, thresholds, modes, on_true, on_false, missing_is_true = map(jnp.asarray, forest)
    rows = x.astype(thresholds.dtype)
    node = jnp.broadcast_to(roots, (rows.shape[0], roots.shape[0]))
    for _ in range(depth):
        value, limit = jnp.take_along_axis(rows, features[node], 1), thresholds[node]
        tests = (value <= limit, value < limit, value >= limit, value > limit, value == limit, value != limit)
        holds = tests[mode] if mode >= 0 else jnp.choose(modes[node], tests, mode="clip")
        if misses:
            holds = holds | (jnp.isnan(value) & missing_is_true[node])
        node = jnp.where(holds, on_true[node], on_false[node])
    return node


def tree_regressor(
    x: Array, roots: Array, features: Array, thresholds: Array, modes: Array, on_true: Array, on_false: Array,
    missing_is_true: Array, weights: Array, base: Array, *,
    depth: int, mode: int, misses: bool, aggregate: str = "SUM", post_transform: str = "NONE",
) -> Array:  # fmt: skip
    """Put the weights of the leaves together, over all trees."""
    forest = (roots, features, thresholds, modes, on_true, on_false, missing_is_true)
    found = jnp.asarray(weights)[leaves(x, forest, depth, mode, misses)]  # (samples, trees, targets)
    if aggregate in ("MIN", "MAX"):
        score = jnp.min(found, 1) if aggregate == "MIN" else jnp.max(found, 1)
        score = jnp.where(jnp.isinf(score), 0, score)
    else:
        score = jnp.sum(found, 1) / roots.shape[0] if aggregate == "AVERAGE" else jnp.sum(found, 1)
    return transformed(score.astype(weights.dtype) + base, post_transform)


def tree_classifier(
    x: Array, roots: Array, features: Array, thresholds: Array, modes: Array, on_true: Array, on_false: Array,
    missing_is_true: Array, weights: Array, base: Array, labels: Array, *,
    depth: int, mode: int, misses: bool, binary: str = "", threshold: float = 0.0, post_transform: str = "NONE",
) -> Any:  # fmt: skip
    """Return the label of the highest score, and the scores; two classes may have a single score."""
    forest = (roots, features, thresholds, modes, on_true, on_false, missing_is_true)
    scores = jnp.sum(jnp.asarray(weights)[leaves(x, forest, depth, mode, misses)], 1) + base
    scores = scores.astype(np.float32)
    if scores.shape[1] > 2:
        return jnp.asarray(labels)[jnp.argmax(scores, 1)], transformed(scores, post_transform)
    label = jnp.where(scores[:, -1] > threshold, labels[1], labels[0])
    made = two_scores(scores, binary, post_transform) if binary else transformed(scores, post_transform)
    return label, made
