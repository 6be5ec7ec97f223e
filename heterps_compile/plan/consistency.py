"""The laws that a plan file keeps beyond its schema: what its parts may not say against each other.

Whatever follows from other numbers in the file is computed again and compared. The list is the verifier.

Left out: what needs the model or the pool itself (``review/``).
"""

from collections.abc import Callable, Iterator
from math import isclose

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.plan.request import ALONE
from heterps_compile.schedule.readings import busy_time, one_batch_alone, steady_state
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.units import counted

from .idle_units import idle_of, units_of
from .plan import MIXED
from .pool_record import devices_of
from .schema import PlanFile, StageEstimate

_ROUNDING = 1e-9  # relative; a proven bound may lie this far above the value it was computed beside
_RECOMPUTED = 1e-6  # relative; how close a number stands to what it follows from, whatever the order of a sum

Fault = tuple[str, str]
"""A JSON path and what is wrong there."""


def contradictions(plan: PlanFile) -> Iterator[Fault]:
    """Yield what the parts of a file say against each other, in the order of the laws."""
    for law in LAWS:
        yield from law(plan)


def _rules_have_estimates(plan: PlanFile) -> Iterator[Fault]:
    for index, (stage, estimate) in enumerate(zip(plan.decisions.stages, plan.estimates.stages, strict=False)):
        if (stage.sync is None) != (estimate.sync is None):
            there, lacking = ("estimates", "decisions") if stage.sync is None else ("decisions", "estimates")
            yield f"{lacking}.stages[{index}].sync", f"left out, and {there}.stages[{index}].sync is not"
        if stage.sync is None or estimate.sync is None:
            continue
        rule = parse_rule(stage.sync)
        if plan.request.mode != "training" or stage.replicas < 2:
            fault = f"{stage.sync!r} for {counted(stage.replicas, 'replica')} in {plan.request.mode}"
            yield f"decisions.stages[{index}].sync", f"{fault}; there is nothing to agree on"
        if estimate.sync.exactness != rule.exactness:
            fault = f"{estimate.sync.exactness!r}, and {stage.sync} is {rule.exactness!r}"
            yield f"estimates.stages[{index}].sync.exactness", fault


def _defaults_are_of_dimensions(plan: PlanFile) -> Iterator[Fault]:
    numbers = plan.model.bindings
    for name, default in plan.model.defaults.items():
        if name not in numbers:
            yield f"model.defaults[{name!r}]", "no dimension of model.bindings"
        elif default.same_as and numbers.get(default.same_as) != numbers[name]:
            fault = f"{default.same_as!r}, and the dimensions have {numbers.get(default.same_as)} and {numbers[name]}"
            yield f"model.defaults[{name!r}].same_as", fault
        elif default.is_batch and numbers[name] != plan.model.batch:
            yield (
                f"model.defaults[{name!r}].is_batch",
                f"true at {numbers[name]}, and model.batch is {plan.model.batch}",
            )


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


def _values_are_taken(plan: PlanFile) -> Iterator[Fault]:
    stages, wanted = plan.decisions.stages, set(plan.model.outputs)
    given = set(plan.model.inputs).union(*(stage.outputs for stage in stages))
    for place, name in enumerate(plan.model.outputs):
        if name not in given:
            yield f"model.outputs[{place}]", f"no stage gives the value {name!r}"
    faults = []
    for index, stage in reversed(list(enumerate(stages))):
        for place, name in enumerate(stage.outputs):
            if name not in wanted:
                fault = f"no later stage takes the value {name!r}, which is no output of the model"
                faults.append((f"decisions.stages[{index}].outputs[{place}]", fault))
        wanted.update(stage.inputs)
    yield from reversed(faults)


def _stages_have_the_backend_of_the_plan(plan: PlanFile) -> Iterator[Fault]:
    decided = plan.decisions
    for index, stage in enumerate(decided.stages):
        if decided.backend not in (MIXED, stage.backend):
            fault = f"{stage.backend!r}, and decisions.backend is {decided.backend!r}"
            yield f"decisions.stages[{index}].backend", fault


