"""What an option of a command is: its words, how it is read, its help, and what it may be given with.

A command works on a *subject*: an ONNX model, a workload file, a plan. Every option names the subjects that it means
something for, the options that it needs and those that it contradicts. :class:`Asked` holds one call's values: it
refuses what was given and means nothing for the subject, gives out no value that is not declared for it, and knows
which values were read. So an option that nobody reads cannot be accepted.

Left out: the options themselves (``plan/command_options.py``, ``runtime/launch/run_options.py``), and click
(``cli/options.py``).
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from heterps_compile.errors import InputError, OptionError, UnknownNameError
from heterps_compile.escape import short
from heterps_compile.units import in_words

T = TypeVar("T")

MOST_WHOLE = 2**31 - 1
"""Of a whole number, where an option names no other limit: products of a few still fit 64 bits."""


class OptionType(Protocol):
    """How an option is written.

    A type may have ``check(what, value)`` too, which refuses values given in Python that text could not express.
    """

    def read(self, text: str) -> Any:
        """Return the value that is meant.

        Raises:
            InputError: where the text means none.
        """
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """Any text."""

    def read(self, text: str) -> str:
        """Return the text."""
        return text

    def check(self, what: str, value: object) -> None:
        """Check that a value is text."""
        _check_is(what, value, str, "text")


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some names."""

    names: tuple[str, ...]

    def read(self, text: str) -> str:
        """Return the name."""
        if text not in self.names:
            raise InputError(f"{text!r} is not one of {', '.join(self.names)}")
        return text

    def check(self, what: str, value: object) -> None:
        """Check that a value is one of the names."""
        _check_is(what, value, str, f"one of {', '.join(self.names)}")
        if value not in self.names:
            raise UnknownNameError(f"value of {what}", str(value), self.names)


@dataclass(frozen=True, slots=True)
class Flag:
    """On where it is given."""

    def read(self, text: str) -> bool:
        """Return True."""
        return bool(text)

    def check(self, what: str, value: object) -> None:
        """Check that a value is True or False."""
        _check_is(what, value, bool, "True or False")


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number within limits."""

    least: int = 1
    most: int = MOST_WHOLE

    def read(self, text: str) -> int:
        """Return the number."""
        try:
            number = int(text) if len(text) < _LONGEST else self.most + 1
        except ValueError:
            number = self.least - 1
        if not is_whole(number, self.least, self.most):
            raise InputError(f"{short(text)} is no whole number from {self.least} to {self.most}")
        return number

    def check(self, what: str, value: object) -> None:
        """Check that a value is such a number."""
        if not is_whole(value, self.least, self.most):
            raise InputError(f"{what} is {short(value)}; expected a whole number from {self.least} to {self.most}")


SEED = Whole(0, 2**63 - 1)
"""Of chance: torch takes no greater one."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A finite number, zero or more, or above zero; the option's metavar tells its unit.

    Attributes:
        above_zero: Whether zero is too small.
        most: The largest number.
        below: The first number that is too large.
    """

    above_zero: bool = False
    most: float = sys.float_info.max
    below: float = math.inf

    def read(self, text: str) -> float:
        """Return the number."""
        try:
            number = float(text)
        except ValueError as error:
            raise InputError(f"{short(text)} is no number; give a plain one such as 30") from error
        self._check(short(text), number)
        return number

    def check(self, what: str, value: object) -> None:
        """Check that a value is such a number."""
        try:
            number = math.nan if isinstance(value, (bool, str)) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        self._check(f"{what} is {short(value)}; it", number)

    def _check(self, what: str, number: float) -> None:
        is_small = 0 <= number <= self.most and number < self.below
        if not is_small or (self.above_zero and number == 0):
            least = "above zero" if self.above_zero else "zero or more"
            most = "finite" if self.most == sys.float_info.max else f"{self.most:.10g} or less"
            raise InputError(
                f"{what} must be {least} and {most if self.below == math.inf else f'below {self.below:g}'}"
            )


@dataclass(frozen=True, slots=True)
class Percent:
    """A share, such as ``1%``."""

    def read(self, text: str) -> float:
        """Return the share, 0.01 for ``1%``."""
        match = _PERCENT.fullmatch(text)
        if match is None:
            raise InputError(f"{short(text)} is no share in percent; give one such as 1%")
        return float(match[1]) / 100


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes with their unit, such as ``64 MiB``."""

    def read(self, text: str) -> int:
        """Return the bytes."""
        from heterps_compile.units import parse_quantity  # noqa: PLC0415 - only where it is given

        return int(parse_quantity(text, "bytes"))

    def check(self, what: str, value: object) -> None:
        """Check that a value is a number of bytes."""
        Whole(most=2**63 - 1).check(what, value)


@dataclass(frozen=True, slots=True)
class Wholes:
    """Whole numbers with commas between, ``least`` or more each, such as ``2,1``; ``what`` they are in messages."""

    what: str
    example: str
    count: int = 10_000

    def read(self, text: str) -> tuple[int, ...]:
        """Return the numbers in their order."""
        parts = [part.strip() for part in text.split(",")]
        if not all(map(_is_count, parts)):
            raise InputError(f"{short(text)} is not a list of {self.what} of 1 or more, such as {self.example}")
        if len(parts) > self.count:
            raise InputError(f"{len(parts)} {self.what} are given; give {self.count} or fewer")
        return tuple(map(int, parts))

    def check(self, what: str, value: Any) -> None:
        """Check that values are such numbers."""
        _check_is(what, value, tuple, f"a list of {self.what}")
        for number in value:
            Whole().check(what, number)


@dataclass(frozen=True, slots=True)
class CountRange:
    """``MIN:MAX``, or ``N`` for N:N."""

    def read(self, text: str) -> tuple[int, int]:
        """Return the least and the most."""
        least, _, most = text.partition(":")
        most = most if ":" in text else least
        if not (_is_count(least) and _is_count(most) and int(least) <= int(most)):
            raise InputError(f"{short(text)} is not MIN:MAX with 1 <= MIN <= MAX <= {MOST_WHOLE}, such as 1:4")
        return int(least), int(most)


@dataclass(frozen=True, slots=True)
class Words:
    """Words with commas between, each once."""

    def read(self, text: str) -> tuple[str, ...]:
        """Return the words in their order."""
        return tuple(dict.fromkeys(part.strip() for part in text.split(",")))

    def check(self, what: str, value: Any) -> None:
        """Check that values are words."""
        _check_is(what, value, tuple, "a list of words")
        for word in value:
            _check_is(what, word, str, "words")


@dataclass(frozen=True, slots=True)
class Repeated:
    """Text that may be given any number of times."""

    def read(self, text: str) -> str:
        """Return one of the texts."""
        return text

    def collect(self, texts: Sequence[str]) -> Any:
        """Return all that were written."""
        return tuple(map(self.read, texts))


@dataclass(frozen=True, slots=True)
class Pairs(Repeated):
    """``PATTERN=DEVICE`` any number of times, the same pattern with several devices too; a pattern may have a ``=``."""

    def collect(self, texts: Sequence[str]) -> Any:
        """Return the pairs."""
        return [_read_pair(text) for text in texts]


@dataclass(frozen=True, slots=True)
class Pins(Repeated):
    """``PATTERN=DEVICE`` any number of times, every pattern with one device."""

    def collect(self, texts: Sequence[str]) -> Any:
        """Return the device of every pattern."""
        return one_of_each(_read_pair(text) for text in texts)


@dataclass(frozen=True, slots=True)
class Sizes(Repeated):
    """``NAME=N`` any number of times; a name may have a ``=``."""

    def collect(self, texts: Sequence[str]) -> Any:
        """Return the number of every name."""
        return one_of_each(_read_size(text) for text in texts)


@dataclass(frozen=True, slots=True)
class NamedTexts(Repeated):
    """``NAME=TEXT`` any number of times, the same name with several texts too; a text may have a ``=``."""

    form: str
    example: str

    def collect(self, texts: Sequence[str]) -> Any:
        """Return the pairs in their order."""
        pairs = []
        for text in texts:
            name, _, value = text.partition("=")
            if not name or not value:
                raise InputError(f"{short(text)} is not {self.form}, such as {self.example}")
            pairs.append((name, value))
        return tuple(pairs)


