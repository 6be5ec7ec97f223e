"""The laws that a plan file keeps beyond its schema: what its parts may not say against each other.

Whatever follows from other numbers in the file is computed again and compared. The list is the verifier.

Left out: what needs the model or the pool itself (``review/``).
"""

from collections.abc import Callable, Iterator, Sequence
from math import isclose

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.served_rows import ServedRows
from heterps_compile.plan.request import ALONE
from heterps_compile.schedule.micro_batch import micro_batch_of
from heterps_compile.schedule.order import MOST_ACTIONS
from heterps_compile.schedule.readings import busy_time, one_batch_alone, steady_state
from heterps_compile.schedule.zero_bubble import backward_factor
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.units import counted

from .idle_units import idle_of, units_of
from .plan import MIXED
from .pool_record import devices_of
from .schema import ModelPart, PlanFile, ScoringPart, ScoringStage, StageDecision, StageEstimate, TypeDecision

_ROUNDING = 1e-9  # relative; a proven bound may lie this far above the value it was computed beside
_RECOMPUTED = 1e-6  # relative; how close a number stands to what it follows from, whatever the order of a sum

Fault = tuple[str, str]
"""A JSON path and what is wrong there."""


def _stages(plan: PlanFile) -> Iterator[tuple[int, StageDecision, StageEstimate]]:
    """Number the stages, each with its decision and its estimate."""
    pairs = zip(plan.decisions.stages, plan.estimates.stages, strict=False)
    return ((index, *pair) for index, pair in enumerate(pairs))


def contradictions(plan: PlanFile) -> Iterator[Fault]:
    """Yield what the parts of a file say against each other, in the order of the laws."""
    for law in LAWS:
        yield from law(plan)


def _rules_have_estimates(plan: PlanFile) -> Iterator[Fault]:
    for index, stage, estimate in _stages(plan):
        if stage.sync is None or estimate.sync is None:
            yield from _one_is_null(stage.sync, estimate.sync, f"stages[{index}].sync")
            continue
        rule = parse_rule(stage.sync)
        if plan.request.mode != "training" or stage.replicas < 2:
            fault = f"{stage.sync!r} for {counted(stage.replicas, 'replica')} in {plan.request.mode}"
            yield f"decisions.stages[{index}].sync", f"{fault}; there is nothing to agree on"
        if estimate.sync.exactness != rule.exactness:
            fault = f"{estimate.sync.exactness!r}, and {stage.sync} is {rule.exactness!r}"
            yield f"estimates.stages[{index}].sync.exactness", fault


def _one_is_null(decided: object, estimated: object, where: str) -> Iterator[Fault]:
    lacking, there = ("decisions", "estimates") if decided is None else ("estimates", "decisions")
    if decided is not estimated:
        yield f"{lacking}.{where}", f"null, and {there}.{where} is not"


def _defaults_are_of_dimensions(plan: PlanFile) -> Iterator[Fault]:
    numbers = plan.model.bindings
    for name, default in plan.model.defaults.items():
        if name not in numbers:
            yield f"model.defaults[{name!r}]", "no dimension of model.bindings"
        elif default.same_as and numbers.get(default.same_as) != numbers[name]:
            fault = f"{default.same_as!r}, and the dimensions have {numbers.get(default.same_as)} and {numbers[name]}"
            yield f"model.defaults[{name!r}].same_as", fault


def _layers_have_one_stage(plan: PlanFile) -> Iterator[Fault]:
    home: dict[str, int] = {}
    for index, stage in enumerate(plan.decisions.stages):
        for place, layer in enumerate(stage.layers):
            if layer.name in home:
                fault = f"layer {layer.name!r} is in stage {home[layer.name]} already"
                yield f"decisions.stages[{index}].layers[{place}]", fault
            home.setdefault(layer.name, index)


def _flows(
    plan: PlanFile,
) -> Iterator[tuple[str, str, ModelPart | ScoringPart, Sequence[StageDecision | ScoringStage]]]:
    """Iterate over the model and its scoring: JSON paths of its values and of its stages, the values, the stages."""
    yield "model", "decisions", plan.model, plan.decisions.stages
    scoring = plan.decisions.scoring
    if scoring is not None and not scoring.refused:
        yield "decisions.scoring", "decisions.scoring", scoring, scoring.stages


def _values_run_forward(plan: PlanFile) -> Iterator[Fault]:
    for _, where, model, stages in _flows(plan):
        made = set(model.inputs)
        for index, stage in enumerate(stages):
            for place, name in enumerate(stage.inputs):
                if name not in made:
                    later = next((i for i in range(index, len(stages)) if name in stages[i].outputs), None)
                    cycle = "" if later is None else f"; stage {later} gives it, so the stages form a cycle"
                    yield (
                        f"{where}.stages[{index}].inputs[{place}]",
                        f"no earlier stage gives the value {name!r}{cycle}",
                    )
            made.update(stage.outputs)


