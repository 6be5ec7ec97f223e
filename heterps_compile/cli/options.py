"""What options take beyond click's own types: amounts and assignments, as click callbacks.

Left out: checks that need a model or a pool (the library makes them).
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import click

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., object])


def of_today(command: Command) -> Command:
    """Add the options of a command that estimates a plan anew: its pool, its profiles, whether it may be stale."""
    for option in (
        click.option("--allow-stale", is_flag=True, help="Go on where the plan was made from something else."),
        click.option("--profile", metavar="[TYPE=]FILE,...", help="Measured times of layers, as compile takes them."),
        click.option("--cluster", metavar="NAME|FILE", help="Pool of today.  [default: the plan's, where built in]"),
    ):
        command = option(command)
    return command


def open_sizes(help_text: str = "Number of an open dimension; may be repeated.") -> Callable[[Command], Command]:
    """Add ``--shape``, the numbers of dimensions that a model leaves open."""
    return click.option("--shape", "shapes", metavar="NAME=N", callback=sizes, multiple=True, help=help_text)


def amount(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Read a finite number of zero or more; the option's metavar tells its unit."""
    return _read_amount(text, is_enough=lambda number: number >= 0, least="zero or more")


def positive_amount(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Read a finite number above zero."""
    return _read_amount(text, is_enough=lambda number: number > 0, least="above zero")


def _read_amount(text: str | None, is_enough: Callable[[float], bool], least: str) -> float | None:
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no number; give a plain one such as 30.") from error
    if not (math.isfinite(number) and is_enough(number)):
        raise click.BadParameter(f"{text!r} must be {least} and finite.")
    return number


def sizes(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    """Read ``NAME=N`` any number of times; a name may have a ``=`` in it."""
    return _collect(_read_size(text) for text in texts)


def _read_size(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise click.BadParameter(f"{text!r} is not NAME=N with a number of 1 or more, such as seq=128.")
    return name, int(number)


def pins(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Read ``PATTERN=DEVICE`` any number of times; a pattern may have a ``=`` in it."""
    return _collect(_read_pin(text) for text in texts)


def pairs(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> list[tuple[str, str]]:
    """Read ``PATTERN=DEVICE`` any number of times, the same pattern with several devices too."""
    return [_read_pin(text) for text in texts]


def _read_pin(text: str) -> tuple[str, str]:
    pattern, _, device = text.rpartition("=")
    if not pattern or not device:
        raise click.BadParameter(f"{text!r} is not PATTERN=DEVICE, such as embedding=cpu-core.")
    return pattern, device


def _collect(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise click.BadParameter(f"{name!r} is given twice, as {found[name]!r} and as {value!r}.")
    return found
