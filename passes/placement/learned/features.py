"""What the policy sees of a problem: numbers for every pair of layer and device type.

The features are ratios, mostly logarithms of ratios, against a throughput the plan is to reach: how many units and how
much money a layer takes on a type, against the cheapest type, the whole model and the price of one unit. So they
mean the same for every model, pool, batch and currency, and one set of weights serves any number of layers and types.

Left out: the edges one by one (a layer sees the bytes alive before and after it), ties between layers.
"""

import numpy as np
from numpy.typing import NDArray

from heterps_compile.cost.problem import Floats, Problem
from heterps_compile.cost.segments import crossing_bytes, problem_tables

FEATURE_COUNT = 31

_EMBEDDING_KINDS = ("embedding",)
_DENSE_KINDS = ("conv", "gemm", "matmul", "attention", "recurrent")
_FEW = 1e-12


def layer_features(problem: Problem, throughput: float) -> NDArray[np.float32]:
    """Return the features [L, T, FEATURE_COUNT] of a problem for a throughput in samples/s, each of order one."""
    layers, types = problem.compute_s.shape
    tables = problem_tables(problem)
    batch_s = problem.batch / throughput
    price, usable, alpha, beta = problem.price_per_hour, tables.usable, problem.alpha, problem.beta
    compute, data = tables.compute_s / batch_s, tables.data_s / batch_s  # units busy with it
    units = np.maximum(compute * alpha, data * beta)
    paid = np.where(usable, price * units, np.inf)
    least = np.where(usable.any(1), paid.min(1), 0.0)[:, None] + _FEW
    model = least.sum()  # price of the whole model, every layer where it is cheapest
    whole = units.sum(0)  # units of the whole model on one type
    alive = crossing_bytes(problem)
    cut = alive[:, None] * problem.seconds_per_byte * problem.data_parallel * price / batch_s / model
    alive_ratio = _log(alive / max(float(alive[1:-1].mean()) if layers > 1 else 1.0, _FEW), -8, 8) / 3
    activations = problem.activation_bytes
    held = activations.sum() if problem.keeps_activations else activations.max()
    kinds = np.array(problem.layer_kinds)
    position = np.arange(layers) / max(1, layers - 1)
    columns = (
        _log(paid / least, 0, 8) / 2,
        _log(price * compute * alpha / least, -8, 8) / 3,
        _log(price * data * beta / least, -8, 8) / 3,
        _log(least * layers / model, -8, 8) / 3,
        _log(compute, -8, 8) / 4,
        _log(data, -8, 8) / 4,
        np.minimum(5 * compute * (1 - alpha), 2),
        np.minimum(5 * data * (1 - beta), 2),
        _log(price / model, -8, 8) / 3,
        _log(price * whole / model, -8, 8) / 3,
        _log(whole, -8, 8) / 4,
        np.minimum((compute * (1 - alpha)).sum(0), 2),
        np.minimum((data * (1 - beta)).sum(0), 2),
        np.minimum(np.sqrt(10 * cut[:-1]), 4),
        np.minimum(np.sqrt(10 * cut[1:]), 4),
        alive_ratio[:-1, None],
        alive_ratio[1:, None],
        position[:, None],
        np.cumsum(least)[:, None] / model,
        np.log(layers) / 4,
        np.log(types) / 2,
        np.minimum((problem.weight_bytes + activations)[:, None] / problem.memory_bytes, 4),
        np.minimum((problem.weight_bytes.sum() + held) / problem.memory_bytes, 4),
        _log(problem.max_units / np.maximum(whole, 1e-9), -4, 4) / 2,
        _log(problem.max_units * price / model, -4, 4) / 2,
        usable,
        np.isin(kinds, _EMBEDDING_KINDS)[:, None],
        np.isin(kinds, _DENSE_KINDS)[:, None],
        problem.uncuttable[:-1, None],
        np.cumsum(units, 0) / np.maximum(whole, _FEW),
        _log(5 * problem.sync_s / batch_s, -8, 3) / 3,
    )
    full = np.broadcast_arrays(*columns, np.zeros((layers, types)))[:-1]
    return np.stack(full, axis=-1).astype(np.float32)


def _log(ratio: Floats, low: float, high: float) -> Floats:
    return np.clip(np.log(np.clip(ratio, _FEW, 1 / _FEW)), low, high)
