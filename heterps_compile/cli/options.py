"""Options as click has them: made from their declarations, and handed to a command as one value.

Left out: what an option is (``heterps_compile.options``) and which there are (``plan/command_options.py``,
``runtime/launch/run_options.py``).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from heterps_compile.errors import HeterpsError, OptionError
from heterps_compile.options import Asked, Choice, Command, Flag, Option, OptionType, Repeated
from heterps_compile.plan.command_options import COMPILE

from .output import telling_defaults

F = TypeVar("F", bound=Callable[..., Any])


def takes(command: Command) -> Callable[[F], F]:
    """Add the declared options of a command to its function."""

    def add(function: F) -> F:
        for option in reversed(command.options):
            function = click_option(option)(function)
        return function

    return add


def click_option(option: Option) -> Callable[[F], F]:
    """Return the click decorator of an option."""
    words, help_text = option.words.split(", "), option.help
    if option.default_words or option.default_text:
        help_text += f"  [default: {option.default_words or option.default_text}]"
    kind = option.type
    if isinstance(kind, Flag):
        return click.option(*words, option.name, is_flag=True, help=help_text)
    if isinstance(kind, Choice):
        return click.option(*words, option.name, type=click.Choice(kind.names), default=option.default, help=help_text)
    is_repeated = isinstance(kind, Repeated)
    return click.option(
        *words,
        option.name,
        metavar=option.metavar,
        multiple=is_repeated,
        required=option.required,
        callback=_reader(kind, option.default),
        help=help_text,
    )


def _reader(kind: OptionType, default: Any) -> Any:
    """Return the click callback that reads what was written, and gives the default where nothing was."""

    def read(_ctx: click.Context, _param: click.Parameter, written: Any) -> Any:
        if not written and (written is None or isinstance(kind, Repeated)):
            return default
        try:
            return kind.collect(written) if isinstance(kind, Repeated) else kind.read(written)
        except HeterpsError as error:
            raise click.BadParameter(f"{error}.") from error

    return read


def given_names(ctx: click.Context) -> set[str]:
    """Return the names of the parameters that the user gave."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    return {name for name, source in sources.items() if source not in (None, ParameterSource.DEFAULT)}


@contextmanager
def asked_of(ctx: click.Context, command: Command, subject: str) -> Iterator[Asked]:
    """Yield the values of a command's options for a subject; what was given must have been read in the block.

    Raises:
        UsageError: where an option was given that means nothing for the subject.
    """
    names = {option.name for option in command.options}
    try:
        asked = Asked(command, {name: ctx.params[name] for name in names}, given_names(ctx) & names, subject)
        with nullcontext() if command is COMPILE else telling_defaults():  # compile has them in its table
            yield asked
    except OptionError as error:
        raise click.UsageError(f"{error}.") from error
    assert not asked.unread, f"{command.name} read none of {sorted(asked.unread)}"  # noqa: S101 - else dropped in silence