def _values_are_taken(plan: PlanFile) -> Iterator[Fault]:
    for whole, where, model, stages in _flows(plan):
        wanted = set(model.outputs)
        given = set(model.inputs).union(*(stage.outputs for stage in stages))
        for place, name in enumerate(model.outputs):
            if name not in given:
                yield f"{whole}.outputs[{place}]", f"no stage gives the value {name!r}"
        faults = []
        for index, stage in reversed(list(enumerate(stages))):
            for place, name in enumerate(stage.outputs):
                if name not in wanted:
                    fault = f"no later stage takes the value {name!r}, which is no output of the model"
                    faults.append((f"{where}.stages[{index}].outputs[{place}]", fault))
            wanted.update(stage.inputs)
        yield from reversed(faults)


def _files_have_one_hash(plan: PlanFile) -> Iterator[Fault]:
    scoring = plan.decisions.scoring
    scored = () if scoring is None else scoring.stages
    written = [(f"artifacts[{index}]", files) for index, files in enumerate(plan.artifacts)]
    written += [(f"decisions.scoring.stages[{index}].artifacts", stage.artifacts) for index, stage in enumerate(scored)]
    known: dict[str, tuple[str, str]] = {}
    for where, files in written:
        for place, file in enumerate(files):
            first, sha256 = known.setdefault(file.file, (f"{where}[{place}]", file.sha256))
            if sha256 != file.sha256:
                yield f"{where}[{place}].sha256", f"another than {first} has for {file.file!r}"


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
    if decided is None or estimated is None:
        yield from _one_is_null(decided, estimated, "tables")
        return
    if decided.servers > plan.decisions.parameter_servers:
        of_all = plan.decisions.parameter_servers
        yield "decisions.tables.servers", f"{decided.servers}, of {counted(of_all, 'parameter server')} in all"
    known = {layer.name for stage in plan.decisions.stages for layer in stage.layers}
    for place, name in enumerate(decided.layers):
        if name not in known:
            yield f"decisions.tables.layers[{place}]", f"no stage has the layer {name!r}"


def _batch_is_that_of_its_binding(plan: PlanFile) -> Iterator[Fault]:
    symbol, bindings = plan.model.batch_symbol, plan.model.bindings
    if symbol and symbol not in bindings:
        yield "model.batch_symbol", f"{symbol!r} is not among model.bindings"
    elif symbol and bindings[symbol] != plan.model.batch:
        yield f"model.bindings.{symbol}", f"{bindings[symbol]}, and model.batch is {plan.model.batch}"


def _id_tables_are_of_inputs(plan: PlanFile) -> Iterator[Fault]:
    for name in plan.model.id_tables:
        if name not in plan.model.inputs:
            yield f"model.id_tables.{name}", f"the model has no input {name!r}"


def _a_step_can_be_simulated(plan: PlanFile) -> Iterator[Fault]:
    stages, count = plan.decisions.stages, plan.decisions.schedule.micro_batches
    if count * len(stages) > MOST_ACTIONS:
        fault = (
            f"{count:,} through {counted(len(stages), 'stage')}; expected at most {MOST_ACTIONS:,} actions in a step"
        )
        yield "decisions.schedule.micro_batches", fault
    for index, stage in enumerate(stages):
        if stage.replicas > MOST_ACTIONS:
            yield f"decisions.stages[{index}].replicas", f"{stage.replicas:,}; expected at most {MOST_ACTIONS:,}"


def _the_request_is_met(plan: PlanFile) -> Iterator[Fault]:
    request, decided = plan.request, plan.decisions
    count, most = len(decided.stages), request.max_stages
    if count < request.min_stages:
        yield "request.min_stages", f"{request.min_stages}, and the plan has {counted(count, 'stage')}"
    if most is not None and count > most:
        yield "request.max_stages", f"{most}, and the plan has {counted(count, 'stage')}"
    for index, stage in enumerate(decided.stages):
        if stage.mixed and not request.mixed_stages:
            yield f"decisions.stages[{index}].mixed", "several device types, and request.mixed_stages is false"
        if stage.recompute and (request.mode != "training" or request.recompute == "never"):
            fault = f"true, and request.mode is {request.mode!r} with recompute {request.recompute!r}"
            yield f"decisions.stages[{index}].recompute", fault
    if decided.tables is not None and request.tables == "held":
        yield "decisions.tables", "tables on servers, and request.tables is 'held'"


