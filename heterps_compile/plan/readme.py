"""The README of a compiled folder: what it is, how to run it, what is in it.

Left out: what ``plan.json`` says better (every layer, every value).
"""

from heterps_compile.escape import for_markdown
from heterps_compile.schedule.readings import ONE_BATCH_ALONE, STEADY_STATE, Estimate, alone_words, steady_words
from heterps_compile.units import format_money, format_seconds

from .plan import Plan, what_the_bound_proves
from .table_words import server_options_of, tables_in_markdown

_CODE = (
    " The stages are code, and loading runs it: load this folder only where you trust who made it, or with the hash of "
    "`plan.json` that its maker told you: `load(..., expect_sha256=...)`, `run --expect-sha256 ...`."
)


def readme(plan: Plan) -> str:
    """Write the README of a plan whose artefacts are known; every name is escaped."""
    inputs = ", ".join(map(for_markdown, plan.graph_inputs)) or "nothing"
    outputs = ", ".join(map(for_markdown, plan.graph_outputs))
    lines = [
        f"# {for_markdown(plan.model)}, compiled",
        "",
        f"Written by heterps-compile for the pool {for_markdown(plan.cluster)}; the stages run with "
        f"{for_markdown(plan.backend)}.",
        "",
        "## Run it",
        "",
        "```python",
        "import heterps_compile",
        "",
        'compiled = heterps_compile.load("path/to/this/folder")',
        "outputs = compiled.run(...)  # what the model itself takes, and what it returns",
        "```",
        "",
        f"It takes {inputs} and gives {outputs}, at a batch of {plan.batch}.",
        *_scoring(plan),
        *_processes(plan),
        "Loading checks every file against its SHA-256 in `plan.json`, which finds damage and no malice: who can "
        "change a file can change its hash." + (_CODE if _has_code(plan) else ""),
        "",
        "## Stages",
        "",
        "| stage | device | replicas | layers | time of a batch | memory | files |",
        "|---|---|---|---|---|---|---|",
    ]
    for stage, files in zip(plan.stages, plan.artifacts, strict=True):
        memory = stage.memory_words or "not estimated"
        lines.append(
            f"| {stage.index} | {for_markdown(stage.device_words)} | {stage.replicas_words} | {len(stage.layers)} | "
            f"{format_seconds(stage.time_s)} | {memory} | {', '.join(f'`{a.file}`' for a in files)} |"
        )
    schedule, readings = plan.schedule, plan.readings
    has_floor, training = plan.request.min_throughput > 0, plan.request.mode == "training"
    held, held_alone = has_floor and not plan.request.minimises_step, has_floor and plan.request.minimises_step
    lines += [
        "",
        f"Schedule: {for_markdown(schedule.name)}, micro-batches {schedule.micro_batches} "
        f"({for_markdown(schedule.reason)}).",
        "",
        f"Estimated for {format_money(plan.price_per_hour)} {plan.currency}/h{_idle(plan)}:",
        "",
        f"- {STEADY_STATE} (batches follow one another{', and the floor is held here' if held else ''}): "
        f"{steady_words(readings.steady_state)}, {_per_million(plan, readings.steady_state)}",
        f"- {ONE_BATCH_ALONE} ({'a step of a training run' if training else 'fill and drain included'}"
        f"{', and the floor is held here' if held_alone else ''}): "
        f"{alone_words(readings.one_batch_alone)}, {_per_million(plan, readings.one_batch_alone)}",
    ]
    lines += tables_in_markdown(plan)
    if proven := what_the_bound_proves(plan):
        lines += ["", f"Proven of these estimates: {proven}."]
    if plan.verification is not None:
        found = plan.verification
        gradients = f", of gradients {found.gradients_max_rel:.3g} of their scale" if found.gradients else ""
        lines += ["", f"Verified against the whole model: largest difference {found.max_abs:.3g}{gradients}."]
    return "\n".join(lines) + "\n"


def _idle(plan: Plan) -> str:
    units = [
        f"{idle.count} {for_markdown(idle.device)} idle in machines of {idle.units_per_machine}"
        for idle in plan.idle_units
    ]
    return f" ({', '.join(units)})" if units else ""


def _per_million(plan: Plan, reading: Estimate) -> str:
    price = format_money(plan.price_at(reading.throughput_samples_per_s))
    return f"{price} {plan.currency} per million samples"


def _scoring(plan: Plan) -> list[str]:
    """Say how what was compiled for training scores."""
    if plan.scoring is None:
        return []
    if plan.scoring.refused:
        return ["It was compiled for training and does not score."]
    return ["It was compiled for training, and runs as it trains; `compiled.eval().run(...)` scores."]


def _has_code(plan: Plan) -> bool:
    return any(files and not files[0].file.endswith(".onnx") for files in plan.artifacts)


def _processes(plan: Plan) -> list[str]:
    """Say how the stages run as processes that pass micro-batches on."""
    training = "--train train.py " if plan.request.mode == "training" else ""
    if plan.tables is not None and not training:
        return ["", ""]  # the paragraph about tables on servers says why no run takes it
    servers = f" {server_options_of(plan)}" if plan.tables is not None else ""
    what = "`train.py` has `loss(outputs, batch)` and `optimizer(parameters)`." if training else ""
    return [
        "",
        "As a pipeline of processes:",
        "",
        "```sh",
        f"heterps-compile run path/to/this/folder {training}--data data.parquet{servers}",
        "```",
        *(["", what] if what else []),
        "",
    ]
