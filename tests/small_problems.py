"""Small random problems with every feature a problem can have, and a slow, plain pricing of placements."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from ruled_problems import plain_rule_s, plain_rules

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.problem import Placement, Problem


def small_problem(
    seed: int,
    *,
    layers: int = 6,
    types: int = 3,
    floor: bool = True,
    units: int = 6,
    memory: bool = True,
    structure: bool = True,
) -> Problem:
    """Draw a problem: skip edges, tied weights, masks, limits, floors, fractions of layers; it may be infeasible."""
    rng = np.random.default_rng(seed)

    def sometimes(chance: float) -> bool:
        return bool(rng.random() < chance)

    speed = rng.uniform(0.5, 8.0, types)
    compute_s = rng.lognormal(0.0, 1.0, (layers, 1)) / speed * rng.uniform(0.7, 1.3, (layers, types))
    compute_s[rng.random((layers, types)) < (0.1 if structure else 0.0)] = np.inf
    compute_s[:, 0] = np.where(np.isinf(compute_s).all(axis=1), 1.0, compute_s[:, 0])
    training = sometimes(0.5)
    readers = [[p + 1] for p in range(layers - 1)]
    for p in range(layers - 2):
        if structure and sometimes(0.3):
            readers[p] = sorted({*readers[p], *rng.integers(p + 1, layers, 2).tolist()})
        elif structure and sometimes(0.2):
            readers[p] = [int(rng.integers(p + 1, layers))]
    uncuttable = np.zeros(layers + 1, np.bool_)
    if structure and sometimes(0.3):
        uncuttable[rng.integers(1, layers + 1)] = True
    tied = layers >= 2 and structure and sometimes(0.5)
    first, second = sorted(rng.choice(layers, 2, replace=False).tolist()) if tied else (0, 0)
    weights = rng.integers(1, 50, layers).astype(float) + 20
    min_stages = int(rng.integers(1, layers + 1)) if structure and sometimes(0.3) else 1
    batch = int(rng.integers(1, 65))
    own_compute, own_data = drawn_fractions(seed, layers, types) if seed % 3 == 1 else (None, None)
    return Problem(
        layer_names=tuple(f"layer{i}" for i in range(layers)),
        type_names=tuple(f"type{t}" for t in range(types)),
        type_kinds=tuple("cpu" if t == 0 else "gpu" for t in range(types)),
        layer_kinds=tuple("embedding" if sometimes(0.3) else "gemm" for _ in range(layers)),
        batch=batch,
        compute_s=compute_s,
        data_s=rng.uniform(0, 0.5, (layers, types)) * (rng.random((layers, 1)) < 0.4),
        sync_s=rng.uniform(0, 0.3, (layers, types)) if training else np.zeros((layers, types)),
        compute_parallel=rng.choice([0.0, 0.5, 0.8, 0.95, 1.0], types, p=[0.05, 0.15, 0.3, 0.4, 0.1]),
        data_parallel=rng.choice([0.5, 0.9, 1.0], types),
        edge_producer=np.arange(layers - 1),
        edge_bytes=np.round(rng.lognormal(2.0, 1.5, layers - 1)) * (rng.random(layers - 1) < 0.9),
        edge_readers=np.array(list(itertools.chain(*readers)), np.int64),
        edge_starts=np.cumsum([0] + [len(r) for r in readers]),
        uncuttable=uncuttable,
        seconds_per_byte=rng.uniform(0.001, 0.05, types),
        latency_s=rng.uniform(0, 0.05, types),
        price_per_hour=np.round(rng.uniform(0.2, 2.0, types) * speed, 2),
        max_units=rng.integers(1, units + 1, types),
        memory_bytes=rng.uniform(80, 500, types) if memory and sometimes(0.5) else np.full(types, 1e9),
        weight_bytes=weights,
        activation_bytes=rng.integers(1, 30, layers).astype(float),
        keeps_activations=training,
        tied_first=np.array([first] if tied else [], np.int64),
        tied_second=np.array([second] if tied else [], np.int64),
        tied_bytes=np.array([float(rng.integers(1, 20))] if tied else []),
        allowed=(rng.random((layers, types)) < 0.9) | ~np.full((layers, types), structure),
        min_throughput=float(rng.uniform(0.05, 0.6) * batch) if floor and sometimes(0.7) else 0.0,
        min_stages=min_stages,
        max_stages=int(rng.integers(min_stages, layers + 1)) if structure and sometimes(0.3) else 10**9,
        layer_compute_parallel=own_compute,
        layer_data_parallel=own_data,
    )


def drawn_fractions(seed: int, layers: int, types: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Draw [L, T] fractions of layers, of computation, of data movement or of both."""
    rng = np.random.default_rng([seed, layers, types])
    compute, data = rng.choice([0.0, 0.4, 0.8, 0.95, 1.0], (2, layers, types), p=[0.1, 0.15, 0.25, 0.3, 0.2])
    which = int(rng.integers(3))
    return (None if which == 1 else compute), (None if which == 2 else data)