def _parts_have_the_same_stages(plan: PlanFile) -> Iterator[Fault]:
    count = len(plan.decisions.stages)
    if len(plan.estimates.stages) != count:
        yield "estimates.stages", f"{counted(len(plan.estimates.stages), 'estimate')} for {counted(count, 'stage')}"
    scoring = plan.decisions.scoring
    if scoring is not None and not scoring.refused and len(scoring.stages) != count:
        yield "decisions.scoring.stages", f"{counted(len(scoring.stages), 'stage')} for {counted(count, 'stage')}"
    if plan.artifacts and len(plan.artifacts) != count:
        yield "artifacts", f"artefacts of {counted(len(plan.artifacts), 'stage')} for {counted(count, 'stage')}"


def _tables_are_of_stages_and_their_servers_counted(plan: PlanFile) -> Iterator[Fault]:
    decided, estimated = plan.decisions.tables, plan.estimates.tables
    if (decided is None) != (estimated is None):
        there, lacking = ("estimates", "decisions") if decided is None else ("decisions", "estimates")
        yield f"{lacking}.tables", f"null, and {there}.tables is not"
    if decided is None or estimated is None:
        return
    if decided.servers > plan.decisions.parameter_servers:
        of_all = plan.decisions.parameter_servers
        yield "decisions.tables.servers", f"{decided.servers}, of {counted(of_all, 'parameter server')} in all"
    if estimated.price_per_hour > plan.estimates.parameter_servers_price_per_hour * (1 + _ROUNDING):
        of_all_price = plan.estimates.parameter_servers_price_per_hour
        yield "estimates.tables.price_per_hour", f"{estimated.price_per_hour!r}, of {of_all_price!r} for all servers"
    known = {layer.name for stage in plan.decisions.stages for layer in stage.layers}
    for place, name in enumerate(decided.layers):
        if name not in known:
            yield f"decisions.tables.layers[{place}]", f"no stage has the layer {name!r}"


def _micro_batches_divide_the_batch(plan: PlanFile) -> Iterator[Fault]:
    count = plan.decisions.schedule.micro_batches
    if plan.model.batch % count:
        yield "decisions.schedule.micro_batches", f"{count} micro-batches do not divide a batch of {plan.model.batch}"


def _types_of_stages_add_up(plan: PlanFile) -> Iterator[Fault]:
    for index, (stage, estimate) in enumerate(zip(plan.decisions.stages, plan.estimates.stages, strict=False)):
        if len(stage.mixed) != len(estimate.mixed):
            yield f"estimates.stages[{index}].mixed", f"{len(estimate.mixed)} entries for {len(stage.mixed)} types"
            continue
        if not stage.mixed:
            continue
        where = f"decisions.stages[{index}].mixed"
        names, first = [each.device for each in stage.mixed], stage.mixed[0]
        if len(names) < 2 or len(set(names)) < len(names):
            yield where, f"{names!r}; a stage of several device types names at least two, each once"
        if (first.device, first.kind) != (stage.device, stage.kind):
            yield where, f"begins with {first.device!r} ({first.kind}), and the stage has {stage.device!r}"
        if (total := sum(each.replicas for each in stage.mixed)) != stage.replicas:
            yield where, f"{total} replicas, and the stage has {stage.replicas}"
        shares = sum(each.share for each in estimate.mixed)
        if not _same(shares, 1.0):
            yield f"estimates.stages[{index}].mixed", f"parts of a batch that add up to {shares!r}, not 1"
        for name in ("compute_s", "data_s"):
            longest_s = max(getattr(each, name) for each in estimate.mixed)
            if not _same(getattr(estimate, name), longest_s):
                fault = f"{getattr(estimate, name)!r}, and the longest of its types is {longest_s!r}"
                yield f"estimates.stages[{index}].{name}", fault


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
        for at, each in enumerate(stage.mixed):
            if each.device not in known:
                fault = f"unknown device {each.device!r} (the pool has {names})"
                yield f"decisions.stages[{index}].mixed[{at}].device", fault
            elif each.kind != known[each.device].kind:
                fault = f"device {each.device!r} is of kind {known[each.device].kind!r}, not {each.kind!r}"
                yield f"decisions.stages[{index}].mixed[{at}].kind", fault
    for place, name in enumerate(plan.estimates.unused_devices):
        if name not in known:
            yield f"estimates.unused_devices[{place}]", f"unknown device {name!r} (the pool has {names})"


