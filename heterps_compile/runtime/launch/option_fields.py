"""Fields of a dataclass that declare an option of a run each, and the checks of their values.

Left out: which there are (``run_options.py``, ``server_options.py``).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, fields, replace
from typing import Any

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.options import Amount, Option, OptionType, Whole

SUBJECTS = "training (--train FILE.py)", "inference"
"""What a run is."""


def option(words: str, kind: OptionType, help_text: str, **more: Any) -> Any:
    """Return a field with its option; ``name`` is what it is asked for by, where the field has another name."""
    option = Option(name=more.pop("name", ""), words=words, type=kind, help=help_text, **more)
    return field(default=option.default, metadata={"option": option})


def declared(of: type[Any]) -> Iterator[tuple[str, Option]]:
    """Yield the fields that declare an option, with it."""
    for one in fields(of):
        if (option := one.metadata.get("option")) is not None:
            yield one.name, replace(option, name=option.name or one.name)


def check_numbers(options: Any) -> None:
    """Check the single numbers as their options declare them."""
    for name, option in declared(type(options)):
        value = getattr(options, name)
        if value is not None and isinstance(option.type, Whole):
            at_least(option.word, value, option.type.least)
        elif value is not None and isinstance(option.type, Amount):
            if option.type.above_zero:
                positive(option.word, value)
            elif not (math.isfinite(value) and value >= 0):
                raise InputError(f"{option.word} is {value}; it must be zero or more and finite")


def at_least(word: str, number: int, least: int) -> None:
    """Check that a number is no less than the least.

    Raises:
        InputError: where it is.
    """
    if number < least:
        raise InputError(f"{word} is {number}; it must be {least} or more")


def positive(word: str, number: float) -> None:
    """Check that a number is above zero and finite.

    Raises:
        InputError: where it is not.
    """
    if not (math.isfinite(number) and number > 0):
        raise InputError(f"{word} is {number}; it must be above zero and finite")


def one_of(what: str, name: str, known: Sequence[str]) -> None:
    """Check that a name is a known one.

    Raises:
        UnknownNameError: where it is not.
    """
    if name not in known:
        raise UnknownNameError(what, name, known)
