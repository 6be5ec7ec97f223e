"""Notes on a plan, and those of them that are warnings, by the words that each contains.

A warning says that outputs or gradients may be others than the user expects, or that a run fails. The default output
prints warnings in full, and at most three of the other notes.
"""

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


def is_warning(note: str) -> bool:
    """Check whether a note is a warning."""
    return any(words in note for words in _WARNINGS)