def _stages_take_no_more_units_than_there_are(plan: PlanFile) -> Iterator[Fault]:
    there = {device.name: device.max_units for device in plan.cluster.devices}
    taken = dict.fromkeys(there, 0)
    for index, stage in enumerate(plan.decisions.stages):
        for device, count in stage.units:
            if device not in there:
                continue
            taken[device] += count
            if taken[device] > there[device]:
                fault = f"with this stage's, {taken[device]} units of {device!r} are taken of {there[device]}"
                yield f"decisions.stages[{index}].replicas", fault


def _unused_devices_are_unused(plan: PlanFile) -> Iterator[Fault]:
    for place, device in enumerate(plan.estimates.unused_devices):
        users = [index for index, stage in enumerate(plan.decisions.stages) if device in dict(stage.units)]
        if users:
            yield f"estimates.unused_devices[{place}]", f"stage {users[0]} uses device {device!r}"


def _stages_cost_what_their_units_do(plan: PlanFile) -> Iterator[Fault]:
    prices = {device.name: device.price_per_hour for device in plan.cluster.devices}
    for index, (stage, estimate) in enumerate(zip(plan.decisions.stages, plan.estimates.stages, strict=False)):
        if not prices.keys() >= dict(stage.units).keys():
            continue
        if not _same(estimate.price_per_hour, sum(count * prices[device] for device, count in stage.units)):
            units = " and ".join(
                f"{counted(count, 'unit')} of {device!r} at {prices[device]!r} each" for device, count in stage.units
            )
            yield f"estimates.stages[{index}].price_per_hour", f"{estimate.price_per_hour!r} for {units}"
        for at, (each, (device, count)) in enumerate(zip(estimate.mixed, stage.units, strict=False)):
            if not _same(each.price_per_hour, count * prices[device]):
                fault = f"{each.price_per_hour!r} for {counted(count, 'unit')} of {device!r} at {prices[device]!r} each"
                yield f"estimates.stages[{index}].mixed[{at}].price_per_hour", fault


def _idle_units_are_the_rest_of_machines(plan: PlanFile) -> Iterator[Fault]:
    idle = {each.device: each.count for each in idle_of(units_of(plan.decisions.stages), devices_of(plan.cluster))}
    if plan.estimates.idle_units != idle:
        yield "estimates.idle_units", f"{plan.estimates.idle_units}, but the machines of the pool leave {idle}"


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
        paid += sum(idle.price_per_hour for idle in idle_of(other.units, devices_of(plan.cluster)))
        paid += other.servers_price_per_hour
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
        busy_time(
            schedule.micro_batches,
            stage.micro_batch_forward_s + stage.micro_batch_backward_s,
            count * time_s,
            count * (_behind_s(stage) + sum(_rows_s(stage, count, schedule.micro_batches))),
        )
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


def _rows_are_of_tables_and_in_the_step(plan: PlanFile) -> Iterator[Fault]:
    count, step_s = plan.decisions.schedule.micro_batches, plan.estimates.schedule.step_s
    is_trained = plan.request.mode == "training"
    for index, (stage, estimate) in enumerate(zip(plan.decisions.stages, plan.estimates.stages, strict=False)):
        if estimate.rows is None:
            continue
        where = f"estimates.stages[{index}].rows"
        looking = set() if plan.decisions.tables is None else set(plan.decisions.tables.layers)
        if not looking & {layer.name for layer in stage.layers}:
            yield where, "no layer of the stage looks rows up on servers"
        if estimate.rows.is_pushed != is_trained:
            yield f"{where}.is_pushed", f"{estimate.rows.is_pushed}, and the request's mode is {plan.request.mode!r}"
        if estimate.rows.overlapped_s > estimate.data_s * (1 + _RECOMPUTED):
            of_all = f"{estimate.rows.overlapped_s!r}, a part of the {estimate.data_s!r} s of the stage's data_s"
            yield f"{where}.overlapped_s", of_all
        pull_s, push_s = _rows_s(estimate, stage.replicas, count)
        if not pull_s + push_s <= step_s * (1 + _RECOMPUTED):
            yield where, f"a pull of {pull_s!r} s and a push of {push_s!r} s, in a step of {step_s!r} s"


