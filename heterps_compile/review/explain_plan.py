"""What a plan alone says of a layer: where it stands, what its stage takes, and which limits are near.

Nothing but the plan's file is read, and no package that models need is imported.

Left out: what the layer costs by itself, on its device type and on others, and what moving it would change: that takes
its model (``explain.py``).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from heterps_compile.console import pairs_table
from heterps_compile.errors import UnknownNameError
from heterps_compile.escape import printable
from heterps_compile.plan.idle_units import units_of
from heterps_compile.plan.plan import Plan
from heterps_compile.plan.planned_stage import PlannedStage, mixed_document
from heterps_compile.plan.stage_sync import sync_document, sync_words
from heterps_compile.units import counted, format_bytes, format_money, format_percent, format_rate, format_seconds

FORMAT_VERSION = 1
WITHOUT_MODEL = (
    "what the layer costs by itself, and what moving it would change, is no part of a plan: name its model "
    "(--model MODEL.onnx)"
)
_NEAR = 0.02  # relative; what is this near to its limit binds


@dataclass(frozen=True, slots=True)
class LayerOfPlan:
    """A layer in its plan.

    Attributes:
        layer: Its name in the plan.
        plan: The plan.
        stage: The stage that it is in.
        slowest: The stage that sets the throughput.
        binding: Which limits are near, one sentence each.
    """

    layer: str
    plan: Plan
    stage: PlannedStage
    slowest: PlannedStage
    binding: tuple[str, ...]


def find_layer(plan: Plan, layer: str) -> LayerOfPlan:
    """Return a layer of a plan.

    Raises:
        UnknownNameError: with the nearest name, where the plan has none of that name.
    """
    home = {name: stage for stage in plan.stages for name in stage.layers}
    if layer not in home:
        raise UnknownNameError("layer", layer, home)
    slowest = max(plan.stages, key=lambda stage: stage.time_s)
    return LayerOfPlan(layer, plan, home[layer], slowest, tuple(_binding(plan, home[layer])))


def _binding(plan: Plan, stage: PlannedStage) -> Iterator[str]:
    request, devices = plan.request, {device.name: device for device in plan.devices}
    if request.min_throughput and plan.throughput_samples_per_s <= request.min_throughput * (1 + _NEAR):
        reached, floor = format_rate(plan.throughput_samples_per_s), format_rate(request.min_throughput)
        yield f"the floor binds: {reached} of {floor}"
    if request.budget_per_hour is not None and plan.price_per_hour >= request.budget_per_hour * (1 - _NEAR):
        paid, budget = format_money(plan.price_per_hour), format_money(request.budget_per_hour)
        yield f"the budget binds: {paid} of {budget} {plan.currency}/h"
    if request.max_stages is not None and len(plan.stages) >= request.max_stages:
        yield f"the number of stages binds: at most {request.max_stages} are allowed"
    used = units_of(plan.stages)
    for name, _ in stage.units:
        device = devices.get(name)
        if device is None:
            continue
        if used[name] >= device.max_units:
            yield f"the units bind: the pool has {counted(device.max_units, 'unit')} of {name!r}"
        if stage.memory is not None and stage.memory.total_bytes >= device.memory_bytes * (1 - _NEAR):
            held, has = format_bytes(stage.memory.total_bytes), format_bytes(device.memory_bytes)
            yield f"memory binds: stage {stage.index} needs {held} of the {has} of {name!r}"


def print_layer(console: Console, found: LayerOfPlan) -> None:
    """Print where the layer stands, what its stage takes and costs, and what binds."""
    plan, stage = found.plan, found.stage
    device = printable(stage.device_words)
    title = printable(plan.titles.get(found.layer, ""))
    console.print(Text(f"{printable(found.layer)}, {f'{title}, ' if title else ''}stage {stage.index}, on {device}"))
    console.print()
    place = stage.layers.index(found.layer)
    beside = [
        f"{word} {printable(stage.layers[at])}"
        for word, at in (("after", place - 1), ("before", place + 1))
        if 0 <= at < len(stage.layers)
    ]
    share = format_percent(100 * stage.price_per_hour / plan.price_per_hour) if plan.price_per_hour else "-"
    is_slowest = stage.time_s >= found.slowest.time_s
    sets = (
        f"the slowest: it sets the throughput, {format_rate(plan.throughput_samples_per_s)}"
        if is_slowest
        else f"stage {found.slowest.index} is the slowest, {format_seconds(found.slowest.time_s)}"
    )
    pairs = [
        ("stage", f"{stage.index} ({_numbers(len(plan.stages))}), {counted(len(stage.layers), 'layer')}"),
        ("layer", f"{place + 1} of its stage{''.join(f', {words}' for words in beside)}"),
        ("device", _hardware(stage)),
        ("time", f"{format_seconds(stage.time_s)} a batch of {plan.batch:,}; {sets}"),
        (
            "of that",
            f"computation {format_seconds(stage.compute_s)}, data {format_seconds(stage.data_s)}, side by side",
        ),
        *_agreement(stage),
        *([("a step more", more)] if (more := _a_step_more(plan, stage)) else []),
        ("borders", f"{format_bytes(stage.received_bytes)} come in, {format_bytes(stage.sent_bytes)} go out"),
        ("price", f"{format_money(stage.price_per_hour)} {plan.currency}/h, {share} of the plan's"),
    ]
    if stage.memory is not None:
        again = "; its activations are computed again in the backward" if stage.recompute else ""
        pairs.append(("memory", f"{format_bytes(stage.memory.total_bytes)} a unit{again}"))
    pins = ", ".join(f"{pattern}={device}" for pattern, device in plan.request.pins)
    if pins:
        pairs.append(("pins", f"{pins} (of the whole plan)"))
    console.print(pairs_table(pairs))
    console.print()
    for sentence in found.binding or ["no limit is near"]:
        console.print(Text(f"Binding: {printable(sentence)}."))
    console.print(Text(f"note: {WITHOUT_MODEL}"))


def _agreement(stage: PlannedStage) -> list[tuple[str, str]]:
    """Return by which rule the replicas agree, and what an all-reduce in its place would take."""
    return [] if stage.sync is None else [("agreement", sync_words(stage))]


def _a_step_more(plan: Plan, stage: PlannedStage) -> str:
    """Say what a step has of a stage before its first forward and behind its last backward; "" where nothing."""
    parts = (
        ("pull of rows", stage.pull_s(plan.schedule.micro_batches)),
        ("push of their gradients", stage.push_s),
        ("all-reduce", stage.all_reduce_s if stage.sync is None else 0.0),  # another rule is told of by itself
        ("own work of the rule", stage.handling_s),
        ("step of the optimizer", stage.update_s),
    )
    return ", ".join(f"{words} {format_seconds(time_s)}" for words, time_s in parts if time_s)


def _hardware(stage: PlannedStage) -> str:
    """Say what a stage runs on, and which part of a batch each of several device types works on."""
    if not stage.mixed:
        return f"{counted(stage.replicas, 'unit')} of {printable(stage.device)} ({stage.kind})"
    return "; ".join(
        f"{counted(each.replicas, 'unit')} of {printable(each.device)} ({each.kind}), "
        f"{format_percent(100 * each.share)} of a batch"
        for each in stage.mixed
    )


def _numbers(stages: int) -> str:
    return "the only one" if stages == 1 else f"they are 0 to {stages - 1}"


def layer_document(found: LayerOfPlan) -> str:
    """Return the text of a JSON document."""
    plan, stage = found.plan, found.stage
    document = {
        "format_version": FORMAT_VERSION,
        "layer": found.layer,
        "title": plan.titles.get(found.layer),
        "fingerprint": plan.fingerprints.get(found.layer) or None,
        "stage": stage.index,
        "stages": len(plan.stages),
        "layers_of_stage": list(stage.layers),
        "device": stage.device,
        "replicas": stage.replicas,
        **mixed_document(stage),
        "batch": plan.batch,
        "stage_time_s": stage.time_s,
        "stage_compute_s": stage.compute_s,
        "stage_data_s": stage.data_s,
        "stage_all_reduce_s": stage.all_reduce_s,
        "stage_handling_s": stage.handling_s,
        "stage_update_s": stage.update_s,
        **({} if stage.sync is None else {"agreement": sync_document(stage)}),
        "stage_pull_s": stage.pull_s(plan.schedule.micro_batches),
        "stage_push_s": stage.push_s,
        "slowest_stage": found.slowest.index,
        "received_bytes": stage.received_bytes,
        "sent_bytes": stage.sent_bytes,
        "stage_price_per_hour": stage.price_per_hour,
        "price_per_hour": plan.price_per_hour,
        "currency": plan.currency,
        "memory_bytes": None if stage.memory is None else stage.memory.total_bytes,
        "recompute": stage.recompute,
        "pins": [f"{pattern}={device}" for pattern, device in plan.request.pins],
        "binding": list(found.binding),
        "notes": [WITHOUT_MODEL],
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"
