"""The laws that a plan file keeps beyond its schema: what its parts may not say against each other.

Whatever follows from other numbers in the file is computed again and compared. The list is the verifier.

Left out: what needs the model or the pool itself (``review/``).
"""

from collections.abc import Callable, Iterator
from math import isclose

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.schedule.readings import busy_time, one_batch_alone, steady_state
from heterps_compile.units import counted

from .schema import PlanFile

_ROUNDING = 1e-9  # relative; a proven bound may lie this far above the value it was computed beside
_RECOMPUTED = 1e-6  # relative; how close a number stands to what it follows from, whatever the order of a sum

Fault = tuple[str, str]
"""A JSON path and what is wrong there."""


def contradictions(plan: PlanFile) -> Iterator[Fault]:
    """Yield what the parts of a file say against each other, in the order of the laws."""
    for law in LAWS:
        yield from law(plan)


def _layers_have_one_stage(plan: PlanFile) -> Iterator[Fault]:
    home: dict[str, int] = {}
    for index, stage in enumerate(plan.decisions.stages):
        for place, layer in enumerate(stage.layers):
            if layer.name in home:
                fault = f"layer {layer.name!r} is in stage {home[layer.name]} already"
                yield f"decisions.stages[{index}].layers[{place}]", fault
            home.setdefault(layer.name, index)


def _values_run_forward(plan: PlanFile) -> Iterator[Fault]:
    stages = plan.decisions.stages
    made = set(plan.model.inputs)
    for index, stage in enumerate(stages):
        for place, name in enumerate(stage.inputs):
            if name not in made:
                later = next((i for i in range(index, len(stages)) if name in stages[i].outputs), None)
                cycle = "" if later is None else f"; stage {later} gives it, so the stages form a cycle"
                yield f"decisions.stages[{index}].inputs[{place}]", f"no earlier stage gives the value {name!r}{cycle}"
        made.update(stage.outputs)


def _parts_have_the_same_stages(plan: PlanFile) -> Iterator[Fault]:
    count = len(plan.decisions.stages)
    if len(plan.estimates.stages) != count:
        yield "estimates.stages", f"{counted(len(plan.estimates.stages), 'estimate')} for {counted(count, 'stage')}"
    scoring = plan.decisions.scoring
    if scoring is not None and not scoring.refused and len(scoring.stages) != count:
        yield "decisions.scoring.stages", f"{counted(len(scoring.stages), 'stage')} for {counted(count, 'stage')}"
    if plan.artifacts and len(plan.artifacts) != count:
        yield "artifacts", f"artefacts of {counted(len(plan.artifacts), 'stage')} for {counted(count, 'stage')}"


def _micro_batches_divide_the_batch(plan: PlanFile) -> Iterator[Fault]:
    count = plan.decisions.schedule.micro_batches
    if plan.model.batch % count:
        yield "decisions.schedule.micro_batches", f"{count} micro-batches do not divide a batch of {plan.model.batch}"


def _devices_are_of_the_pool(plan: PlanFile) -> Iterator[Fault]:
    known = {device.name: device for device in plan.cluster.devices}
    for place, device in enumerate(plan.cluster.devices):
        if known[device.name] is not device:
            yield f"cluster.devices[{place}].name", f"device {device.name!r} stands there twice"
    if not known:  # a plan of version 1, which does not list them
        return
    names = ", ".join(map(repr, known))
    for index, stage in enumerate(plan.decisions.stages):
        if stage.device not in known:
            yield f"decisions.stages[{index}].device", f"unknown device {stage.device!r} (the pool has {names})"
        elif stage.kind != known[stage.device].kind:
            fault = f"device {stage.device!r} is of kind {known[stage.device].kind!r}, not {stage.kind!r}"
            yield f"decisions.stages[{index}].kind", fault
    for place, name in enumerate(plan.estimates.unused_devices):
        if name not in known:
            yield f"estimates.unused_devices[{place}]", f"unknown device {name!r} (the pool has {names})"


def _stages_take_no_more_units_than_there_are(plan: PlanFile) -> Iterator[Fault]:
    there = {device.name: device.max_units for device in plan.cluster.devices}
    taken = dict.fromkeys(there, 0)
    for index, stage in enumerate(plan.decisions.stages):
        if stage.device not in there:
            continue
        taken[stage.device] += stage.replicas
        if taken[stage.device] > there[stage.device]:
            fault = (
                f"with this stage's, {taken[stage.device]} units of {stage.device!r} are taken of {there[stage.device]}"
            )
            yield f"decisions.stages[{index}].replicas", fault


def _unused_devices_are_unused(plan: PlanFile) -> Iterator[Fault]:
    for place, device in enumerate(plan.estimates.unused_devices):
        users = [index for index, stage in enumerate(plan.decisions.stages) if stage.device == device]
        if users:
            yield f"estimates.unused_devices[{place}]", f"stage {users[0]} uses device {device!r}"