def _behind_s(stage: StageEstimate) -> float:
    """Return what a step has of a stage behind its last backward, but for rows on servers."""
    return stage.sync_s + stage.sync_hops_s + stage.handling_s + stage.update_s


def _rows_s(stage: StageEstimate, replicas: int, micro_batches: int) -> tuple[float, float]:
    """Return what a step has of a stage's rows on servers: pull and push."""
    if stage.rows is None:
        return 0.0, 0.0
    rows = ServedRows(**stage.rows.model_dump())
    return rows.pull_s(replicas, micro_batches), rows.push_s


def _value_is_that_of_the_objective(plan: PlanFile) -> Iterator[Fault]:
    estimates = plan.estimates
    idle = idle_of(units_of(plan.decisions.stages), devices_of(plan.cluster))
    paid = sum(stage.price_per_hour for stage in estimates.stages) + sum(each.price_per_hour for each in idle)
    paid += estimates.parameter_servers_price_per_hour
    is_step, step_s = plan.request.reading == ALONE, estimates.schedule.step_s
    rate = plan.model.batch / step_s if is_step and step_s > 0 else estimates.throughput_samples_per_s
    value = OBJECTIVES[plan.request.objective].paid(paid, rate)
    if value is None:
        if plan.request.objective not in ("throughput", "max-load"):
            return  # a latency does not follow from times with replicas
        value = step_s if is_step else _slowest_s(plan)
    if not _same(estimates.value, value):
        yield "estimates.value", f"{estimates.value!r}, but the other estimates give {value!r}"


def _bound_is_no_higher_than_the_value(plan: PlanFile) -> Iterator[Fault]:
    bound, value = plan.estimates.bound, plan.estimates.value
    if bound > value * (1 + _ROUNDING):
        yield "estimates.bound", f"a lower bound of {bound!r} lies above the value {value!r} that was reached"
    if plan.estimates.bound_of_all_orders > bound * (1 + _ROUNDING):
        for_all = plan.estimates.bound_of_all_orders
        yield "estimates.bound_of_all_orders", f"{for_all!r} for all orders lies above the {bound!r} for one of them"
    if plan.estimates.steady_bound > bound * (1 + _ROUNDING):
        steady = plan.estimates.steady_bound
        yield "estimates.steady_bound", f"{steady!r}, a part of the bound, lies above the {bound!r} of all of it"


def _slowest_s(plan: PlanFile) -> float:
    return max((max(stage.compute_s, stage.data_s) for stage in plan.estimates.stages), default=0.0)


def _same(first: float, second: float) -> bool:
    return isclose(first, second, rel_tol=_RECOMPUTED, abs_tol=1e-12)


LAWS: tuple[Callable[[PlanFile], Iterator[Fault]], ...] = (
    _defaults_are_of_dimensions,
    _layers_have_one_stage,
    _values_run_forward,
    _values_are_taken,
    _stages_have_the_backend_of_the_plan,
    _parts_have_the_same_stages,
    _rules_have_estimates,
    _tables_are_of_stages_and_their_servers_counted,
    _micro_batches_divide_the_batch,
    _types_of_stages_add_up,
    _devices_are_of_the_pool,
    _stages_take_no_more_units_than_there_are,
    _unused_devices_are_unused,
    _stages_cost_what_their_units_do,
    _idle_units_are_the_rest_of_machines,
    _the_other_plan_costs_what_its_units_do,
    _throughput_is_that_of_the_slowest_stage,
    _rows_are_of_tables_and_in_the_step,
    _readings_are_those_of_the_stages,
    _value_is_that_of_the_objective,
    _bound_is_no_higher_than_the_value,
)
