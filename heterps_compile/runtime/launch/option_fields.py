"""Fields of a dataclass that declare an option of a run each, and the checks of their values.

Left out: which there are (``run_options.py``, ``server_options.py``).
"""

from collections.abc import Iterator, Sequence
from dataclasses import field, fields
from functools import partial
from typing import Any

from heterps_compile.errors import UnknownNameError
from heterps_compile.options import Amount, Option, OptionType, Whole

SUBJECTS = "training (--train FILE.py)", "inference"
"""What a run is."""


def option(words: str, kind: OptionType, help_text: str, **more: Any) -> Any:
    """Return a field with its option, which has the name of its longest word."""
    name = words.rsplit(", ", maxsplit=1)[-1].lstrip("-").replace("-", "_")
    option = Option(name=name, words=words, type=kind, help=help_text, **more)
    return field(default=option.default, metadata={"option": option})


training_option = partial(option, subjects=SUBJECTS[:1])
"""Returns a field with an option that a run has in training alone."""


def declared(of: type[Any]) -> Iterator[tuple[str, Option]]:
    """Yield the fields that declare an option, with it."""
    for one in fields(of):
        if (option := one.metadata.get("option")) is not None:
            yield one.name, option


def check_numbers(options: Any) -> None:
    """Check the single numbers as their options declare them."""
    for name, option in declared(type(options)):
        value = getattr(options, name)
        if value is not None and isinstance(option.type, (Whole, Amount)):
            option.type.check(option.word, value)


def one_of(what: str, name: str, known: Sequence[str]) -> None:
    """Check that a name is a known one.

    Raises:
        UnknownNameError: where it is not.
    """
    if name not in known:
        raise UnknownNameError(what, name, known)
