"""What pins would cost, as a table and sentences, and as JSON.

Left out: the numbers themselves (``pin_cost.py``).
"""

import json
from math import isfinite

from rich.console import Console
from rich.text import Text

from heterps_compile.cost.objective import OBJECTIVES
from heterps_compile.escape import printable, shorten
from heterps_compile.units import counted, format_bytes, format_percent

from .outcome_words import Scale, decisive_document, decisive_sentence, outcome_document, outcome_table
from .pin_cost import PinCost

FORMAT_VERSION = 1
_SAME = 1e-9
_NAMED = 3


def print_pin_cost(console: Console, found: PinCost) -> None:
    """Print what the pins cost, both plans side by side, and what decides."""
    console.print(Text(printable(f"{pins_text(found)}: {verdict(found)}.")))
    if found.moved:
        console.print(Text(printable(f"They move {_moved(found)}.")))
    console.print()
    rows = [("the plan", found.plan), ("with the pins", found.pinned)]
    console.print(outcome_table(_scale(found), console.width, "", rows))
    console.print()
    here, there = (format_bytes(outcome.crossing_bytes) for outcome in (found.plan, found.pinned))
    console.print(Text(f"Stages receive {here} a batch from others in the plan, {there} with the pins."))
    if found.change > _SAME:
        sentence = decisive_sentence("the plan with the pins", found.decisive)
        console.print(Text(printable(f"Decides: {sentence}.")))
    if not found.is_proven_for_all_orders:
        console.print(Text(printable(f"note: {_other_orders(found)}")))
    if found.left_out:
        console.print(Text(f"note: {printable(found.left_out)}"))


def pin_cost_document(found: PinCost) -> str:
    """Return the text of a JSON document; a number that is not finite is null."""
    document = {
        "format_version": FORMAT_VERSION,
        "pins": [list(pin) for pin in found.pins],
        "moved": list(found.moved),
        "objective": {
            "name": found.objective,
            "unit": OBJECTIVES[found.objective].unit(found.currency),
        },
        "change": found.change,
        "bound": found.bound,
        "is_proven": found.is_proven,
        "all_orders": {
            "value": found.in_any_order,
            "bound": found.bound_of_all_orders if isfinite(found.bound_of_all_orders) else None,
            "is_proven": found.is_proven_for_all_orders,
        },
        "left_out": found.left_out or None,
        "plan": outcome_document(found.plan),
        "pinned": outcome_document(found.pinned),
        "decisive": decisive_document(found.decisive),
    }
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def _other_orders(found: PinCost) -> str:
    """Say what is known of plans with the pins that take the layers in another order than the plan's stages."""
    objective = OBJECTIVES[found.objective]
    kept = "both plans take the layers in the order of the plan's stages"
    better = objective.better_by(found.pinned.value, found.in_any_order)
    if better > _SAME:
        return (
            f"{kept}; another order has a plan with the pins that is {format_percent(100 * better)} {objective.better} "
            "than the one shown, which compiling again with the pins finds"
        )
    return f"{kept}; another order with a plan that is {objective.better} was not ruled out"


def pins_text(found: PinCost) -> str:
    """Return the pins as they were asked for."""
    return "With " + ", ".join(f"{pattern}={device}" for pattern, device in found.pins)


def verdict(found: PinCost) -> str:
    """Say how much worse the plan is with the pins, and how sure that is."""
    objective = OBJECTIVES[found.objective]
    if found.change < -_SAME:
        better = format_percent(-100 * found.change)
        return f"a plan exists that is {better} {objective.better} than the committed one; compile again with the pins"
    if found.change <= _SAME:
        return "the plan keeps to the pins already" if not found.moved else "a plan with the pins is worth the same"
    worse = f"the plan becomes {format_percent(100 * found.change)} worse"
    if found.is_proven:
        order = "" if found.is_proven_for_all_orders else " in this order of the layers"
        return f"{worse}, and no plan with the pins{order} is {objective.better}"
    least = max(0.0, -objective.better_by(found.plan.value, found.bound))
    why = "the bound leaves out the servers" if found.left_out else "the search ended before its proof"
    return f"{worse}, at least {format_percent(100 * least)} ({why})"


def _scale(found: PinCost) -> Scale:
    return Scale(found.objective, found.currency, found.batch, found.plan.value)


def _moved(found: PinCost) -> str:
    named = ", ".join(shorten(name, 40) for name in found.moved[:_NAMED])
    more = f" and {len(found.moved) - _NAMED} more" if len(found.moved) > _NAMED else ""
    return f"{counted(len(found.moved), 'layer')} of it: {named}{more}"
