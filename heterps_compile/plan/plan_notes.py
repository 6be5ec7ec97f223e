"""Notes on a plan, and those of them that are warnings, by the words that each contains.

A warning says that outputs or gradients may be others than the user expects, or that a run fails. The default output
prints warnings in full, and at most three of the other notes.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .plan import Plan

NOT_VERIFIED = "not verified"
"""The beginning of a note on outputs that were not compared, and why."""

NOT_SAVED = "cannot save its stages"
NOT_SCORED = "this folder trains and cannot score"
NOT_TRAINED = "do not train"
NO_LONGER = "the plan does not hold any more"
OTHER_MODE = "the model was given in"
OTHER_OUTPUTS = "outputs differ from those of one module"
NO_ROOM = "it does not fit"
NO_ROOM_FOR_TABLES = "they do not fit"
RUN_FAILS = "and a run fails"
RUN_REFUSES = "a training run refuses a replica that has none"

_WARNINGS = (
    NOT_VERIFIED,
    NOT_SAVED,
    NOT_SCORED,
    NOT_TRAINED,
    NO_LONGER,
    OTHER_MODE,
    OTHER_OUTPUTS,
    NO_ROOM,
    NO_ROOM_FOR_TABLES,
    RUN_FAILS,
    RUN_REFUSES,
)


def notes_of(plan: "Plan") -> list[str]:
    """Make every fallback, unused device and replicated parameter of a plan, and a plan that saves money."""
    found = list(plan.notes)
    if plan.unused_devices:
        found.append(f"no stage uses {', '.join(map(repr, plan.unused_devices))}")
    if plan.replicated:
        more = f" and {len(plan.replicated) - 3} more" if len(plan.replicated) > 3 else ""
        found.append(f"several stages hold {', '.join(map(repr, plan.replicated[:3]))}{more}")
    if plan.other is not None:
        other = plan.other.sentence(plan.price_per_hour, plan.valued.throughput_samples_per_s, plan.currency)
        found += [other] if other else []
    return found


def is_warning(note: str) -> bool:
    """Check whether a note is a warning."""
    return any(words in note for words in _WARNINGS)
