r"""``heterps-compile man [COMMAND]``: a command's help as a manual page, made from the command itself.

A page says what ``--help`` says, in the sections that manual pages have::

    what the help text has                    section
    ----------------------------------------  ----------------------
    first sentence                            NAME
    paragraphs                                DESCRIPTION
    options                                   OPTIONS
    a block "Files:", "Environment:", ...     FILES, ENVIRONMENT, ...
    "Exit codes: 0 done, 1 ...", the epilog   EXIT STATUS
    a block "Examples:"                       EXAMPLES

A block is a paragraph whose lines click keeps (it begins with ``\b``), the first of which is its title.

click writes help and no manual pages: without this ``man heterps-compile-diff``, apropos and EXIT STATUS were lost.

Left out: pages kept as files in the repository, which would be another place to forget an option in.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from heterps_compile.errors import InputError, UnknownNameError
from heterps_compile.packages import __version__

from .completion import PROGRAM
from .output import printing

_KEPT = "\b\n"  # click's mark of a paragraph whose lines are kept
_EXAMPLES = "Examples"
_CODE = re.compile(r"(\d+) ([^,;]+(?:, [^\d,;][^,;]*)*)")  # "1 changed, or no plan to read"


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


def page_name(context: click.Context) -> str:
    """Return a page's name, such as ``heterps-compile-clusters-show``."""
    return context.command_path.replace(" ", "-")


def manual_page(context: click.Context) -> str:
    """Return the page of a command in roff, for ``man``."""
    command, text, name = context.command, help_text(context.command), page_name(context)
    usage = command.collect_usage_pieces(context)
    if command is context.find_root().command:
        usage = ["[OPTIONS] MODEL.onnx |", "COMMAND [ARGS]..."]
    lines = [f'.TH "{_roff(name.upper())}" 1 "" "{PROGRAM} {__version__}" "User Commands"', ".SH NAME"]
    lines += [rf"{_roff(name)} \- {_roff(brief(command))}"]
    lines += [".SH SYNOPSIS", rf"\fB{_roff(context.command_path)}\fP {_roff(' '.join(usage))}", ".SH DESCRIPTION"]
    lines += _joined(".PP", [_roff(paragraph) for paragraph in text.paragraphs])
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for inner, below in sorted(command.commands.items()):
            lines += [".TP", rf"\fB{_roff(inner)}\fP", _roff(brief(below))]
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    lines.append(".SH OPTIONS")
    for record in filter(None, (option.get_help_record(context) for option in options)):
        lines += [".TP", rf"\fB{_roff(record[0])}\fP", _roff(record[1])]
    for block in sorted(text.blocks.keys() - {_EXAMPLES}):
        lines += _block(block, text)
    lines.append(".SH EXIT STATUS")
    for code, meaning in text.exit_codes.items():
        lines += [".TP", rf"\fB{code}\fP", _roff(meaning)]
    lines += _block(_EXAMPLES, text)
    others = [page_name(other) for other in contexts(context.find_root()) if other.command is not command]
    lines += [".SH SEE ALSO", ", ".join(rf"\fB{_roff(other)}\fP(1)" for other in others)]
    return "\n".join(lines) + "\n"


def _block(title: str, text: HelpText) -> list[str]:
    kept = text.blocks.get(title, ())
    return [f".SH {title.upper()}", ".nf", *map(_roff, kept), ".fi"] if kept else []


def _joined(between: str, parts: list[str]) -> Iterator[str]:
    for place, part in enumerate(parts):
        yield from ([between, part] if place else [part])


def _roff(text: str) -> str:
    """Escape a line of text: a dash stays one, a backslash too, and no dot or quote at the start is a request."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return rf"\&{escaped}" if escaped[:1] in (".", "'") else escaped


@click.command("man")
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.option("-o", "--output", metavar="DIR", help="Write the pages of all commands there, one file each.")
@click.pass_context
def man(ctx: click.Context, words: tuple[str, ...], output: str | None) -> None:
    """Print the manual page of a command, in the language of the program man.

    COMMAND is one or more words, such as diff or clusters show; none stands for the page of heterps-compile itself.

    \b
    Files:
      DIR/heterps-compile*.1  the pages, with -o DIR; DIR is made

    \b
    Examples:
      heterps-compile man | man -l -
      heterps-compile man clusters show | man -l -
      heterps-compile man -o ~/.local/share/man/man1
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    pages = {page_name(context): context for context in contexts(ctx.find_root())}
    if output is None:
        name = "-".join((PROGRAM, *words))
        if name not in pages:
            raise UnknownNameError("command", " ".join(words), (page.removeprefix(f"{PROGRAM}-") for page in pages))
        with printing("the page"):
            click.echo(manual_page(pages[name]), nl=False)
        return
    if words:
        raise click.UsageError("-o writes the pages of all commands; name none.")
    try:
        Path(output).mkdir(parents=True, exist_ok=True)
        for name, context in pages.items():
            Path(output, f"{name}.1").write_text(manual_page(context), "utf-8")
    except OSError as error:
        raise InputError(f"cannot write the pages to {output!r}: {error.strerror}") from error
