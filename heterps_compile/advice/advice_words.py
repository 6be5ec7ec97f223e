"""Advice, printed for people and for programs: every formula with the numbers put in.

Left out: the advice (``advise.py``).
"""

import json
import math
from typing import Any

from rich.console import Console
from rich.text import Text

from heterps_compile.console import add_numbers, note_text, plain_table
from heterps_compile.escape import printable
from heterps_compile.units import (
    counted,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain_number,
    rate_number,
)

from .advise import Advice, BatchAdvice
from .lemmas import ceiling

FORMAT_VERSION = 1


def print_advice(console: Console, advice: Advice) -> None:
    """Print what is advised, the formulas, and what the fuller model says beside them."""
    for line in _lines(advice):
        console.print(Text(line))
    console.print()
    has_convolutions = bool(advice.work.workspaces_bytes)
    table = plain_table()
    add_numbers(table, "batch", "memory")
    add_numbers(table, *(("workspace", "convolutions") if has_convolutions else ("",)))
    add_numbers(table, "samples/s", "R", "ceiling", advice.units)
    for each in advice.batches:
        table.add_row(*map(Text, _cells(each)))
    console.print(table)
    console.print()
    console.print(Text(_batch_words(advice)))
    for note in advice.notes:
        console.print(note_text(note))


def _lines(advice: Advice) -> list[str]:
    work, wanted, unit = advice.work, plain_number(advice.wanted), advice.unit
    ratio, name = f"{work.overhead:.3g}", printable(advice.model.draft.graph.name)
    lines = [
        f"{name}: training, a batch of {work.batch}, on {printable(advice.gpu.name)}",
        "",
        f"C  {format_seconds(work.divided_s)}: computing a batch on one {unit}, which more {advice.units} divide",
        f"O  {format_seconds(work.overhead_s)}: what each {unit} pays whole: launches and weights again "
        f"{format_seconds(work.again_s)}, the part that does not divide {format_seconds(work.serial_s)}, "
        f"sums of gradients {format_seconds(work.gradients_s)}",
        f"R  O / C = {ratio}",
        "",
        f"ceiling   (1 + R) / R = (1 + {ratio}) / {ratio} = {_number(advice.ceiling)}",
    ]
    if advice.gpus is None:
        lines.append(
            f"{advice.units:8}  none: a speed-up of {wanted} lies above the ceiling; a larger batch raises it (below), "
            "and so does a faster network"
        )
    else:
        count = advice.gpus
        lines += [
            f"{advice.units:8}  S / (1 + R - S R) = {wanted} / (1 + {ratio} - {wanted} x {ratio}) -> {count}",
            f"speed-up  G (1 + R) / (1 + G R) = {count} x (1 + {ratio}) / (1 + {count} x {ratio}) = "
            f"{_number(advice.lemma_speed_up(count))}",
        ]
    lines += _fuller_lines(advice)
    if advice.servers is not None and advice.gpus is not None:
        servers = advice.servers
        size, rate, round_s = (
            format_bytes(advice.model.weights_bytes),
            format_count(servers.bytes_per_s),
            servers.round_s,
        )
        lines += [
            "",
            f"servers   2 S N_w / (B T_C) = 2 x {size} x {advice.gpus} / ({rate}B/s x {format_seconds(round_s)}) -> "
            f"{counted(servers.lemma, 'core')}",
            f"          fuller model: {counted(servers.fuller, 'core')} for its batch of "
            f"{format_seconds(servers.fuller_round_s)}, and of embeddings for the rows that it touches",
        ]
    return lines


def _fuller_lines(advice: Advice) -> list[str]:
    """Say what the simulated steps say."""
    said = []
    if advice.gpus is not None and advice.gpus <= advice.work.batch:
        said.append(_step_words(advice, advice.gpus))
    if advice.fuller_gpus is None:
        best = advice.fuller_best
        said.append(
            f"no number of {advice.units} has a speed-up of {plain_number(advice.wanted)} at a batch of "
            f"{advice.work.batch}; the shortest is that of {_step_words(advice, best)}"
        )
    elif advice.fuller_gpus != advice.gpus:
        said.append(f"the fewest with {plain_number(advice.wanted)} are {_step_words(advice, advice.fuller_gpus)}")
    if advice.gpus is not None and advice.gpus > advice.work.batch:
        said.append(f"{advice.gpus} {advice.units} have no part each of a batch of {advice.work.batch}")
    return [f"          fuller model: {'; '.join(said)}"]


