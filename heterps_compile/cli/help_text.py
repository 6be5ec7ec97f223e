r"""Help texts in parts, options of ``compile`` in groups, and ``-q`` on every command.

A block is a paragraph whose lines click keeps (it begins with ``\b``); its first line is its title, such as
``Examples:``.
"""

import inspect
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

import click

_KEPT = "\b\n"  # click's mark of a paragraph whose lines are kept
_CODE = re.compile(r"(\d+) ([^,;]+(?:, [^\d,;][^,;]*)*)")  # "1 changed, or no plan to read"
_ALL = "heterps_compile.help_all"

Groups = Mapping[str, tuple[str, ...]]
"""Names of options by the title of their group, in the order of the help."""


@dataclass(frozen=True, slots=True)
class HelpText:
    """A command's help in parts.

    Attributes:
        paragraphs: Prose, one line each.
        blocks: Lines by their title, such as ``Examples``.
        exit_codes: What every exit code means.
    """

    paragraphs: tuple[str, ...]
    blocks: dict[str, tuple[str, ...]]
    exit_codes: dict[int, str]


def help_text(command: click.Command) -> HelpText:
    """Take a command's help apart."""
    paragraphs: list[str] = []
    blocks: dict[str, tuple[str, ...]] = {}
    for part in inspect.cleandoc(command.help or "").split("\n\n"):
        if part.startswith(_KEPT):
            title, *lines = part.removeprefix(_KEPT).splitlines()
            blocks[title.strip().removesuffix(":")] = tuple(line.strip() for line in lines)
        else:
            paragraphs.append(" ".join(part.split()))
    _, _, codes = (command.epilog or "").partition("Exit codes: ")
    meanings = {int(code): meaning for code, meaning in _CODE.findall(codes.strip().removesuffix("."))}
    return HelpText(tuple(paragraphs), blocks, meanings)


def brief(command: click.Command) -> str:
    """Return what a command does in a few words: its first sentence, up to a colon."""
    first = help_text(command).paragraphs[0]
    return first.partition(": ")[0].removesuffix(".")


def contexts(root: click.Context) -> Iterator[click.Context]:
    """Yield the context of a command and of every command below it."""
    yield root
    if isinstance(root.command, click.Group):
        for name, command in sorted(root.command.commands.items()):
            yield from contexts(click.Context(command, info_name=name, parent=root))


class GroupedCommand(click.Command):
    """A command with its options in groups; those of no group are shown by ``--help-all`` alone.

    Args:
        groups: The options of the short help, by group.
    """

    def __init__(self, *arguments: Any, groups: Groups, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.groups = groups
        help_all = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_print_help_all, help=_HELP_ALL
        )
        self.params.append(help_all)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group, then the rare options if all are requested."""
        options = {param.name: param for param in self.get_params(ctx) if isinstance(param, click.Option)}
        sections = [(title, [options.pop(name) for name in names]) for title, names in self.groups.items()]
        helps = [options.pop(name) for name, option in list(options.items()) if option.opts[-1].startswith("--help")]
        if ctx.meta.get(_ALL):
            sections.append(("Rare", list(options.values())))
        for title, shown in (*sections, ("Help", helps)):
            with formatter.section(title):
                formatter.write_dl([record for option in shown if (record := option.get_help_record(ctx))])


_HELP_ALL = "Show the rare options too."


def _print_help_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def add_quiet(command: click.Command) -> None:
    """Add ``-q`` to a command, and to every command below it, that has none of its own."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            add_quiet(inner)
    elif not any("-q" in param.opts for param in command.params):
        command.params.append(
            click.Option(
                ["-q", "--quiet"],
                is_flag=True,
                expose_value=False,
                callback=_silence,
                help="Print nothing but errors; the exit code has the result.",
            )
        )


def _silence(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.with_resource(_no_output())


@contextmanager
def _no_output() -> Iterator[None]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield
