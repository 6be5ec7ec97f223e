"""Fields of a dataclass that declare an option of a run each, types of such options, and the checks of their values.

Left out: which there are (``run_options.py``, ``server_options.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from heterps_compile.errors import InputError
from heterps_compile.escape import short
from heterps_compile.options import Amount, Option, OptionType, Text, Whole

SUBJECTS = "training (--train FILE.py)", "inference"
"""What a run is."""


class FilePath(Text):
    """The path of a file or a folder."""


@dataclass(frozen=True, slots=True)
class CountOrWord:
    """A whole number of 1 or more, or one word."""

    word: str

    def read(self, text: str) -> int | str:
        """Return the number or the word."""
        if text == self.word:
            return text
        try:
            return Whole().read(text)
        except InputError as error:
            raise InputError(f"{error}, nor {self.word!r}") from error

    def check(self, what: str, value: object) -> None:
        """Check that a value is such a number or the word."""
        if value != self.word:
            Whole().check(what, value)


@dataclass(frozen=True, slots=True)
class Speeds:
    """Speeds of replicas stage by stage, such as ``2,1;1``."""

    def read(self, text: str) -> tuple[tuple[float, ...], ...]:
        """Return the speeds of every stage's replicas."""
        try:
            return tuple(tuple(map(float, part.split(","))) for part in text.split(";"))
        except ValueError as error:
            raise InputError(f"{short(text)} is not a list of speeds for every stage, such as '2,1;1'") from error

    def check(self, what: str, value: object) -> None:
        """Check that values are positive numbers."""
        if not isinstance(value, tuple) or not all(isinstance(of_stage, tuple) for of_stage in value):
            raise InputError(f"{what} is {short(value)}; expected a list of speeds for every stage")
        for number in (number for of_stage in value for number in of_stage):
            Amount(above_zero=True).check(what, number)


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


def check_values(options: Any) -> None:
    """Check the values of options as their types declare them.

    Raises:
        HeterpsError: for the first value that its option does not have.
    """
    for name, option in declared(type(options)):
        value, check = getattr(options, name), getattr(option.type, "check", None)
        if check is not None and not (value is None and option.default is None):
            check(option.word, value)
