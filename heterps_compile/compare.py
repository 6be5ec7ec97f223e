"""Compare the placement methods on one model: what each finds, how far it is from the proven bound, how long it takes.

Left out: building stages; a comparison ends where the plan is known.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heterps_compile.api import Progress, read_model
from heterps_compile.cluster.load import load_cluster
from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.measured import ProfileSpec, read_measurements
from heterps_compile.cost.problem import Placement, Problem, SearchResult
from heterps_compile.cost.provisioners import Provisioning, balanced_newton, closed_form, static_ps_ratio, static_ratio
from heterps_compile.errors import HeterpsError, InfeasibleError
from heterps_compile.passes.drafts import Draft, Posed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_layers import run_method
from heterps_compile.passes.placement.methods import METHODS, find_method
from heterps_compile.passes.placement.proof.certificate import certify
from heterps_compile.plan.comparison import Comparison, MethodResult, ProvisioningResult
from heterps_compile.plan.request import DEFAULT_CLUSTER, make_request
from heterps_compile.process_state import gradients_on

_RATIOS = (2.0, 8.0, 32.0)  # CPU units per accelerator in StaRatio, training units per server core in StaPSRatio


def compare_methods(
    model: Any,
    example_inputs: tuple[Any, ...] = (),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    cluster: str | Path = DEFAULT_CLUSTER,
    objective: str = "cost",
    min_throughput: float = 0.0,
    budget: float | str | None = None,
    batch: int | None = None,
    shapes: Mapping[str, int] | None = None,
    mode: str = "inference",
    methods: Sequence[str] = tuple(METHODS),
    profile: ProfileSpec | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Run every method on a model's placement problem.

    Arguments are those of :func:`heterps_compile.api.compile`, and ``methods``, the names of the methods to compare;
    ``time_limit`` is in seconds, for each of them and for the proof.

    Raises:
        UnknownNameError: for an unknown method.
        HeterpsError: where the model cannot be read; a method that finds no plan is a result, not an error.
    """
    for name in methods:
        find_method(name)  # an unknown name is told before the long work
    pool = load_cluster(cluster)
    request = make_request(
        pool.currency, objective=objective, min_throughput=min_throughput, budget=budget, mode=mode, seed=seed
    )
    measurements = None if profile is None else read_measurements(pool, profile)
    graph = read_model(model, example_inputs, example_kwargs, batch=batch, shapes=shapes or {}, dynamic_shapes=None)
    draft = run_to(Draft(graph=graph, cluster=pool, request=request, measurements=measurements), Posed)
    problem = draft.problem
    server = pool.parameter_server if mode == "training" else None
    return compare_on(
        problem,
        methods,
        graph.name,
        pool.currency,
        server_price_per_hour=None if server is None else server.price_per_hour,
        seed=seed,
        time_limit=time_limit,
        on_progress=on_progress,
    )


@gradients_on()
def compare_on(
    problem: Problem,
    methods: Sequence[str],
    model: str,
    currency: str,
    *,
    server_price_per_hour: float | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    on_progress: Progress | None = None,
) -> Comparison:
    """Run methods on a problem.

    Args:
        problem: What to place.
        methods: Their names.
        model: Name of the model.
        currency: Of prices.
        server_price_per_hour: Of a parameter server's core, for the paper's StaPSRatio; None where there is none.
        seed: Of every search.
        time_limit: In seconds, for each of them and for the proof.
        on_progress: Called before every method.

    Raises:
        UnknownNameError: for an unknown method.
    """
    searches = {name: find_method(name) for name in methods}
    results: list[MethodResult] = []
    found: list[SearchResult] = []
    for done, (name, search) in enumerate(searches.items()):
        if on_progress is not None:
            on_progress(name, done, len(searches))
        result: SearchResult | HeterpsError
        try:
            result = run_method(search, problem, seed=seed, time_limit_s=time_limit)
        except HeterpsError as error:
            result = error
        if isinstance(result, HeterpsError):
            results.append(MethodResult(name, math.inf, 0, 0.0, str(result)))
            continue
        results.append(MethodResult(name, result.value, result.evaluations, result.search_s))
        found.append(result)
    best = min(found, key=lambda result: result.value, default=None)
    if best is not None:
        best = replace(best, bound=min(best.value, max(result.bound for result in found)))
        best = certify(problem, best, time_limit)
    return comparison_of(problem, model, currency, results, best, server_price_per_hour=server_price_per_hour)


def comparison_of(
    problem: Problem,
    model: str,
    currency: str,
    results: Sequence[MethodResult],
    best: SearchResult | None,
    *,
    server_price_per_hour: float | None = None,
) -> Comparison:
    """Return the comparison of methods that have run.

    Args:
        problem: What was placed.
        model: Name of the model.
        currency: Of prices.
        results: What each method found by itself.
        best: The best plan that any of them or the proof found, certified; None where there is none.
        server_price_per_hour: As in :func:`compare_on`.
    """
    return Comparison(
        model=model,
        layer_count=problem.layer_count,
        type_count=problem.type_count,
        bound=-math.inf if best is None else best.bound,
        currency=currency,
        objective=problem.objective,
        batch=problem.batch,
        results=tuple(results),
        provisionings=() if best is None else compare_provisionings(problem, best.placement, server_price_per_hour),
    )


def compare_provisionings(
    problem: Problem, placement: Placement, server_price_per_hour: float | None = None
) -> tuple[ProvisioningResult, ...]:
    """Provision one placement by every rule of the paper; nothing where there is no floor to provision for."""
    if problem.objective != "cost" or problem.min_throughput <= 0:
        return ()
    exact = detail(problem, placement)
    rows = [ProvisioningResult("exact", exact.value, exact.price_per_hour, exact.throughput)]
    rules: list[tuple[str, Callable[[], Provisioning]]] = [
        ("closed form", lambda: closed_form(problem, placement)),
        ("newton", lambda: balanced_newton(problem, placement)),
        *((f"StaRatio 1:{ratio:g}", partial(static_ratio, problem, placement, ratio)) for ratio in _RATIOS),
    ]
    if server_price_per_hour is not None:
        rules += [
            (f"StaPSRatio 1:{ratio:g}", partial(static_ps_ratio, problem, placement, 1 / ratio, server_price_per_hour))
            for ratio in _RATIOS
        ]
    for name, rule in rules:
        try:
            found = rule()
        except InfeasibleError as error:
            rows.append(ProvisioningResult(name, math.inf, math.inf, 0.0, str(error)))
        else:
            rows.append(
                ProvisioningResult(name, found.price_per_million_samples, found.price_per_hour, found.throughput)
            )
    return tuple(rows)
