"""Why a layer stands where it does, as a table and sentences, and as JSON.

Left out: the numbers themselves (``review/explain.py``).
"""

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

from rich.console import Console
from rich.text import Text

from heterps_compile.console import add_numbers, add_text, plain_table
from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable, shorten
from heterps_compile.schedule.readings import ONE_BATCH_ALONE
from heterps_compile.units import format_bytes, format_count, format_money, format_percent, format_seconds, rate_number

from .alike import Alike
from .explain import DeviceChoice, Explanation
from .outcome_words import Scale, decisive_document, decisive_sentence, finite, outcome_document, outcome_table

FORMAT_VERSION = 1


def print_explanation(console: Console, explained: Explanation) -> None:
    """Print where the layer stands and why, what it costs on every type, and what binds."""
    cost = explained.cost
    console.print(
        Text(
            f"{printable(explained.layer)}, {printable(explained.title or explained.kind)}, "
            f"stage {explained.stage}, on {_device(explained)}"
        )
    )
    console.print(Text(f"Why: {printable(explained.reason)}."))
    console.print(
        Text(
            f"Work of a batch: {format_count(cost.flops)}FLOP, {format_bytes(cost.moved_bytes)} moved, "
            f"{cost.flop_per_byte:.3g} FLOP/B; bound by {cost.label}: {printable(cost.reason)}."
        )
    )
    if explained.times:
        console.print(Text(f"Times of a batch: {printable(explained.times)}."))
    if explained.agreement:
        console.print(Text(f"Agreement: {printable(explained.agreement)}."))
    console.print()
    table = plain_table()
    add_text(table, "device")
    add_numbers(
        table, "compute", "data", f"{explained.currency}/M samples alone", "plan's value", "change", "samples/s"
    )
    add_text(table, "")
    for choice in explained.choices:
        table.add_row(*map(Text, _cells(explained, choice)))
    console.print(table)
    console.print()
    _print_moves(console, explained)
    if explained.reading == ONE_BATCH_ALONE:
        console.print(Text(f"Values and samples/s of plans are of {ONE_BATCH_ALONE}."))
    for sentence in explained.binding or ["no limit is near"]:
        console.print(Text(f"Binding: {printable(sentence)}."))
    if explained.alike is not None:
        for sentence in alike_sentences(explained.alike):
            console.print(Text(f"Alike: {printable(sentence)}."))


def _print_moves(console: Console, explained: Explanation) -> None:
    """Print the moves that make a plan as a table, the best first, the others each with what forbids it."""
    moves = [move for move in explained.moves if move.kind != "layer"]  # that one is in the table of devices
    possible = [(move.what, move.outcome) for move in moves if not move.outcome.fault]
    if possible:
        scale = Scale(explained.objective, explained.currency, explained.batch, explained.value)
        console.print(outcome_table(scale, console.width, "other moves", possible))
        console.print()
    for move in moves:
        if move.outcome.fault:
            console.print(Text(f"No plan: {printable(move.what)}: {printable(move.outcome.fault)}."))
    for move, decisive in explained.decisive:
        console.print(Text(f"Decides: {printable(decisive_sentence(move.what, decisive))}."))


def alike_sentences(alike: Alike) -> list[str]:
    """Return how interchangeable layers are dealt to the stages, and where the cuts among them could stand."""
    count, first, last = len(alike.layers), shorten(alike.layers[0], 40), shorten(alike.layers[-1], 40)
    dealt = ", ".join(f"{share} to stage {stage}" for stage, share in alike.shares)
    found = [
        f"these {count} layers are interchangeable ({first} to {last}); in the order in which the model reads them, "
        f"{dealt}; which of them a stage has makes no difference"
    ]
    for cut in alike.cuts:
        where = f"stage {cut.stage} could begin at {len(cut.places)} places among them"
        if len(cut.equal) > 1:
            places = ", ".join(_by(by) for by in cut.equal)
            found.append(f"{where}; {places}: {cut.reason}")
        else:
            found.append(f"{where}; {cut.reason}")
    return found


def _by(layers: int) -> str:
    return "here" if not layers else f"{abs(layers)} {'later' if layers > 0 else 'earlier'}"


def explanation_document(explained: Explanation) -> str:
    """Return the text of a JSON document; a number that is not finite is null."""
    document = {
        "format_version": FORMAT_VERSION,
        "layer": explained.layer,
        "kind": explained.kind,
        "title": explained.title or None,
        "stage": explained.stage,
        "device": explained.device,
        "reason": explained.reason,
        "reading": explained.reading or None,
        **({"agreement": explained.agreement} if explained.agreement else {}),
        "objective": {
            "name": explained.objective,
            "value": explained.value,
            "unit": OBJECTIVES[explained.objective].unit(explained.currency),
        },
        "work": {**asdict(explained.cost), "flop_per_byte": explained.cost.flop_per_byte},
        "times": explained.times or None,
        "choices": [
            {
                "device": choice.device,
                "is_chosen": choice.is_chosen,
                "compute_s": finite(choice.compute_s),
                "data_s": finite(choice.data_s),
                "price_per_million_samples_alone": finite(choice.price),
                "value": finite(choice.value),
                "throughput_samples_per_s": choice.throughput,
                "fault": choice.fault or None,
            }
            for choice in explained.choices
        ],
        "moves": [{"kind": move.kind, "what": move.what, **outcome_document(move.outcome)} for move in explained.moves],
        "decisive": [
            {"kind": move.kind, "what": move.what, "levers": decisive_document(decisive)}
            for move, decisive in explained.decisive
        ],
        "interchangeable": None if explained.alike is None else _alike_document(explained.alike),
        "binding": list(explained.binding),
        "left_out": None,  # older versions left out the parameter servers
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _alike_document(alike: Alike) -> dict[str, Any]:
    return {
        "layers": list(alike.layers),
        "shares": [{"stage": stage, "layers": share} for stage, share in alike.shares],
        "cuts": [
            {
                "stage": cut.stage,
                "places": [
                    {"later_by": by, "value": finite(value)} for by, value in zip(cut.places, cut.values, strict=True)
                ],
                "equal": list(cut.equal),
                "reason": cut.reason,
            }
            for cut in alike.cuts
        ],
    }


def _device(explained: Explanation) -> str:
    return printable(explained.device)


def _cells(explained: Explanation, choice: DeviceChoice) -> list[str]:
    objective, is_plan = OBJECTIVES[explained.objective], isfinite(choice.value)
    change = 100 * objective.change(explained.value, choice.value) if explained.value > 0 and is_plan else 0.0
    described = objective.describe(choice.value, explained.batch, explained.currency)
    return [
        printable(choice.device),
        format_seconds(choice.compute_s) if isfinite(choice.compute_s) else "-",
        format_seconds(choice.data_s) if isfinite(choice.data_s) else "-",
        format_money(choice.price) if isfinite(choice.price) else "-",
        described.removesuffix(" per million samples") if is_plan else "-",
        "" if choice.is_chosen or not is_plan else f"{'+' if change > 0 else ''}{format_percent(change)}",
        rate_number(choice.throughput) if is_plan else "-",
        "chosen" if choice.is_chosen else printable(choice.fault),
    ]
