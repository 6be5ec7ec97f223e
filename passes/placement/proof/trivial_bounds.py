"""Bounds that cost nothing: what every plan of a problem costs at least, and how long a batch takes at most.

Left out: bounds worth a search (``range_search.py``).
"""

import numpy as np

from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import problem_tables


def trivial_bound(problem: Problem) -> float:
    """Bound the value for nothing: all layers' unit-seconds at the cheapest type (``cost/replicas.py``, rule 1)."""
    tables = problem_tables(problem)
    return float(np.where(tables.usable, tables.compute_s * problem.price_per_hour, np.inf).min(axis=1).sum())


def longest_s(problem: Problem) -> float:
    """Return a time no batch of any plan takes."""
    tables = problem_tables(problem)
    layers_s = tables.compute_s.max(axis=1) + tables.data_s.max(axis=1) + problem.sync_s.max(axis=1)
    if problem.shared_s is not None:
        layers_s += problem.shared_s.max(axis=1)
    moved_bytes = 2 * tables.read_bytes.sum()
    links = (problem.link_seconds_per_byte, problem.link_latency_s)
    slowest, latest_s = (
        (own if own_of_pairs is None else own_of_pairs).max()
        for own, own_of_pairs in zip((problem.seconds_per_byte, problem.latency_s), links, strict=True)
    )
    return float(layers_s.sum() + moved_bytes * slowest + 2 * problem.layer_count * latest_s) * 1.01 + 1e-9