def _stages_cost_what_their_units_do(plan: PlanFile) -> Iterator[Fault]:
    prices = {device.name: device.price_per_hour for device in plan.cluster.devices}
    for index, (stage, estimate) in enumerate(zip(plan.decisions.stages, plan.estimates.stages, strict=False)):
        unit = prices.get(stage.device)
        if unit is not None and not _same(estimate.price_per_hour, stage.replicas * unit):
            units = counted(stage.replicas, "unit")
            fault = f"{estimate.price_per_hour!r} for {units} of {stage.device!r} at {unit!r} each"
            yield f"estimates.stages[{index}].price_per_hour", fault


def _the_other_plan_costs_what_its_units_do(plan: PlanFile) -> Iterator[Fault]:
    other, prices = plan.estimates.other_objective, {d.name: d.price_per_hour for d in plan.cluster.devices}
    if other is None:
        return
    where = "estimates.other_objective"
    expected = OBJECTIVES[plan.request.objective].other
    if other.objective != expected:
        yield f"{where}.objective", f"{other.objective!r}, and beside {plan.request.objective!r} it is {expected!r}"
    if not prices:  # a plan of version 1, which does not list them
        return
    if prices.keys() >= other.units.keys():
        paid = sum(count * prices[name] for name, count in other.units.items())
        if not _same(other.price_per_hour, paid):
            yield f"{where}.price_per_hour", f"{other.price_per_hour!r}, but its units cost {paid!r}"
    else:
        unknown = sorted(other.units.keys() - prices.keys())[0]
        yield f"{where}.units", f"unknown device {unknown!r} (the pool has {', '.join(map(repr, prices))})"


def _throughput_is_that_of_the_slowest_stage(plan: PlanFile) -> Iterator[Fault]:
    slowest_s = _slowest_s(plan)
    given = plan.estimates.throughput_samples_per_s
    if slowest_s > 0 and not _same(given, plan.model.batch / slowest_s):
        fault = f"{given!r}, but the slowest stage gives {plan.model.batch / slowest_s!r} samples/s"
        yield "estimates.throughput_samples_per_s", fault


def _readings_are_those_of_the_stages(plan: PlanFile) -> Iterator[Fault]:
    schedule = plan.decisions.schedule
    stages = plan.decisions.stages
    if len(plan.estimates.stages) != len(stages):
        return
    replicas = [stage.replicas for stage in stages]
    times_s = [max(stage.compute_s, stage.data_s) for stage in plan.estimates.stages]
    busy_s = sum(
        busy_time(schedule.micro_batches, stage.micro_batch_forward_s + stage.micro_batch_backward_s, count * time_s)
        for stage, count, time_s in zip(plan.estimates.stages, replicas, times_s, strict=True)
    )
    batch = plan.model.batch
    for name, given, computed in (
        ("steady_state", plan.estimates.steady_state, steady_state(batch, times_s, replicas)),
        (
            "one_batch_alone",
            plan.estimates.one_batch_alone,
            one_batch_alone(batch, busy_s, replicas, plan.estimates.schedule.step_s),
        ),
    ):
        for key, number in () if given is None else computed.to_json().items():
            told = getattr(given, key)
            if told is None or number is None:
                is_same = told is number
            else:
                is_same = isclose(told, number, rel_tol=_RECOMPUTED, abs_tol=1e-9)
            if not is_same:
                yield f"estimates.{name}.{key}", f"{told!r}, but the other estimates give {number!r}"


def _value_is_that_of_the_objective(plan: PlanFile) -> Iterator[Fault]:
    estimates = plan.estimates
    paid = sum(stage.price_per_hour for stage in estimates.stages) + estimates.parameter_servers_price_per_hour
    value = OBJECTIVES[plan.request.objective].paid(paid, estimates.throughput_samples_per_s)
    if value is None:
        if plan.request.objective not in ("throughput", "max-load"):
            return  # a latency does not follow from times with replicas
        value = _slowest_s(plan)
    if not _same(estimates.value, value):
        yield "estimates.value", f"{estimates.value!r}, but the other estimates give {value!r}"


def _bound_is_no_higher_than_the_value(plan: PlanFile) -> Iterator[Fault]:
    bound, value = plan.estimates.bound, plan.estimates.value
    if bound > value * (1 + _ROUNDING):
        yield "estimates.bound", f"a lower bound of {bound!r} lies above the value {value!r} that was reached"


def _slowest_s(plan: PlanFile) -> float:
    return max((max(stage.compute_s, stage.data_s) for stage in plan.estimates.stages), default=0.0)


def _same(first: float, second: float) -> bool:
    return isclose(first, second, rel_tol=_RECOMPUTED, abs_tol=1e-12)


LAWS: tuple[Callable[[PlanFile], Iterator[Fault]], ...] = (
    _layers_have_one_stage,
    _values_run_forward,
    _parts_have_the_same_stages,
    _micro_batches_divide_the_batch,
    _devices_are_of_the_pool,
    _stages_take_no_more_units_than_there_are,
    _unused_devices_are_unused,
    _stages_cost_what_their_units_do,
    _the_other_plan_costs_what_its_units_do,
    _throughput_is_that_of_the_slowest_stage,
    _readings_are_those_of_the_stages,
    _value_is_that_of_the_objective,
    _bound_is_no_higher_than_the_value,
)
