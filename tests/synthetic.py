"""Draw problems like real ones from a seed, for tests, benchmarks and the training of the search policy.

A pool is drawn first: CPU cores that are cheap and read data well, GPUs and NPUs whose speed grows a little faster
or slower than their price, each with an efficiency of its own for every kind of layer. Then a model from one of
five families, and a floor: nearly the best throughput that a drawn budget buys with one or two stages. Prices and
speeds cross, so that the best plan usually mixes types.

Every problem is feasible by construction: that best plan of one or two stages is its *witness*.

Left out: graphs (a problem has arrays only), sharing of weights over more than two layers, prices that are free.
"""

from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.cost.all_reduce import Machines
from heterps_compile.cost.problem import Floats, Ints, Problem
from heterps_compile.cost.segments import flatten_stages

FAMILIES = ("ctr", "conv", "transformer", "mixed", "plain")
"""Kinds of model. ``plain`` has independent random times per layer and type, without any device behind them."""

_KINDS = ("embedding", "gemm", "conv", "attention", "elementwise", "norm")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What to draw.

    Attributes:
        seed: Decides everything that the other fields leave open.
        layers: L.
        types: T.
        branched: Values are read by several layers, some far away; some positions cannot be cut.
        limited: Types have few units, so that stages compete for them.
        tight_memory: Most types hold only a part of the model.
        family: One of :data:`FAMILIES`, or "" for one drawn by the seed.
        machines: Accelerators stand in machines of 2 to 8, which talk faster inside.
        own_fractions: Layers have parallel fractions of their own, lower on average than their types'.
    """

    seed: int
    layers: int
    types: int
    branched: bool = False
    limited: bool = False
    tight_memory: bool = False
    family: str = ""
    machines: bool = False
    own_fractions: bool = False


@dataclass(frozen=True, slots=True)
class _Pool:
    kinds: tuple[str, ...]
    price: Floats
    flops_per_s: Floats
    memory_bytes_per_s: Floats
    network_bytes_per_s: Floats
    input_bytes_per_s: Floats
    memory_bytes: Floats
    launch_s: Floats
    compute_parallel: Floats
    data_parallel: Floats
    affinity: Floats  # [T, kinds], share of the peak that a kind of layer reaches


@dataclass(frozen=True, slots=True)
class _Model:
    kinds: tuple[str, ...]
    flops: Floats  # [L], per sample
    moved_bytes: Floats  # [L], per sample, besides the weights
    read_bytes: Floats  # [L], per sample, rows and inputs that come from outside
    output_bytes: Floats  # [L], per sample
    weight_bytes: Floats  # [L]


def synthetic_problem(recipe: Recipe) -> Problem:
    """Draw one problem; the same recipe gives the same arrays. O(layers * types)."""
    rng = np.random.default_rng([recipe.seed, recipe.layers, recipe.types])
    family = recipe.family or FAMILIES[int(rng.integers(len(FAMILIES)))]
    pool = _draw_pool(rng, recipe.types)
    model = _draw_model(rng, family, recipe.layers)
    batch = int(2 ** rng.integers(6, 13))
    training = bool(rng.random() < 0.4)
    passes = 3.0 if training else 1.0

    kind_index = np.array([_KINDS.index(kind) for kind in model.kinds])
    reached = pool.flops_per_s[None, :] * pool.affinity.T[kind_index]
    traffic = (batch * model.moved_bytes + model.weight_bytes * (kind_index > 0))[:, None]
    roofline = np.maximum(batch * model.flops[:, None] / reached, traffic / pool.memory_bytes_per_s)
    compute_s = passes * (roofline + pool.launch_s)
    data_s = (2.0 if training else 1.0) * batch * model.read_bytes[:, None] / pool.input_bytes_per_s
    if family == "plain":
        compute_s, data_s = _plain_times(rng, compute_s, pool)
    replicated = np.where(kind_index > 0, model.weight_bytes, 0.05 * model.weight_bytes)
    sync_s = 2.0 * replicated[:, None] / pool.network_bytes_per_s * (1.0 if training else 0.0)

    producer, sizes, readers, starts = _draw_edges(rng, model.output_bytes * batch, recipe)
    weight_bytes = model.weight_bytes * (4.0 if training else 1.0)
    activation_bytes = batch * model.output_bytes
    held = weight_bytes.sum() + (activation_bytes.sum() if training else activation_bytes.max())
    memory_bytes = np.maximum(pool.memory_bytes, 1.1 * held)
    if recipe.tight_memory:
        least = 1.1 * (weight_bytes + activation_bytes).max()
        memory_bytes = np.maximum(held * rng.uniform(0.15, 0.8, recipe.types), least)
        memory_bytes[rng.integers(recipe.types)] = 1.1 * held  # one type holds it all, so that something is feasible
    uncuttable = np.zeros(recipe.layers + 1, dtype=bool)
    tied_first, tied_second = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    if recipe.branched:
        uncuttable[1:-1] = rng.random(recipe.layers - 1) < 0.1
        if recipe.layers > 4 and rng.random() < 0.3:
            tied_first, tied_second = np.array([0]), np.array([recipe.layers - 1])
    problem = Problem(
        layer_names=tuple(f"{kind}_{i}" for i, kind in enumerate(model.kinds)),
        type_names=tuple(f"{kind}_{t}" for t, kind in enumerate(pool.kinds)),
        type_kinds=pool.kinds,
        layer_kinds=model.kinds,
        batch=batch,
        compute_s=compute_s,
        data_s=data_s,
        sync_s=sync_s,
        compute_parallel=pool.compute_parallel,
        data_parallel=pool.data_parallel,
        edge_producer=producer,
        edge_bytes=np.ceil(sizes) * (2.0 if training else 1.0),
        edge_readers=readers,
        edge_starts=starts,
        uncuttable=uncuttable,
        seconds_per_byte=1.0 / pool.network_bytes_per_s,
        latency_s=np.full(recipe.types, 2e-5),
        price_per_hour=pool.price,
        max_units=np.full(recipe.types, 100_000),
        memory_bytes=memory_bytes,
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        keeps_activations=training,
        tied_first=tied_first,
        tied_second=tied_second,
        tied_bytes=np.minimum(weight_bytes[tied_first], weight_bytes[tied_second]),
        allowed=np.ones((recipe.layers, recipe.types), dtype=bool),
    )
    if recipe.machines:
        problem = replace(problem, machines=_draw_machines(np.random.default_rng([recipe.seed, recipe.types]), pool))
    if recipe.own_fractions:
        own = np.random.default_rng([recipe.seed, recipe.layers, recipe.types, 1])
        alpha, beta = own.beta(8, 0.5, (2, recipe.layers, recipe.types))
        alpha = pool.compute_parallel * alpha
        problem = replace(problem, layer_compute_parallel=alpha, layer_data_parallel=beta)
    units, floor = _draw_floor(rng, problem)
    if recipe.limited:
        spare = np.maximum(1, units.max() // 2)
        limits = np.where(units > 0, units + rng.integers(0, 3, recipe.types), rng.integers(1, spare + 1, recipe.types))
        problem = replace(problem, max_units=limits.astype(np.int64))
    return replace(problem, min_throughput=floor)


def _draw_pool(rng: np.random.Generator, count: int) -> _Pool:
    """Draw device types: at least one CPU and one accelerator, prices near the trend of their speed."""
    cpus = int(rng.integers(1, max(2, count // 3) + 1)) if count > 1 else 1
    cpus = min(cpus, max(1, count - 1))
    is_cpu = np.arange(count) < cpus
    is_npu = ~is_cpu & (rng.random(count) < 0.15)
    speed = np.where(is_cpu, 5e10 * 2 ** rng.uniform(-1, 1, count), 5e12 * 2 ** rng.uniform(0, 4, count))
    trend = np.where(is_cpu, 0.04 * speed / 5e10, 0.5 * (speed / 5e12) ** rng.uniform(0.8, 1.1))
    price = trend * np.exp(rng.normal(0, 0.3, count))
    bytes_per_flop = np.where(is_cpu, 0.2, np.where(is_npu, 0.01, 0.06)) * np.exp(rng.normal(0, 0.4, count))
    network = np.where(is_cpu, 2e8, 2e9) * np.exp(rng.normal(0, 0.7, count))
    affinity = np.clip(rng.beta(4, 4, (count, len(_KINDS))), 0.05, 1.0)
    affinity[~is_cpu, _KINDS.index("embedding")] *= 0.3
    kinds = tuple("cpu" if cpu else "npu" if npu else "gpu" for cpu, npu in zip(is_cpu, is_npu, strict=True))
    return _Pool(
        kinds=kinds,
        price=np.asarray(np.round(price, 4), np.float64),
        flops_per_s=speed,
        memory_bytes_per_s=speed * bytes_per_flop,
        network_bytes_per_s=network,
        input_bytes_per_s=network * np.where(is_cpu, 4.0, 0.5) * np.exp(rng.normal(0, 0.5, count)),
        memory_bytes=np.asarray(np.where(is_cpu, 8e9, 16e9) * 2.0 ** rng.integers(0, 3, count), np.float64),
        launch_s=np.where(is_cpu, 1e-6, 1e-5),
        compute_parallel=np.where(is_cpu, 1 - 0.02 * rng.random(count), 1 - 0.07 * rng.random(count)),
        data_parallel=np.where(is_cpu, 1 - 0.02 * rng.random(count), 1 - 0.07 * rng.random(count)),
        affinity=affinity,
    )


def _draw_machines(rng: np.random.Generator, pool: _Pool) -> Machines:
    """Draw how many units a machine has, and its card's bandwidth over that inside."""
    is_cpu = np.array([kind == "cpu" for kind in pool.kinds])
    units = np.where(is_cpu, 1.0, 2.0 ** rng.integers(1, 4, len(is_cpu)))
    return Machines(units, np.where(is_cpu, 1.0, 10 ** rng.uniform(-2, -0.3, len(is_cpu))))