def small_problems(max_layers: int = 8, max_types: int = 3, units: int = 6) -> st.SearchStrategy[Problem]:
    return st.builds(
        small_problem,
        st.integers(0, 2**32 - 1),
        layers=st.integers(1, max_layers),
        types=st.integers(1, max_types),
        floor=st.booleans(),
        units=st.just(units),
        memory=st.booleans(),
        structure=st.booleans(),
    )


def small_problems_for(objective: str, max_layers: int = 6, units: int = 4) -> st.SearchStrategy[Problem]:
    """Draw problems with an objective, half of them with a budget where it takes one."""

    def pose(problem: Problem, share: float) -> Problem:
        dearest = float(problem.price_per_hour @ problem.max_units)
        budget = share * dearest if objective in ("throughput", "latency") and share < 0.5 else math.inf
        if objective == "price" and not problem.min_throughput:  # which a request would refuse
            problem = replace(problem, min_throughput=share * 0.6 * problem.batch)
        if objective == "latency":
            problem = replace(problem, sync_s=np.zeros_like(problem.sync_s), keeps_activations=False)
        return replace(problem, objective=objective, budget_per_hour=budget)

    return st.builds(pose, small_problems(max_layers, units=units), st.floats(0.02, 1.0))


def linked(problem: Problem, seed: int) -> Problem:
    """Add links to the problem between some pairs of types, faster or slower than the types' own."""
    rng = np.random.default_rng(seed)
    types = problem.type_count
    per_byte = np.repeat(problem.seconds_per_byte[:, None], types, axis=1)
    latency_s = np.repeat(problem.latency_s[:, None], types, axis=1)
    for t, u in itertools.combinations_with_replacement(range(types), 2):
        if rng.random() < 0.6:
            per_byte[t, u] = per_byte[u, t] = rng.uniform(0.0005, 0.1)
            latency_s[t, u] = latency_s[u, t] = rng.uniform(0, 0.05)
    return replace(
        problem,
        seconds_per_byte=per_byte.min(axis=1),
        latency_s=latency_s.min(axis=1),
        link_seconds_per_byte=per_byte,
        link_latency_s=latency_s,
        ring_seconds_per_byte=np.maximum(per_byte, per_byte.T),
    )


def on_machines(problem: Problem, seed: int) -> Problem:
    """Put the units of the problem's types into machines of 1 to 4, which sum gradients if the problem did not."""
    rng = np.random.default_rng(seed)
    machines = Machines(
        rng.integers(1, 5, problem.type_count).astype(float), rng.uniform(0.05, 1.1, problem.type_count)
    )
    sync_s = problem.sync_s
    if problem.objective != "latency" and rng.random() < 0.5:
        sync_s = rng.uniform(0, 2.0, sync_s.shape) * (rng.random(sync_s.shape) < 0.7)
    return replace(problem, machines=machines, sync_s=sync_s)