def _step_words(advice: Advice, gpus: int) -> str:
    step_s, gained = advice.model.step_s(gpus), advice.fuller_speed_up(gpus)
    if not math.isfinite(step_s):
        return f"{counted(gpus, advice.unit)}, which have no room for it in memory"
    told = "" if math.isnan(gained) else f", a speed-up of {_number(gained)}"
    return f"{counted(gpus, advice.unit)} with {format_seconds(step_s)} a step{told}"


def _cells(each: BatchAdvice) -> tuple[str, ...]:
    work, known = each.work, len(each.work.workspaces_bytes)
    room = f"{each.with_workspace} of {known} fit" if known else ""
    return (
        f"{work.batch:,}",
        format_bytes(work.memory_bytes),
        *((format_bytes(max(work.workspaces_bytes)),) if known else ()),
        room if each.fits else "no room",
        rate_number(each.samples_per_s),
        f"{work.overhead:.3g}",
        _number(ceiling(work.overhead)),
        "none" if each.gpus is None else str(each.gpus),
    )


def _batch_words(advice: Advice) -> str:
    best = advice.best_batch
    if best is None:
        return "batch: none fits"
    most = max(each.samples_per_s for each in advice.batches if each.fits)
    together = f" ({best.work.batch * advice.gpus:,} for {advice.gpus} {advice.units})" if advice.gpus else ""
    words = (
        f"batch: {best.work.batch} a {advice.unit}{together}, the smallest with 95 % of the most samples/s that fit "
        f"{format_bytes(advice.gpu.memory_bytes)} ({format_percent(100 * best.samples_per_s / most)})"
    )
    if best.work.workspaces_bytes:
        words += (
            "; workspace: the largest matrix that a convolution would write out as an explicit product, and how many "
            "fit beside the model"
        )
    return words


def _number(value: float) -> str:
    return "no limit" if math.isinf(value) else f"{value:.3g}"


def advice_document(advice: Advice) -> str:
    """Return the advice as a JSON document; its keys are a promise."""
    return json.dumps(_record(advice), indent=2, allow_nan=False)


def _record(advice: Advice) -> dict[str, Any]:
    work, servers = advice.work, advice.servers
    return {
        "format_version": FORMAT_VERSION,
        "model": advice.model.draft.graph.name,
        "gpu": advice.gpu.name,
        "batch": work.batch,
        "speed_up": advice.wanted,
        "divided_s": work.divided_s,
        "overhead_s": {"again": work.again_s, "serial": work.serial_s, "gradients": work.gradients_s},
        "overhead": _finite(work.overhead),
        "ceiling": _finite(advice.ceiling),
        "gpus": advice.gpus,
        "lemma_speed_up": None if advice.gpus is None else advice.lemma_speed_up(advice.gpus),
        "fuller": {
            "gpus": advice.fuller_gpus,
            "best_gpus": advice.fuller_best,
            "steps": [_step(advice, gpus) for gpus in sorted({advice.fuller_best, *_asked(advice)})],
        },
        "servers": None
        if servers is None
        else {
            "weights_bytes": advice.model.weights_bytes,
            "bytes_per_s": servers.bytes_per_s,
            "round_s": servers.round_s,
            "lemma": servers.lemma,
            "fuller": servers.fuller,
            "fuller_round_s": servers.fuller_round_s,
        },
        "best_batch": None if advice.best_batch is None else advice.best_batch.work.batch,
        "batches": [
            {
                "batch": each.work.batch,
                "memory_bytes": each.work.memory_bytes,
                "fits": each.fits,
                "convolutions": len(each.work.workspaces_bytes),
                "with_workspace": each.with_workspace if each.fits else 0,
                "largest_workspace_bytes": max(each.work.workspaces_bytes, default=0),
                "samples_per_s": each.samples_per_s,
                "overhead": _finite(each.work.overhead),
                "ceiling": _finite(ceiling(each.work.overhead)),
                "gpus": each.gpus,
            }
            for each in advice.batches
        ],
        "notes": list(advice.notes),
    }


def _asked(advice: Advice) -> list[int]:
    counts = (advice.gpus, advice.fuller_gpus)
    return [gpus for gpus in counts if gpus is not None and gpus <= advice.work.batch]


def _step(advice: Advice, gpus: int) -> dict[str, Any]:
    gained = advice.fuller_speed_up(gpus)
    return {
        "gpus": gpus,
        "step_s": _finite(advice.model.step_s(gpus)),
        "speed_up": None if math.isnan(gained) else gained,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