def _draw_model(rng: np.random.Generator, family: str, count: int) -> _Model:
    """Draw layers of a family, per sample, with noise of some ten percent on everything."""
    index = np.arange(count)
    depth = index / max(1, count - 1)
    if family == "ctr":
        tables = max(1, int(count * rng.uniform(0.15, 0.6)))
        kind = np.where(index < tables, 0, 1)
        width = 1024.0 * 2 ** rng.uniform(-1, 2) * np.maximum(0.05, 1 - depth)
        flops = np.where(kind == 0, 64.0, 2 * width**2)
        weights = np.where(kind == 0, 10 ** rng.uniform(6, 9.5, count), 4 * width**2)
        output = np.where(kind == 0, 4.0 * 16 * 2 ** rng.integers(0, 4, count), 4 * width)
        read = np.where(kind == 0, 4 * output, 0.0)
    elif family == "conv":
        kind = np.where(index % 5 == 4, 5, 2)
        side = 112 / 2 ** np.floor(depth * 4.99)
        channels = 64 * 2 ** np.floor(depth * 4.99)
        output = 4 * side**2 * channels / 4
        flops = np.where(kind == 2, 2 * 9 * side**2 * channels**2 / 16, output)
        weights = np.where(kind == 2, 4 * 9 * channels**2 / 4, 4 * channels)
        read = np.where(index == 0, 4 * 3 * 224.0**2, 0.0)
    elif family == "transformer":
        width, length = np.asarray(256 * 2.0 ** rng.integers(0, 4)), 2.0 ** rng.integers(5, 10)
        kind = np.where(index == 0, 0, np.choose(index % 4, [1, 3, 1, 1]))
        works = np.array([length, 6 * length * width**2, 0, 4 * length**2 * width, 0, 0], np.float64)
        flops = works[kind]
        weights = np.where(kind == 0, 4 * 30_000 * width, np.where(kind == 1, 12.0 * width**2, 0.0))
        output = np.full(count, 4 * length * width) * np.where(index % 4 == 2, 4.0, 1.0)
        read = np.where(index == 0, 8 * length + 4 * length * width, 0.0)
    else:
        kind = rng.integers(0, len(_KINDS), count)
        if rng.random() < 0.5:  # runs of one kind
            kind = np.repeat(kind, rng.integers(1, 8, count))[:count]
        flops = 10 ** rng.uniform(5, 8, count) * np.choose(kind, [0.001, 1, 3, 1, 0.01, 0.01])
        weights = 10 ** rng.uniform(4, 7, count) * np.where(kind == 0, 100, 1)
        output = 10 ** rng.uniform(2, 5, count)
        read = np.where(kind == 0, 4 * output, 0.0)
    noise = np.exp(rng.normal(0, 0.25, (4, count)))
    output = output * noise[1]
    return _Model(
        kinds=tuple(_KINDS[k] for k in kind),
        flops=flops * noise[0],
        moved_bytes=3 * output,
        read_bytes=read * noise[2],
        output_bytes=output,
        weight_bytes=weights * noise[3],
    )


