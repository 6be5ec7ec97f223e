"""Bounds that cost nothing: what every plan of a problem is worth at best, and how long a batch takes at most.

Not covered: bounds worth a search (``time_search.py``).
"""

import numpy as np

from heterps_compile.cost.evaluate import slowest_batch_s
from heterps_compile.cost.problem import Problem
from heterps_compile.cost.segments import problem_tables

GAP = 1e-9
"""Relative: what is closer to the best than rounding can tell counts as not better."""


def per_million_samples(problem: Problem, batch_price: float) -> float:
    """Turn the price of a batch, in price per hour times seconds, into the price of a million samples."""
    return batch_price / 3600 / problem.batch * 1e6


def batch_price(problem: Problem, value: float) -> float:
    """Turn the price of a million samples into that of a batch, in price per hour times seconds."""
    return value * (3600 * problem.batch / 1e6)


def trivial_bound(problem: Problem) -> float:
    """Return a bound on the objective that costs nothing, from computation alone.

    ``cost``: all layers' unit-seconds at the cheapest type (``cost/replicas.py``, rule 1). ``price``: the same in the
    time that the floor leaves. ``latency``: every layer where it is fastest. The others: the slowest layer with all the
    units it could have; and all units together, since k units do in a time tau no more than k tau of work, each paid at
    its price.
    """
    usable = problem_tables(problem).usable
    once_s = np.where(usable, problem.compute_s, np.inf)
    least_price = float(np.where(usable, problem.compute_s * problem.price_per_hour, np.inf).min(axis=1).sum())
    if problem.objective == "cost":
        return per_million_samples(problem, least_price)
    if problem.objective == "price":
        return least_price / slowest_batch_s(problem)
    if problem.objective == "latency":
        return float(once_s.min(axis=1).sum())
    affordable = np.minimum(problem.max_units, problem.budget_per_hour / np.maximum(problem.price_per_hour, 1e-300))
    units = np.ones(problem.type_count) if problem.objective == "max-load" else np.maximum(affordable, 1.0)
    least_s = once_s * (1 - problem.alpha + problem.alpha / units)
    money = min(problem.budget_per_hour, float(problem.price_per_hour @ problem.max_units))
    shared_s = least_price / money if money > 0 else 0.0
    bound = max(float(least_s.min(axis=1).max()), shared_s)
    return bound * (1 - GAP) if np.isfinite(bound) else 0.0


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
