"""What a policy may see of open problems beside the shipped one's features: links to all types, machines, stages.

``tools/train_on_open.py`` trains with them; what came of it is in docs/search.md.
"""

import numpy as np
import torch

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import crossing_bytes, problem_tables
from heterps_compile.passes.placement.learned.features import FEATURE_COUNT, layer_features
from heterps_compile.passes.placement.learned.policy import Policy, shipped_policy

OPEN_FEATURE_COUNT = FEATURE_COUNT + 4


def open_features(problem: Problem, throughput: float) -> np.ndarray:
    """Return the features [L, T, OPEN_FEATURE_COUNT] of a problem for a throughput in samples/s."""
    layers, types = problem.compute_s.shape
    tables, batch_s, price = problem_tables(problem), problem.batch / throughput, problem.price_per_hour
    units = np.maximum(tables.compute_s * problem.alpha, tables.data_s * problem.beta) / batch_s
    paid = np.where(tables.usable, price * units, np.inf)
    model = np.where(tables.usable.any(1), paid.min(1), 0.0).sum() + layers * 1e-12
    links, link_s = problem.link_seconds_per_byte, problem.seconds_per_byte
    if links is not None and types > 1:
        link_s = (links.sum(1) - links.diagonal()) / (types - 1)
    cut = np.sqrt(10 * crossing_bytes(problem)[:, None] * link_s * problem.data_parallel * price / batch_s / model)
    inside = np.zeros(types) if problem.machines is None else 1 - problem.machines.inner
    columns = np.minimum(cut[:-1], 4), np.minimum(cut[1:], 4), np.log(problem.min_stages) / 3, inside
    more = np.broadcast_arrays(*columns, np.zeros((layers, types)))[:-1]
    return np.concatenate([layer_features(problem, throughput), np.stack(more, axis=-1)], axis=-1).astype(np.float32)


def policy_of_more() -> Policy:
    """Return the shipped policy, which sees these features too and makes nothing of them yet."""
    policy, shipped = Policy(features=OPEN_FEATURE_COUNT), shipped_policy().state_dict()
    read = shipped["read.weight"]
    shipped["read.weight"] = torch.cat([read, torch.zeros(len(read), OPEN_FEATURE_COUNT - FEATURE_COUNT)], 1)
    policy.load_state_dict(shipped)
    return policy