def _plain_times(rng: np.random.Generator, like: Floats, pool: _Pool) -> tuple[Floats, Floats]:
    """Draw times that share nothing but the price of speed: a dearer type is faster, on average."""
    layers, types = like.shape
    work_s = 10 ** rng.uniform(-3, -1) * np.exp(rng.normal(0, 1.0, (2, layers, 1)))
    noise = np.exp(rng.normal(0, rng.uniform(0.1, 0.8), (2, layers, types)))
    compute_s, data_s = work_s * noise * 0.1 / pool.price
    return compute_s, data_s * rng.uniform(0.05, 1.0)


def _draw_edges(rng: np.random.Generator, size_bytes: Floats, recipe: Recipe) -> tuple[Ints, Floats, Ints, Ints]:
    """Draw the values between layers: a chain, and with branches further readers and layers that start afresh."""
    count = len(size_bytes)
    readers: list[set[int]] = [{p + 1} for p in range(count - 1)]
    if recipe.branched:
        for p in range(count - 2):
            if rng.random() < 0.25:
                reach = min(count - 1, p + 1 + int(rng.geometric(min(1.0, 4 / count))))
                readers[p].add(reach)
            elif rng.random() < 0.15:  # a side branch: the next layer does not read this one
                readers[p] = {int(rng.integers(p + 2, min(count, p + 7)))}
    flat = [reader for group in readers for reader in sorted(group)]
    starts = np.cumsum([0, *(len(group) for group in readers)])
    return (
        np.arange(count - 1),
        size_bytes[:-1].copy(),
        np.array(flat, dtype=np.int64),
        starts.astype(np.int64),
    )