def _check_is(what: str, value: object, kind: type, expected: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{what} is {short(value)}; expected {expected}")


def _read_pair(text: str) -> tuple[str, str]:
    pattern, _, device = text.rpartition("=")
    if not pattern or not device:
        raise InputError(f"{short(text)} is not PATTERN=DEVICE, such as embedding=cpu-core")
    return pattern, device


def _read_size(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    is_number = number.isascii() and number.isdigit() and len(number) < _LONGEST
    if not name or not is_number or not 1 <= int(number) <= MOST_WHOLE:
        raise InputError(f"{short(text)} is not NAME=N with a number from 1 to {MOST_WHOLE}, such as seq=128")
    return name, int(number)


def one_of_each(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return pairs as a mapping; raise InputError where a name has two values."""
    found: dict[str, T] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise InputError(f"{name!r} is given twice, as {found[name]!r} and as {value!r}")
    return found


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < _LONGEST and 1 <= int(text) <= MOST_WHOLE


_LONGEST = 40  # digits of a number that is worth reading
_PERCENT = re.compile(r"\s*(\d{1,9}\.?\d{0,9}|\.\d{1,9})\s*%\s*", re.ASCII)


def is_whole(value: object, least: int = 1, most: int = MOST_WHOLE) -> bool:
    """Tell whether a value is a whole number within limits."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of one command.

    Attributes:
        name: Of its value, in Python too.
        words: On the command line, with commas between; "" where there is none.
        help: What it is, in a line.
        type: How it is written.
        metavar: What stands for its value in the help.
        default: Its value where it is not given.
        default_words: What the help says of a default that is no value.
        subjects: What it means something for; empty for everything that the command takes.
        needs: Names of options without which it means nothing.
        needs_one: Names of options of which one at least must be there, or it means nothing.
        against: Names of options that contradict it.
        required: Whether the command line must have it.
    """

    name: str
    words: str
    help: str
    type: OptionType = field(default_factory=Text)
    metavar: str = ""
    default: Any = None
    default_words: str = ""
    subjects: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_one: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    required: bool = False

    @property
    def default_text(self) -> str:
        """Return its default as the help says it; "" where there is none to say."""
        if self.default is None or self.default in ((), {}) or isinstance(self.type, Flag):
            return ""
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        if isinstance(self.type, Percent):
            return f"{100 * self.default:g}%"
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def word(self) -> str:
        """Return the word that messages call it by."""
        return self.words.split(", ")[0]


@dataclass(frozen=True, slots=True)
class Command:
    """A command's options.

    Attributes:
        name: As on the command line.
        subjects: What it can be given, in words: ``"an ONNX model"``.
        options: In the order of the help.
    """

    name: str
    subjects: tuple[str, ...]
    options: tuple[Option, ...]

    def option(self, name: str) -> Option:
        """Return the option of a name."""
        return next(option for option in self.options if option.name == name)

    def honours(self, option: Option, subject: str) -> bool:
        """Whether an option means something for a subject."""
        return not option.subjects or subject in option.subjects

    def refuse(
        self,
        values: Mapping[str, Any],
        given: Iterable[str],
        subject: str,
        *,
        spelt: Callable[[Option], str] = lambda option: option.word,
    ) -> None:
        """Refuse the first option that was given and means nothing.

        Args:
            values: Of all options.
            given: Names of the options that the user gave.
            subject: What the command works on: one of ``subjects``.
            spelt: What the user wrote for an option.

        Raises:
            OptionError: names the option, the subject, and what takes it.
        """
        assert subject in self.subjects, subject  # noqa: S101 - a caller's mistake
        names = set(given)
        for option in self.options:
            if option.name not in names:
                continue
            if not self.honours(option, subject):
                takers = in_words([name for name in option.subjects if name in self.subjects])
                raise OptionError(f"{spelt(option)} is for {takers}, and means nothing for {subject}; leave it out")
            for other in map(self.option, option.needs):
                if not values.get(other.name):
                    lack = f"{spelt(other)}; give {spelt(other)} {other.metavar}".rstrip()
                    raise OptionError(f"{spelt(option)} means nothing without {lack} too, or leave {spelt(option)} out")
            if option.needs_one and not any(values.get(other) for other in option.needs_one):
                others = " or ".join(f"{spelt(o)} {o.metavar}".rstrip() for o in map(self.option, option.needs_one))
                raise OptionError(f"{spelt(option)} means nothing without {others}; give one too, or leave it out")
            for other in map(self.option, option.against):
                if other.name in names and self.honours(other, subject):
                    raise OptionError(f"{spelt(option)} and {spelt(other)} contradict each other; leave one out")


class Asked:
    """The values of one call of a command, for one subject.

    Attributes:
        command: Whose options they are.
        subject: What the command works on.
        given: Names of the options that the user gave.
    """

    def __init__(self, command: Command, values: Mapping[str, Any], given: Iterable[str], subject: str) -> None:
        """Refuse what was given and means nothing for the subject.

        Raises:
            OptionError: names the option, the subject, and what takes it.
        """
        self.command, self.subject, self.given = command, subject, frozenset(given)
        self._values, self._read = dict(values), set[str]()
        command.refuse(values, self.given, subject)

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option that is declared for the subject."""
        option = self.command.option(name)
        assert self.command.honours(option, self.subject), f"{name} is not declared for {self.subject}"  # noqa: S101
        self._read.add(name)
        return self._values[name]

    def some(self, *names: str) -> dict[str, Any]:
        """Return the values of some options by name; what the command lacks for the subject is left out."""
        known = {option.name for option in self.command.options if self.command.honours(option, self.subject)}
        return {name: self[name] for name in names if name in known}

    @property
    def unread(self) -> set[str]:
        """Return the names of options that were given and that nobody has read."""
        return set(self.given) - self._read
