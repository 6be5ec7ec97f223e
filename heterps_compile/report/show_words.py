"""A plan as its file has it, for people: stages, what it reaches and costs, every layer, what it was made from.

Left out: times that were spent (the file does not keep them), single layers' costs (``explain`` gives them).
"""

from rich.console import Console
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, note_text, pairs_table, plain_table
from heterps_compile.escape import printable, shorten
from heterps_compile.plan.plan import Plan
from heterps_compile.units import counted, format_bytes

from .tables import NARROW, TIME_SPENT, defaults_line, notes, plan_totals, sha256_line, stage_table

_HASH_SHOWN = 12  # hexadecimal digits
_NOT_KEPT = frozenset({TIME_SPENT, "method"})


def print_shown(console: Console, plan: Plan, *, all_layers: bool, file_sha256: str | None = None) -> None:
    """Print a plan.

    Args:
        console: Where to.
        plan: The plan.
        all_layers: Print every layer, with its stage and fingerprint.
        file_sha256: Of the plan's file; None where the plan is not as its file has it.
    """
    if all_layers:
        table = plain_table()
        add_text(table, "layer")
        if plan.titles:
            add_text(table, "what it is")
        add_numbers(table, "stage")
        add_text(table, "device", "fingerprint")
        for stage in plan.stages:
            for name in stage.layers:
                what = [shorten(printable(plan.titles.get(name, "")), console.width // 3)] if plan.titles else []
                names = [shorten(printable(name), console.width // (3 if plan.titles else 2)), *what]
                cells = [*names, str(stage.index), printable(stage.device_words)]
                fingerprint = plan.fingerprints.get(name, "-")
                is_short = bool(plan.titles) and console.width < NARROW and len(fingerprint) > _HASH_SHOWN
                table.add_row(*map(Text, [*cells, f"{fingerprint[:_HASH_SHOWN]}…" if is_short else fingerprint]))
        console.print(table)
        console.print()
    if line := defaults_line(plan):
        console.print(line)
        console.print()
    console.print(stage_table(plan, console.width))
    console.print()
    rows = [(key, text) for key, text in plan_totals(plan) if key not in _NOT_KEPT]
    place = next((i + 1 for i, (key, _) in enumerate(rows) if key == "schedule"), len(rows))
    rows.insert(place, ("because", plan.schedule.reason))
    rows += [("method", f"{printable(plan.search)}, placements tried {plan.evaluations:,}"), *_memory(plan)]
    rows += [("asked for", _asked(plan))] if _asked(plan) else []
    rows.append(("pool", _pool(plan)))
    rows.append(("made by", ", ".join(f"{name} {version}" for name, version in sorted(plan.versions.items()))))
    rows += [(f"hash of {name}", f"{digest[:_HASH_SHOWN] or 'none'}") for name, digest in sorted(plan.hashes.items())]
    console.print(pairs_table(rows))
    for note in notes(plan):
        console.print(note_text(note))
    if file_sha256 is not None:
        console.print(sha256_line(file_sha256))


def _memory(plan: Plan) -> list[tuple[str, str]]:
    """Return what the fullest unit holds, part by part, and what its device type has."""
    has = {device.name: device.memory_bytes for device in plan.devices}
    known = [part for stage in plan.stages for part in stage.by_type if part.memory is not None and part.device in has]
    if not known:
        return []
    fullest = max(known, key=lambda stage: (stage.memory.total_bytes if stage.memory else 0) / has[stage.device])
    memory = fullest.memory
    assert memory is not None  # noqa: S101 - filtered above; this tells the type checker
    parts = (
        ("weights", memory.weights_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimiser", memory.optimizer_bytes),
        ("agreement", memory.sync_bytes),
        ("narrow copies of weights", memory.copies_bytes),
        ("activations", memory.activations_bytes),
    )
    held = ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in parts if size_bytes)
    text = (
        f"stage {fullest.index}: {format_bytes(memory.total_bytes)} of {format_bytes(has[fullest.device])} "
        f"on {fullest.device} ({held}; times {memory.safety_factor:g})"
    )
    return [("fullest memory", text)]


def _asked(plan: Plan) -> str:
    request = plan.request
    parts = [f"pin {pattern}={device}" for pattern, device in request.pins]
    parts += [f"forbid {pattern}={device}" for pattern, device in request.forbidden]
    parts += [f"at least {request.min_stages} stages"] if request.min_stages > 1 else []
    parts += [] if request.max_stages is None else [f"at most {counted(request.max_stages, 'stage')}"]
    return ", ".join(parts)


def _pool(plan: Plan) -> str:
    names = ", ".join(device.name for device in plan.devices)
    return f"{plan.cluster} ({names})" if names else plan.cluster
