"""A committed plan by the measure of today: which limit it breaks, and what its decisions are worth.

Left out: other decisions, which ``check.py`` searches for; all of its estimates (``today.py``).
"""

from dataclasses import replace

import numpy as np

from heterps_compile.cost.evaluate import FLOOR_TOLERANCE, Fault, PlacementDetail, detail
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.problem import Placement
from heterps_compile.cost.server_cost import UNITS_ALONE, Pricing, server_cost
from heterps_compile.passes.placement.steps.step_plans import simulated_s, value_of, with_units
from heterps_compile.passes.step_orders import steps_of
from heterps_compile.plan.idle_units import idle_of, units_of
from heterps_compile.plan.plan import MIXED, Plan
from heterps_compile.plan.served_tables import ParameterServers
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE
from heterps_compile.units import counted, format_bytes, format_money, format_rate

from .pose import PosedAgain
from .scheduled_today import as_scheduled, lacking_memory, scheduled_today
from .step_pricing import StepPricing

_BROKEN = {
    Fault.FORBIDDEN: "a layer stands on a device type that a pin, or what the type supports, forbids today",
    Fault.UNCUTTABLE: "a stage begins where the model cannot be cut any more",
    Fault.STAGE_COUNT: "the plan has fewer or more stages than were asked for",
}


def judge(posed: PosedAgain) -> tuple[str, float | None]:
    """Return why the plan cannot stay, or the value of its decisions today."""
    if posed.placement is None:
        return posed.misfit, None
    plan, pool = posed.plan, posed.draft.cluster
    priced = own_detail(posed, posed.placement)
    paid = sum(pool.device_type(stage.device).price_per_hour * stage.replicas for stage in plan.stages)
    paid += sum(idle.price_per_hour for idle in idle_of(units_of(plan.stages), pool.device_types))
    paid += servers_today(posed).price_per_hour
    scheduled = scheduled_today(posed, priced)
    lacking = "" if scheduled is None else lacking_memory(scheduled)
    if lacking and not priced.faults & Fault.MEMORY:
        return lacking, None
    priced = in_its_reading(posed, priced)
    priced = priced if scheduled is None else as_scheduled(posed, priced, scheduled)
    fault = _broken_limit(posed, priced, paid)
    if fault:
        return fault, None
    by_price = OBJECTIVES[posed.problem.objective].paid(paid, priced.throughput)
    return "", priced.value if by_price is None else by_price


def in_its_reading(posed: PosedAgain, priced: PlacementDetail) -> PlacementDetail:
    """Return the plan as it is priced in the steady state, with throughput and value of its step where that counts."""
    plan, problem, placement = posed.plan, posed.problem, posed.placement
    if placement is None or not plan.request.minimises_step:
        return priced
    of, units = steps_of(posed.draft), [stage.replicas for stage in plan.stages]
    [step] = with_units(of, placement, units, [plan.schedule.micro_batches])
    step_s = simulated_s(of, step, plan.schedule.name)
    value = value_of(replace(problem, min_throughput=0.0), priced.price_per_hour, step_s)
    return replace(priced, throughput=problem.batch / step_s, value=value)


def _broken_limit(posed: PosedAgain, priced: PlacementDetail, paid: float) -> str:
    """Return the first limit that the plan breaks today; "" where it keeps all of them."""
    plan, problem, currency = posed.plan, posed.problem, posed.draft.cluster.currency
    if priced.throughput < problem.min_throughput * (1 - FLOOR_TOLERANCE):
        floor = format_rate(problem.min_throughput)
        reached = format_rate(priced.throughput)
        reading = f"with {ONE_BATCH_ALONE}" if plan.request.minimises_step else f"in the {STEADY_STATE}"
        return f"the plan reaches {reached} {reading} today, and the floor is {floor}"
    if paid > problem.budget_per_hour * (1 + FLOOR_TOLERANCE):
        budget = format_money(problem.budget_per_hour)
        return f"the plan costs {format_money(paid)} {currency}/h today, and the budget is {budget}"
    for index, name in enumerate(problem.type_names):
        used = sum(stage.replicas for stage in plan.stages if stage.device == name)
        if used > problem.max_units[index]:
            return f"the plan uses {counted(used, 'unit')} of {name!r}, and the pool has {problem.max_units[index]}"
    for index, stage in enumerate(priced.stages):
        if priced.faults & Fault.MEMORY and stage.memory_bytes > problem.memory_bytes[stage.type]:
            has = format_bytes(problem.memory_bytes[stage.type])
            name = problem.type_names[stage.type]
            return f"stage {index} needs {format_bytes(stage.memory_bytes)} today, and {name!r} has {has}"
    if priced.faults & Fault.MEMORY:
        return "a stage has more replicas than its units have memory for, with what they hold to agree"
    return next((text for bit, text in _BROKEN.items() if priced.faults & bit), "")


def servers_today(posed: PosedAgain) -> ParameterServers:
    """Return the plan's parameter servers at today's price."""
    return posed.plan.parameter_servers.priced(posed.draft.cluster.parameter_server)


def pricing_of(posed: PosedAgain) -> Pricing:
    """Return how the plan and what stands beside it are priced: with servers where replicas agree through them."""
    draft, server = posed.draft, posed.draft.cluster.parameter_server
    if draft.request.minimises_step:
        of = steps_of(draft)
        return StepPricing(None, of, tuple(of.counts_near(posed.plan.schedule.micro_batches)))
    if not draft.request.sync_rules.uses_servers or server is None:
        return UNITS_ALONE
    return Pricing(server_cost(draft.layers, draft.costs, server, draft.request.sync_rules))


def own_detail(posed: PosedAgain, placement: Placement) -> PlacementDetail:
    """Return the plan's placement with its own replicas, and its own servers of tables, today."""
    replicas = np.array([stage.replicas for stage in posed.plan.stages], np.float64)
    tables = posed.plan.tables
    return detail(posed.problem, placement, replicas, servers=None if tables is None else tables.servers)


def detail_today(posed: PosedAgain, placement: Placement) -> PlacementDetail:
    """Return the plan as it is priced today, with its own replicas and servers; best ones where its own do not do."""
    pricing = pricing_of(posed)
    found = own_detail(posed, placement)
    if posed.draft.request.minimises_step:
        return in_its_reading(posed, found)
    if judge(posed)[1] is None:
        return pricing.detail(posed.problem, placement)
    if pricing.servers is None:
        return found
    return pricing.servers.added_to(posed.problem, found, posed.plan.parameter_servers.count)


def backend_name(plan: Plan) -> str:
    """Return what the option ``--backend`` was for a plan, or what stands for it."""
    if plan.backend != MIXED:
        return plan.backend
    by_device = {stage.device: stage.backend for stage in plan.stages}
    for stage in plan.stages:  # so that a device type the plan did not use yet has a backend too
        by_device.setdefault(stage.kind, stage.backend)
    return ",".join(f"{device}={backend}" for device, backend in by_device.items())
