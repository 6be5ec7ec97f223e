"""Compare the placement methods on one model: what each finds, how far it is from the proven bound, how long it takes.

Left out: building stages; a comparison ends where the plan is known.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from heterps_compile.api import open_draft
from heterps_compile.cost.evaluate import detail
from heterps_compile.cost.problem import MethodResult, Placement, Problem, SearchResult
from heterps_compile.cost.provisioners import Provisioning, balanced_newton, closed_form, static_ps_ratio, static_ratio
from heterps_compile.errors import HeterpsError, InfeasibleError, MissingPackageError
from heterps_compile.passes.drafts import Posed
from heterps_compile.passes.pipeline import run_to
from heterps_compile.passes.place_layers import run_method
from heterps_compile.passes.placement.method import PlacementMethod
from heterps_compile.passes.placement.methods import METHODS, find_method
from heterps_compile.passes.placement.proof.certificate import certify
from heterps_compile.process_state import gradients_on
from heterps_compile.progress import OnProgress, Progress

from .comparison import Comparison, ProvisioningResult

_RATIOS = (2.0, 8.0, 32.0)  # CPU units per accelerator in StaRatio, training units per server core in StaPSRatio


@gradients_on()
def compare_methods(
    model: Any,
    example_inputs: tuple[Any, ...] = (),
    *,
    methods: Sequence[str] = tuple(METHODS),
    on_progress: OnProgress | None = None,
    **asked: Any,
) -> Comparison:
    """Run every method on a model's placement problem, with the same seed and time limit, and prove a bound.

    Args:
        model: As :func:`heterps_compile.compile` takes it.
        example_inputs: Of a PyTorch model.
        methods: Names of the methods to compare.
        on_progress: Called before every method.
        asked: Other arguments of :func:`heterps_compile.compile` that tell the model, the pool and the request;
            ``time_limit`` is in seconds, for each method and for the proof.

    Raises:
        UnknownNameError: for an unknown method.
        HeterpsError: where the model cannot be read; a method that finds no plan is a result, not an error.
    """
    searches = {name: _found(name) for name in methods}  # an unknown name is told before the long work
    draft = run_to(open_draft(model, example_inputs, **asked), Posed)
    problem, request = draft.problem, draft.request
    results: list[MethodResult] = []
    found: list[SearchResult] = []
    for done, (name, search) in enumerate(searches.items()):
        if on_progress is not None:
            on_progress(Progress(name, done, len(searches)))
        result: SearchResult | HeterpsError
        try:
            if isinstance(search, MissingPackageError):
                raise search
            result = run_method(search, problem, seed=request.seed, time_limit_s=request.time_limit_s)
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
        best = certify(problem, best, request.time_limit_s)
    server = draft.cluster.parameter_server if request.mode == "training" else None
    return comparison_of(draft, results, best, None if server is None else server.price_per_hour)


def _found(name: str) -> PlacementMethod | MissingPackageError:
    """Return a method, or why it cannot run here."""
    try:
        return find_method(name)
    except MissingPackageError as error:
        return error


def comparison_of(
    draft: Posed,
    results: Sequence[MethodResult],
    best: SearchResult | None,
    server_price_per_hour: float | None = None,
) -> Comparison:
    """Return the comparison of methods that have run.

    Args:
        draft: With the problem that they have solved.
        results: What each method found by itself.
        best: The best plan that any of them or the proof found, certified; None where there is none.
        server_price_per_hour: Of a parameter server's core, for the paper's StaPSRatio; None where there is none.
    """
    problem = draft.problem
    return Comparison(
        model=draft.graph.name,
        layer_count=problem.layer_count,
        type_count=problem.type_count,
        bound=-math.inf if best is None else best.bound,
        currency=draft.cluster.currency,
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