def rented_whole(problem: Problem, seed: int) -> Problem:
    """Rent the units of some types of the problem as machines of 1 to 4, as many as its limits leave."""
    rng = np.random.default_rng(seed)
    together = rng.integers(1, 5, problem.type_count)
    together = np.where(together <= problem.max_units, together, 1)
    return replace(problem, rented_together=together, max_units=problem.max_units // together * together)


def with_shared_storage(problem: Problem, seed: int) -> Problem:
    """Add storage to the problem behind the replicas that some layers wait for."""
    rng = np.random.default_rng(seed)
    shape = problem.compute_s.shape
    return replace(problem, shared_s=rng.uniform(0, 1.0, shape) * (rng.random(shape) < 0.4))


def with_servers(problem: Problem, seed: int) -> Problem:
    """Put tables of some layers on servers."""
    chance = np.random.default_rng([seed, 7])
    return replace(
        problem,
        served_s=chance.uniform(0, 4, problem.layer_count) * (chance.random(problem.layer_count) < 0.6),
        server_price_per_hour=float(chance.uniform(0.05, 2.0)),
        least_servers=int(chance.integers(1, 5)),
    )


def with_rows(problem: Problem, seed: int) -> Problem:
    """Put tables of some layers on servers, with the parts of data movement that steps know apart."""
    chance = np.random.default_rng([seed, 11])
    directions = 2 if problem.keeps_activations else 1
    layers, types = problem.compute_s.shape
    has = chance.random(layers) < 0.6
    scale_s = float(problem.compute_s[np.isfinite(problem.compute_s)].mean())
    rows_s = scale_s * np.outer(has * chance.uniform(0, 2, layers), chance.uniform(0.5, 2, types))
    requests_s = scale_s * has * chance.uniform(0, 0.3, layers)
    shared_s = np.zeros((layers, types)) if problem.shared_s is None else problem.shared_s
    return replace(
        problem,
        data_s=problem.data_s + directions * (rows_s + requests_s[:, None]),
        shared_s=shared_s + directions * requests_s[:, None],
        served_s=directions * scale_s * has * chance.uniform(0, 4, layers),
        rows_s=rows_s,
        requests_s=requests_s,
        server_price_per_hour=float(problem.price_per_hour.mean() * chance.uniform(0.05, 2.0)),
        least_servers=int(chance.integers(1, 5)),
    )


def plain_served_value(problem: Problem, placement: Placement) -> float:
    """Price a placement with every number of servers that may be best, one at a time."""
    assert problem.served_s is not None
    whole_s, least = float(problem.served_s.sum()), problem.least_servers
    floor_s = problem.batch / problem.min_throughput if problem.min_throughput else math.inf
    alone = replace(problem, served_s=None)
    at_floor = max(least, math.ceil(whole_s / floor_s - 1e-9))
    if problem.objective == "max-load":
        return plain_value(alone, placement, 0.0, whole_s / at_floor)
    stages = list(itertools.pairwise((*placement.starts(), problem.layer_count)))
    runs = [math.isfinite(problem.compute_s[layer, t]) for layer, t in enumerate(placement.types)]
    times = [
        plain_time_s(problem, placement, i, j, k)
        for i, j in stages
        if all(runs)
        for k in range(1, int(problem.max_units[placement.types[i]]) + 1)
    ]
    counts = {least, *range(least, least + 30), *(math.ceil(whole_s / t) for t in times if 0 < t < math.inf)}
    return min(
        plain_value(alone, placement, n * problem.server_price_per_hour, whole_s / n) for n in counts if n >= least
    )


def plain_value(problem: Problem, placement: Placement, standing: float = 0.0, least_s: float = 0.0) -> float:
    """Price a placement by the formulas of ``cost/problem.py``, one number at a time; inf where infeasible.

    ``standing`` is paid by the hour whatever the replicas, and no batch takes less than ``least_s``.
    """
    starts = placement.starts()
    stages = [(i, j, placement.types[i]) for i, j in itertools.pairwise((*starts, problem.layer_count))]
    if not problem.min_stages <= len(stages) <= problem.max_stages:
        return math.inf
    times = []
    for i, j, t in stages:
        usable = all(problem.allowed[x, t] and math.isfinite(problem.compute_s[x, t]) for x in range(i, j))
        if not usable or (i > 0 and problem.uncuttable[i]) or plain_memory(problem, i, j) > problem.memory_bytes[t]:
            return math.inf
        most = 1 if problem.objective == "max-load" else problem.max_units[t]
        times.append([plain_time_s(problem, placement, i, j, k) for k in range(1, most + 1)])
    best = math.inf
    for batch_s in {least_s, *(time for per_units in times for time in per_units)} - {0.0}:
        if (
            batch_s < least_s
            or problem.batch / batch_s < problem.min_throughput * (1 - 1e-9)
            or any(min(row) > batch_s for row in times)
        ):
            continue
        units = [next(k for k, time in enumerate(row, 1) if time <= batch_s) for row in times]
        used = [0] * problem.type_count
        for (_, _, t), k in zip(stages, units, strict=True):
            used[t] += k
        price = standing + plain_price(problem, used)
        too_many = any(u > most for u, most in zip(used, problem.max_units, strict=True))
        if too_many or price > problem.budget_per_hour * (1 + 1e-9):
            continue
        actual_s = max(least_s, *(row[k - 1] for row, k in zip(times, units, strict=True)))
        if problem.objective == "cost":
            best = min(best, price / 3600 / (problem.batch / actual_s) * 1e6)
        elif problem.objective == "latency":
            best = min(best, sum(sum(plain_work_s(problem, placement, i, j)) for i, j, _ in stages))
        elif problem.objective == "price":
            best = min(best, price)
        else:
            best = min(best, actual_s)
    return best


def plain_price(problem: Problem, used: list[int]) -> float:
    """Return what units of every type cost an hour, whole machines where they are rented together."""
    together = [1] * problem.type_count if problem.rented_together is None else problem.rented_together.tolist()
    rented = [math.ceil(units / each) * each for units, each in zip(used, together, strict=True)]
    return float(sum(price * units for price, units in zip(problem.price_per_hour, rented, strict=True)))


def plain_time_s(problem: Problem, placement: Placement, i: int, j: int, k: int) -> float:
    t = placement.types[i]
    alpha = [_of(problem.layer_compute_parallel, problem.compute_parallel, x, t) for x in range(i, j)]
    beta = [_of(problem.layer_data_parallel, problem.data_parallel, x, t) for x in range(i, j)]
    compute = sum(problem.compute_s[x, t] * (1 - a + a / k) for x, a in zip(range(i, j), alpha, strict=True))
    data = sum(problem.data_s[x, t] * (1 - b + b / k) for x, b in zip(range(i, j), beta, strict=True))
    own = sum(problem.data_s[x, t] for x in range(i, j))
    traffic, crossing = plain_work_s(problem, placement, i, j)[1] - own, problem.data_parallel[t]
    data += traffic * (1 - crossing + crossing / k)
    sync = sum(problem.sync_s[x, t] for x in range(i, j)) * plain_share(problem, t, k)
    if problem.rules is not None:
        own_rules = plain_rules(problem, i, j)
        sync = min(
            (plain_rule_s(problem, rule, range(i, j), t, k) for rule in own_rules), default=math.inf if k > 1 else 0.0
        )
    shared = 0.0 if problem.shared_s is None else sum(problem.shared_s[x, t] for x in range(i, j))
    return max(compute, data + sync, shared)


def _of(of_layers: np.ndarray | None, of_types: np.ndarray, layer: int, t: int) -> float:
    return float(of_types[t] if of_layers is None else of_layers[layer, t])


def plain_share(problem: Problem, t: int, k: int) -> float:
    if problem.machines is None:
        return (k - 1) / k
    unit_count = int(problem.machines.units[t])
    inside, machines = min(k, unit_count), math.ceil(k / unit_count)
    return float(problem.machines.inner[t]) * (inside - 1) / inside + (machines - 1) / machines


def plain_work_s(problem: Problem, placement: Placement, i: int, j: int) -> tuple[float, float]:
    """Return computation and data movement of the stage of layers i .. j - 1 on one unit."""
    t = placement.types[i]
    compute = sum(problem.compute_s[x, t] for x in range(i, j))
    data = sum(problem.data_s[x, t] for x in range(i, j))
    if problem.link_seconds_per_byte is not None and problem.link_latency_s is not None:
        return compute, data + plain_links_s(problem, placement, i, j)
    received, sent = plain_bytes(problem, i, j)
    data += (received + sent) * problem.seconds_per_byte[t]
    return compute, data + problem.latency_s[t] * (int(received > 0) + int(sent > 0))


def plain_links_s(problem: Problem, placement: Placement, i: int, j: int) -> float:
    assert problem.link_seconds_per_byte is not None
    assert problem.link_latency_s is not None
    t, types, total = placement.types[i], placement.types, 0.0
    latencies = {"in": [0.0], "out": [0.0]}
    for e, producer in enumerate(problem.edge_producer):
        size = problem.edge_bytes[e]
        readers = problem.edge_readers[problem.edge_starts[e] : problem.edge_starts[e + 1]]
        if size > 0 and not i <= producer < j and any(i <= r < j for r in readers):
            total += size * problem.link_seconds_per_byte[t, types[producer]]
            latencies["in"].append(problem.link_latency_s[t, types[producer]])
        away = [types[r] for r in readers if r >= j]
        if size > 0 and i <= producer < j and away:
            total += size * max(problem.link_seconds_per_byte[t, u] for u in away)
            latencies["out"].append(max(problem.link_latency_s[t, u] for u in away))
    return total + max(latencies["in"]) + max(latencies["out"])


def plain_bytes(problem: Problem, i: int, j: int) -> tuple[float, float]:
    received = sent = 0.0
    for e, producer in enumerate(problem.edge_producer):
        readers = problem.edge_readers[problem.edge_starts[e] : problem.edge_starts[e + 1]]
        inside = i <= producer < j
        if not inside and any(i <= r < j for r in readers):
            received += problem.edge_bytes[e]
        if inside and any(r >= j for r in readers):
            sent += problem.edge_bytes[e]
    return received, sent


def plain_memory(problem: Problem, i: int, j: int) -> float:
    held = sum(problem.weight_bytes[i:j])
    for first, second, size in zip(problem.tied_first, problem.tied_second, problem.tied_bytes, strict=True):
        held -= size if i <= first < second < j else 0
    activations = problem.activation_bytes[i:j]
    return held + (sum(activations) if problem.keeps_activations else max(activations))


def plain_problem(compute_s: list[list[float]], price_per_hour: list[float], /, **changes: Any) -> Problem:
    """Return a chain without traffic: layers x types of seconds on one unit, all of it divided by replicas.

    A batch is 3,600 samples, so that a plan of 1 s a batch at 1 an hour costs 1e6 / 3600 / 3600 per million samples.
    """
    layers, types = len(compute_s), len(price_per_hour)
    return replace(
        Problem(
            layer_names=tuple(f"layer{i}" for i in range(layers)),
            type_names=("cpu", "gpu", "npu", "tpu")[:types],
            type_kinds=("cpu", "gpu", "npu", "gpu")[:types],
            layer_kinds=("gemm",) * layers,
            batch=3600,
            compute_s=np.array(compute_s, np.float64),
            data_s=np.zeros((layers, types)),
            sync_s=np.zeros((layers, types)),
            compute_parallel=np.ones(types),
            data_parallel=np.ones(types),
            edge_producer=np.arange(layers - 1),
            edge_bytes=np.zeros(layers - 1),
            edge_readers=np.arange(1, layers),
            edge_starts=np.arange(layers),
            uncuttable=np.zeros(layers + 1, np.bool_),
            seconds_per_byte=np.ones(types),
            latency_s=np.zeros(types),
            price_per_hour=np.array(price_per_hour),
            max_units=np.full(types, 100),
            memory_bytes=np.full(types, 1e9),
            weight_bytes=np.ones(layers),
            activation_bytes=np.zeros(layers),
            keeps_activations=False,
            tied_first=np.zeros(0, np.int64),
            tied_second=np.zeros(0, np.int64),
            tied_bytes=np.zeros(0),
            allowed=np.ones((layers, types), np.bool_),
        ),
        **changes,
    )


def letters(problem: Problem, placement: Placement) -> str:
    """Draw a placement: the first letter of every layer's type, and a bar where a stage begins."""
    marks = ["|" if p in placement.starts()[1:] else "" for p in range(problem.layer_count)]
    return "".join(mark + problem.type_names[t][0] for mark, t in zip(marks, placement.types, strict=True))
