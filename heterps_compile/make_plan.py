"""The plan of a draft that every pass has run on: decisions, estimates, and what the user should know of both.

Left out: how the draft came to be (``passes/``), verification and time spent, which the caller fills in.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from types import MappingProxyType

from heterps_compile.backends.contract import Backend
from heterps_compile.backends.find import training_backends, trains
from heterps_compile.cost.memory import TAKE_NO_SPARSE
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.cost.precision import FULL, PRECISIONS, rate_notes
from heterps_compile.cost.served_tables import dense_tables, tables_of
from heterps_compile.errors import InputError
from heterps_compile.escape import printable
from heterps_compile.ir.graph import TORCH
from heterps_compile.ir.id_tables import id_tables
from heterps_compile.ir.layer_titles import titles_of
from heterps_compile.ir.partition import StageCut
from heterps_compile.packages import SHAPE_PLANS, installed_versions
from heterps_compile.passes.drafts import Emitted
from heterps_compile.plan.fingerprint import make_fingerprints
from heterps_compile.plan.idle_units import idle_of, sampleless_notes, units_of
from heterps_compile.plan.input_values import values_of
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.plan_notes import NOT_TRAINED, OTHER_OUTPUTS, RUN_FAILS
from heterps_compile.plan.planned_schedule import readings_of
from heterps_compile.plan.planned_stage import PlannedStage
from heterps_compile.plan.provenance import make_hashes
from heterps_compile.plan.request import CHEAPEST
from heterps_compile.runtime.pipeline.routes import make_routes
from heterps_compile.runtime.signature import signature_of_graph
from heterps_compile.schedule.mixed_stage import BY_SPEED, share_out
from heterps_compile.sync_rules.assignment import parse_rule
from heterps_compile.sync_rules.rule import left_uncounted
from heterps_compile.units import counted, format_bytes

_LOST_SHOWN = 3
_ON_SERVERS = "a plan with tables on servers can be much cheaper: try --tables cheapest; "
_MUCH = 0.1  # of what a replica holds, from which on gradients as large as tables are told
_REFUSES = f"{RUN_FAILS}; take another (--optimizer), or leave sparse=True out"
_OF_SPARSE: Mapping[str, str] = MappingProxyType(
    {
        "adam": (
            "the plan has stepped by rows, and torch.optim.Adam refuses: the optimizer of the training file has to be "
            "torch.optim.SparseAdam for these tables"
        ),
        "momentum": "torch.optim.SGD with momentum steps whole, as their velocity goes on where a gradient has no row",
        "adafactor": f"torch.optim.Adafactor refuses, {_REFUSES}",
        "adam-8bit": f"bitsandbytes.optim.Adam8bit has no step for, {_REFUSES}",
    }
)
"""What the optimizers of ``--optimizer`` make of sparse gradients, but for ``sgd``, which steps their rows."""


def make_plan(draft: Emitted, backend: Backend) -> Plan:
    """Return the plan of a draft that every pass has run on, not verified."""
    graph, pool, search, stages = draft.graph, draft.cluster, draft.search, draft.stages
    _refuse_kinds(stages, backend)
    used = {device for stage in stages for device, _ in stage.units}
    free = any(device.price_per_hour == 0 for device in pool.device_types)
    servers = draft.parameter_servers
    readings = readings_of(graph.batch, stages, draft.schedule)
    throughput = readings.steady_state.throughput_samples_per_s
    value, bounds = search.value, (search.bound, max(0.0, search.bound_of_all_orders))
    paid = sum(stage.price_per_hour for stage in stages) + servers.price_per_hour
    paid += sum(idle.price_per_hour for idle in idle_of(units_of(stages), pool.device_types))
    valued = readings.one_batch_alone if draft.request.minimises_step else readings.steady_state
    by_price = OBJECTIVES[draft.request.objective].paid(paid, valued.throughput_samples_per_s)
    if draft.request.minimises_step and by_price is None:
        value = draft.schedule.step_s
    if by_price is not None:  # what is free has a price to the search, not to the user
        value, bounds = by_price, (0.0, 0.0) if free else bounds
    if any(stage.sync is not None for stage in stages) and not draft.request.minimises_step and by_price is None:
        value = max(stage.time_s for stage in stages)
    if _rules_after_search(draft):  # chosen after the placement: what was proven of an all-reduce is not proven of them
        bounds = (0.0, 0.0)
    steady_bound = min(bounds[0], max(0.0, search.steady_bound)) if draft.request.minimises_step else 0.0
    return Plan(
        model=graph.name,
        graph_inputs=graph.inputs,
        graph_outputs=graph.outputs,
        batch=graph.batch,
        bindings=dict(graph.bindings),
        batch_symbol=graph.batch_symbol or "",
        request=draft.request,
        cluster=pool.name,
        currency=pool.currency,
        backend=backend.name,
        stages=tuple(replace(stage, backend=name) for stage, name in zip(stages, _names(backend, stages), strict=True)),
        schedule=draft.schedule,
        value=value,
        bound=min(bounds[0], value),
        bound_of_all_orders=min(bounds[1], value),
        steady_bound=steady_bound,
        method=search.method,
        found_by=search.found_by,
        evaluations=search.evaluations,
        throughput_samples_per_s=throughput,
        signature=signature_of_graph(graph).to_json(),
        id_tables=id_tables(graph),
        input_values=values_of(graph),
        parameter_servers=servers,
        tables=draft.tables,
        unused_devices=tuple(device.name for device in pool.device_types if device.name not in used),
        replicated=draft.partition.replicated,
        notes=(
            *_notes(draft),
            *_dealt(draft),
            *_skips(draft.partition.stages),
            *_batches_of_steps(draft, stages),
            *_replicated_buffers(draft, stages),
            *_untrained(draft, _names(backend, stages)),
            *_other_runtimes(draft, stages, _names(backend, stages)),
            *_other_versions(draft),
            *backend.notes,
        ),
        hashes=make_hashes(graph, pool, draft.request, draft.measurements),
        versions=installed_versions(SHAPE_PLANS),
        devices=pool.device_types,
        links=pool.links,
        parameter_server=pool.parameter_server,
        fingerprints=make_fingerprints(draft.layers_as_read),
        titles=titles_of(draft.layers_as_read),
        other=draft.other,
        search_s=search.search_s,
    )


def _refuse_kinds(stages: Sequence[PlannedStage], backend: Backend) -> None:
    """Refuse a stage on device types of several kinds where what is written runs on one.

    Raises:
        InputError: naming the stage and its backend.
    """
    for stage, own in zip(stages, backend.of_stages(len(stages)), strict=True):
        if len({part.kind for part in stage.by_type}) > 1 and not own.capabilities.is_module:
            raise InputError(
                f"stage {stage.index} is planned for {printable(stage.hardware)}, and what the backend {own.name!r} "
                f"writes runs on one kind of device; take --backend torch, or leave --mixed-stages out"
            )


def _dealt(draft: Emitted) -> Iterator[str]:
    """Say how the micro-batches of a step are dealt where a stage has replicas of several device types."""
    for stage in draft.stages:
        if not stage.mixed:
            continue
        count = draft.schedule.micro_batches
        taken = Counter(share_out([each.micro_batch(count).whole_s for each in stage.of_replicas], count, BY_SPEED))
        units = iter(range(stage.replicas))
        parts = [
            f"{sum(taken[next(units)] for _ in range(each.replicas))} to {each.replicas} x {each.device}"
            for each in stage.mixed
        ]
        yield f"of {counted(count, 'micro-batch')} stage {stage.index} gives {' and '.join(parts)}"


def _names(backend: Backend, stages: Sequence[PlannedStage]) -> list[str]:
    """Return the name of the backend of every stage."""
    return [own.name for own in backend.of_stages(len(stages))]


def _notes(draft: Emitted) -> tuple[str, ...]:
    notes: Sequence[str] = getattr(draft.graph.source, "notes", ())
    lost = getattr(draft.graph.source, "lost", ())
    if lost and draft.request.mode != "training":
        shown = ", ".join(map(str, lost[:_LOST_SHOWN])) + f" and {len(lost) - _LOST_SHOWN} more" * (
            len(lost) > _LOST_SHOWN
        )
        notes = (*notes, f"for inference alone: stages lack {shown}, and would train with other gradients")
    if draft.request.mode == "training":
        notes = (*notes, *getattr(draft.graph.source, "training_notes", ()))
    kinds = {layer.kind.value for layer in draft.layers.layers}
    for device in draft.cluster.device_types:
        if device.supports is not None and not kinds.intersection(device.supports):
            notes = (*notes, f"{device.name!r} supports {', '.join(device.supports)}: no layer of this model")
    notes = (*notes, *_sample_notes(draft), *_precision_notes(draft), *_times_notes(draft))
    if draft.request.sync_rules.uses_servers and draft.parameter_servers.price_per_hour:
        notes = (*notes, "the price has the parameter servers in it, the proven bound leaves them out")
    notes = (*notes, *_rule_notes(draft), *_gradient_notes(draft))
    return (*notes, *draft.search.notes)


def _sample_notes(draft: Emitted) -> Iterator[str]:
    """Say which node keeps the batch whole, or that a plan divides a batch that was not checked."""
    graph = draft.graph
    if graph.mixes:
        yield (
            f"{graph.mixes} mixes samples: a part of the batch gives other numbers than the whole, so a step has 1 "
            f"micro-batch, and no stage has replicas"
        )
    elif graph.unchecked and (draft.schedule.micro_batches > 1 or any(stage.replicas > 1 for stage in draft.stages)):
        yield f"the plan assumes that samples are independent, which was not checked in full: {graph.unchecked}"


def _rules_after_search(draft: Emitted) -> bool:
    """Return whether stages may take another time to agree than the search counted."""
    if draft.problem.rules is not None:
        return False
    return any(stage.sync is not None and not parse_rule(stage.sync.rule).uses_servers for stage in draft.stages)


def _rule_notes(draft: Emitted) -> Iterator[str]:
    """Name the synchronisation rules of the stages, and their proof."""
    asked = f"--sync {draft.request.synchronisation}"
    if not draft.request.is_all_reduced and all(stage.replicas < 2 for stage in draft.stages):
        yield f"{asked} changes nothing: no stage has several replicas that would have to agree"
    elif draft.request.chooses_rules and not any(stage.sync is not None for stage in draft.stages):
        yield f"--sync auto leaves every stage its all-reduce: with --allow {draft.request.allow} no rule is faster"
    if _rules_after_search(draft):
        objective, search = OBJECTIVES[draft.request.objective], draft.search
        bound = objective.describe(search.bound, draft.graph.batch, draft.cluster.currency) if search.bound > 0 else ""
        proven = f"with an all-reduce in every stage none is better than {bound}" if bound else "nothing is proven"
        yield (
            f"placement and replicas are those of a plan that all-reduces, and its stages got their rules after that: "
            f"{proven}, and no bound is proven with these rules"
        )
    yield from left_uncounted(parse_rule(stage.sync.rule) for stage in draft.stages if stage.sync is not None)


def _gradient_notes(draft: Emitted) -> Iterator[str]:
    """Tell where gradients as large as tables are much of what a replica holds, and how optimizers take sparse ones."""
    if draft.request.mode != "training":
        return
    place = {layer.name: index for index, layer in enumerate(draft.layers.layers)}
    for stage in draft.stages:
        layers = [place[name] for name in stage.layers]
        yield from _whole_gradients_note(draft, stage, layers)
        sparse = {each.name for index in layers for each in draft.costs[index].looked_up if not each.is_pushed}
        if sparse and draft.request.optimizer in _OF_SPARSE:
            has = f"stage {stage.index} has {counted(len(sparse), 'table')} with sparse gradients (sparse=True)"
            yield f"{has}, which {_OF_SPARSE[draft.request.optimizer]}"


def _whole_gradients_note(draft: Emitted, stage: PlannedStage, layers: Sequence[int]) -> Iterator[str]:
    """Say how much of what a replica holds are gradients that could be of the rows of a batch."""
    whole = {name for index in layers for name in dense_tables(draft.layers, index, draft.costs[index])}
    tables = [table for table in tables_of(draft.layers, draft.costs) if table.name in whole]
    whole_bytes, names = sum(table.size_bytes for table in tables), {draft.layers.layers[i].name for i in layers}
    rows_bytes = sum(size for table in tables for layer, size in table.rows_bytes.items() if layer in names)
    held_bytes = 0 if stage.memory is None else stage.memory.total_bytes
    if whole_bytes < _MUCH * held_bytes or whole_bytes < 2 * rows_bytes:
        return
    by_rows = ""
    if draft.graph.family == TORCH and draft.makes_sparse and draft.request.optimizer not in TAKE_NO_SPARSE:
        by_rows = f"; look-ups with sparse=True make gradients of the {format_bytes(rows_bytes)} of rows of a batch"
    summed = "replicas sum and " if stage.replicas > 1 else ""
    yield (
        f"{'' if draft.request.tables == CHEAPEST else _ON_SERVERS}{format_bytes(whole_bytes)} of the "
        f"{format_bytes(held_bytes)} that a replica of stage {stage.index} holds are gradients as large as "
        f"{counted(len(tables), 'table')}, which {summed}the optimizer steps whole{by_rows}"
    )


def _precision_notes(draft: Emitted) -> Iterator[str]:
    """State the assumptions of the planned precision."""
    precision = draft.request.precision
    if PRECISIONS[precision] != PRECISIONS[FULL]:
        yield (
            f"for {precision}: a run computes under torch.autocast; here stages are compared with the whole model in "
            f"its own dtypes"
        )
    yield from rate_notes(draft.cluster, precision)


def _times_notes(draft: Emitted) -> tuple[str, ...]:
    """Name the profile or calibration behind the times of layers and micro-batches."""
    used = [device for stage in draft.stages for device, _ in stage.units]
    return (
        *draft.times.notes(),
        *draft.times.rate_notes(),
        *draft.times.micro_batch_notes(used, draft.schedule.micro_batches),
    )


def _untrained(draft: Emitted, backends: Sequence[str]) -> Iterator[str]:
    """Say where stages that are planned for training are written for a runtime that does not train them."""
    for name in dict.fromkeys(backends):
        if draft.request.mode == "training" and not trains(name):
            ways = " or ".join(training_backends())
            yield f"stages for {name} {NOT_TRAINED}: to run the training, compile with --backend {ways}"


def _other_runtimes(draft: Emitted, stages: Sequence[PlannedStage], backends: Sequence[str]) -> tuple[str, ...]:
    """Say where times were measured on another runtime than the stages are for."""
    profiles = {} if draft.measurements is None else draft.measurements.devices
    return tuple(
        f"the profile for {device!r} is of the backend {profiles[device].backend}, and the stages are for {backend}: "
        f"its times are those of other kernels"
        for device, backend in dict.fromkeys(
            (name, own) for stage, own in zip(stages, backends, strict=True) for name, _ in stage.units
        )
        if device in profiles and backend != profiles[device].backend
    )


def _other_versions(draft: Emitted) -> Iterator[str]:
    """Say where times were measured with another version of a runtime than is installed here."""
    if draft.measurements is None:
        return
    for device, version in draft.measurements.versions.items():
        runtime = draft.measurements.devices[device].backend
        with suppress(metadata.PackageNotFoundError):  # it was measured elsewhere, and nothing here runs on it
            installed = metadata.version(runtime)
            if installed.partition("+")[0] != version.partition("+")[0]:  # beyond that it is what GPUs it was built for
                yield (
                    f"the profile for {device!r} was measured with {runtime} {printable(version)}, and {installed} "
                    f"is installed here: its times may no longer hold; measure anew with heterps-compile profile"
                )


def _skips(stages: Sequence[StageCut]) -> tuple[str, ...]:
    """Say how values get past stages that do not read them."""
    sent = [
        f"{len(route.values)} from stage {route.source} to stage {route.target}"
        for route in make_routes(stages, ())
        if route.target > route.source + 1
    ]
    return (f"values that skip stages are sent directly, not passed on: {', '.join(sent)}",) if sent else ()


def _batches_of_steps(draft: Emitted, stages: Sequence[PlannedStage]) -> tuple[str, ...]:
    """Say what a training step is where replicas cannot share a batch, or it has too few samples for them."""
    most, batch = max(stage.replicas for stage in stages), draft.graph.batch
    if draft.request.mode != "training" or most == 1:
        return ()
    if draft.graph.is_divisible:
        return tuple(sampleless_notes([stage.replicas for stage in stages], batch, draft.schedule.micro_batches))
    return (
        f"the model fixes its batch at {batch}, which replicas cannot share: with {most} of them a step takes {most} "
        f"batches (run --batch {most * batch} --micro-batches {most})",
    )


def _replicated_buffers(draft: Emitted, stages: Sequence[PlannedStage]) -> Iterator[str]:
    """Say which stages with replicas change buffers; in training the runtime brings them together, or refuses."""
    graph = draft.graph
    if draft.request.mode == "training" or graph.family != TORCH:
        return
    nodes = list(graph.source.graph.nodes)
    for cut, stage in zip(draft.partition.stages, stages, strict=True):
        written = (graph.source.writes.get(nodes[graph.nodes[i].origin].name, ()) for i in cut.nodes)
        changed = [name for names in written for name in names if name in graph.parameters]
        if changed and stage.replicas > 1:
            yield (
                f"stage {cut.index} changes {printable(changed[0])!r} when it runs, and its {stage.replicas} replicas "
                f"each keep their own, of the batches that they see: {OTHER_OUTPUTS}"
            )