def _draw_floor(rng: np.random.Generator, problem: Problem) -> tuple[Floats, float]:
    """Draw a budget, and ask for nearly the best throughput it buys among plans of one or two stages.

    Returns:
        The units [T] that the best of them takes, which is the witness that the problem is feasible; the floor.
    """
    layers, types = problem.layer_count, problem.type_count
    price = problem.price_per_hour
    dear = float(np.median(price[price >= np.median(price)]))
    budget = dear * float(np.exp(rng.uniform(np.log(2), np.log(40))))
    places = np.append(np.flatnonzero(~problem.uncuttable[1:-1]) + 1, layers)  # cut at L: one stage
    places = places[np.unique(np.linspace(0, len(places) - 1, 8).astype(np.int64))]
    first, second, place = (grid.ravel() for grid in np.meshgrid(np.arange(types), np.arange(types), places))
    stages = flatten_stages(
        problem, np.where(np.arange(layers) < place[:, None], first[:, None], second[:, None]), None
    )
    fits = np.logical_and.reduceat(stages.memory_bytes <= problem.memory_bytes[stages.type], stages.offsets)
    demand = stages.work.demand()
    slow_s = np.maximum.reduceat(demand.once_s, stages.offsets)
    fast_s = np.zeros(len(place))
    for _ in range(40):  # bisection on the time of a batch, all plans at once
        batch_s = (slow_s + fast_s) / 2
        units = demand.units(batch_s[stages.placement])
        within = np.add.reduceat(price[stages.type] * units, stages.offsets) <= budget
        slow_s, fast_s = np.where(within, batch_s, slow_s), np.where(within, fast_s, batch_s)
    best = int(np.argmin(np.where(fits, slow_s, np.inf)))
    found_s = float(slow_s[best]) / 0.99
    units = demand.units(np.full(len(stages.type), found_s))
    mine = stages.placement == best
    return np.asarray(np.bincount(stages.type[mine], units[mine], types), np.float64), problem.batch / found_s
