"""A plan's decisions with today's estimates: what a committed plan is worth on the model and pool at hand.

Layers, device types, replicas and schedule stay as they are; times, memory, prices and throughput are computed as a
compilation would. For a plan of this very model and pool they come out as its file has them.

Left out: other decisions, which ``check.py`` searches for; artefacts, which belong to the plan as it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from heterps_compile.api import choose_backend
from heterps_compile.backends.contract import place_backend
from heterps_compile.cluster.devices import Cluster
from heterps_compile.cost.evaluate import PlacementDetail, detail
from heterps_compile.cost.memory import stage_memory
from heterps_compile.cost.problem import SearchResult
from heterps_compile.make_plan import make_plan
from heterps_compile.passes.choose_schedule import ChooseSchedule
from heterps_compile.passes.contract import refine, run_passes
from heterps_compile.passes.emit_stages import EmitStages
from heterps_compile.plan.plan import ParameterServers, Plan, PlannedStage

from .check import backend_name, judge
from .pose import PosedAgain


@dataclass(frozen=True, slots=True)
class PlanToday:
    """A plan with today's estimates.

    Attributes:
        plan: Its decisions, and what they are estimated to do today.
        operations: How many kernels every layer starts, by its name of today.
        pool: The pool of today.
    """

    plan: Plan
    operations: Mapping[str, int]
    pool: Cluster


def plan_today(posed: PosedAgain, *, allow_stale: bool = False) -> PlanToday:
    """Compute a plan's estimates again.

    Args:
        posed: The plan and the problem of today.
        allow_stale: Take a plan that was made from another model, pool or profile.

    Raises:
        StalePlanError: where the plan does not fit the model, or was made from something else.
    """
    plan = posed.plan
    placement = posed.fitting(allow_stale=allow_stale)
    replicas = np.array([stage.replicas for stage in plan.stages], np.float64)
    priced = detail(posed.problem, placement, replicas)
    broken, value = judge(posed)
    if value is None:  # broken: the search gives such a plan no value
        value = max(stage.time_s for stage in priced.stages)
    # A bound is proven for one problem; where that is another one today, none is known.
    bound = 0.0 if any(name != "weights" for name in posed.stale) else min(plan.bound, value)
    search = SearchResult(placement, value, bound, plan.method, plan.request.seed, plan.evaluations, 0.0)
    search = replace(search, found_by=plan.found_by)
    draft = refine(
        posed.draft, search=search, stages=_stages(posed, priced), parameter_servers=_parameter_servers(posed)
    )
    backend = place_backend(choose_backend(draft.graph, backend_name(plan)), draft.stages or ())
    schedule = ChooseSchedule(plan.schedule.name, plan.schedule.micro_batches)
    draft = run_passes(draft, [schedule, EmitStages(lambda _graph, _partition, _stages: ())])
    made = make_plan(draft, backend)
    notes = (f"the plan does not hold any more: {broken}",) if broken else ()
    assert draft.layers is not None  # noqa: S101 - the problem was posed from them; this tells the type checker
    assert draft.costs is not None  # noqa: S101
    operations = {layer.name: cost.operations for layer, cost in zip(draft.layers.layers, draft.costs, strict=True)}
    return PlanToday(replace(made, notes=(*made.notes, *notes)), operations, draft.cluster)


def _stages(posed: PosedAgain, priced: PlacementDetail) -> tuple[PlannedStage, ...]:
    """Return the plan's stages with today's times, memory and prices."""
    draft, training = posed.draft, posed.plan.request.mode == "training"
    assert draft.layers is not None  # noqa: S101 - the problem was posed from them; this tells the type checker
    assert draft.costs is not None  # noqa: S101
    devices = [draft.cluster.device_type(stage.device) for stage in posed.plan.stages]
    return tuple(
        replace(
            stage,
            kind=device.kind,
            compute_s=found.compute_s,
            data_s=found.data_s,
            received_bytes=round(found.received_bytes),
            sent_bytes=round(found.sent_bytes),
            memory=stage_memory(draft.layers, draft.costs, found.first_layer, found.end_layer, training=training),
            price_per_hour=device.price_per_hour * stage.replicas,
        )
        for stage, found, device in zip(posed.stages(), priced.stages, devices, strict=True)
    )


def _parameter_servers(posed: PosedAgain) -> ParameterServers:
    count, server = posed.plan.parameter_servers.count, posed.draft.cluster.parameter_server
    return ParameterServers(count, count * server.price_per_hour if server is not None else 0.0)