def _servers_cost_what_the_pool_says(plan: PlanFile) -> Iterator[Fault]:
    server, tables, decided = plan.cluster.parameter_server, plan.estimates.tables, plan.decisions.tables
    if server is None:
        return
    prices = {"parameter_servers_": (plan.estimates.parameter_servers_price_per_hour, plan.decisions.parameter_servers)}
    if tables is not None and decided is not None:
        prices["tables."] = tables.price_per_hour, decided.servers
    for part, (paid, count) in prices.items():
        if not _same(paid, count * server.price_per_hour):
            fault = f"{paid!r} for {counted(count, 'server')} at {server.price_per_hour!r} each"
            yield f"estimates.{part}price_per_hour", fault


def _micro_batches_divide_the_batch(plan: PlanFile) -> Iterator[Fault]:
    count = plan.decisions.schedule.micro_batches
    if plan.model.batch % count:
        yield "decisions.schedule.micro_batches", f"{count} micro-batches do not divide a batch of {plan.model.batch}"


def _types_of_stages_add_up(plan: PlanFile) -> Iterator[Fault]:
    for index, stage, estimate in _stages(plan):
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
        chosen: list[tuple[str, StageDecision | TypeDecision]] = [("", stage)]
        chosen += [(f"mixed[{at}].", each) for at, each in enumerate(stage.mixed)]
        for part, each in chosen:
            where = f"decisions.stages[{index}].{part}"
            if each.device not in known:
                yield f"{where}device", f"unknown device {each.device!r} (the pool has {names})"
            elif each.kind != (kind := known[each.device].kind):
                yield f"{where}kind", f"device {each.device!r} is of kind {kind!r}, not {each.kind!r}"
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
    for index, stage, estimate in _stages(plan):
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
            micro_batch_of([part.times() for part in stage.times], schedule.micro_batches).worked_s(
                backward_factor(schedule.name, index)
            ),
            count * time_s,
            count * (_behind_s(stage) + sum(_rows_s(stage, count, schedule.micro_batches))),
        )
        for index, (stage, count, time_s) in enumerate(zip(plan.estimates.stages, replicas, times_s, strict=True))
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
            if not _same(found := getattr(given, key), number, 1e-9):
                yield f"estimates.{name}.{key}", f"{found!r}, but the other estimates give {number!r}"
    reading = plan.estimates.one_batch_alone if plan.request.mode == "training" else plan.estimates.steady_state
    bubble = plan.estimates.schedule.bubble
    if reading is not None and not _same(bubble, reading.bubble, 1e-9):
        yield "estimates.schedule.bubble", f"{bubble!r}, but the other estimates give {reading.bubble!r}"


def _times_are_by_count_and_of_the_schedule(plan: PlanFile) -> Iterator[Fault]:
    scheduled = plan.decisions.schedule.micro_batches
    for index, _, estimate in _stages(plan):
        lists = {"times": estimate.times} | {f"mixed[{at}].times": of.times for at, of in enumerate(estimate.mixed)}
        for name, times in lists.items():
            counts = [part.count for part in times]
            if counts and counts != sorted({*counts, scheduled}):
                fault = f"of {counts} micro-batches; expected counts that ascend, with the schedule's {scheduled}"
                yield f"estimates.stages[{index}].{name}", fault


def _rows_are_of_tables_and_in_the_step(plan: PlanFile) -> Iterator[Fault]:
    count, step_s = plan.decisions.schedule.micro_batches, plan.estimates.schedule.step_s
    is_trained = plan.request.mode == "training"
    for index, stage, estimate in _stages(plan):
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


def _same(first: float | None, second: float | None, rounding: float = 1e-12) -> bool:
    if first is None or second is None:
        return first is second
    return isclose(first, second, rel_tol=_RECOMPUTED, abs_tol=rounding)


LAWS: tuple[Callable[[PlanFile], Iterator[Fault]], ...] = (
    _parts_have_the_same_stages,
    _defaults_are_of_dimensions,
    _layers_have_one_stage,
    _values_run_forward,
    _values_are_taken,
    _files_have_one_hash,
    _stages_have_the_backend_of_the_plan,
    _rules_have_estimates,
    _tables_are_of_stages_and_their_servers_counted,
    _batch_is_that_of_its_binding,
    _id_tables_are_of_inputs,
    _a_step_can_be_simulated,
    _the_request_is_met,
    _servers_cost_what_the_pool_says,
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
    _times_are_by_count_and_of_the_schedule,
    _readings_are_those_of_the_stages,
    _value_is_that_of_the_objective,
    _bound_is_no_higher_than_the_value,
)
