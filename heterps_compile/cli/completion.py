"""``heterps-compile completion SHELL``: the script that completes words of the command line in bash, zsh or fish.

The script calls the command with the words typed so far; only click is imported to answer, and what lists the names
that are asked for (pools, methods): never torch or onnx. What an option takes is known from its name or its metavar,
so that a new command completes without a word here.

The scripts are click's own; ours is what completes after an option: names of pools and methods, files, folders.

Left out: names inside of models and plans; they are data, and the shell would run what it completes.
"""

from collections.abc import Callable, Iterable
from functools import partial

import click
from click.shell_completion import CompletionItem, ShellComplete, get_completion_class

PROGRAM = "heterps-compile"
VARIABLE = "_HETERPS_COMPILE_COMPLETE"  # click reads it
SHELLS = ("bash", "zsh", "fish")


def _pools() -> Iterable[str]:
    from heterps_compile.cluster.load import builtin_names  # noqa: PLC0415 - pydantic

    return builtin_names()


def _methods() -> Iterable[str]:
    from heterps_compile.passes.placement.methods import METHODS  # noqa: PLC0415 - numpy

    return METHODS


def _passes() -> Iterable[str]:
    from heterps_compile.passes.pipeline import DEFAULT  # noqa: PLC0415 - numpy

    return [step.name for step in DEFAULT]


def _schedules() -> Iterable[str]:
    from heterps_compile.schedule.names import SCHEDULES  # noqa: PLC0415 - only when asked for

    return SCHEDULES


def _criteria() -> Iterable[str]:
    from heterps_compile.plan_diff.fail_on import KINDS  # noqa: PLC0415 - as above
    from heterps_compile.plan_diff.numbers import NUMBERS  # noqa: PLC0415

    return (*KINDS, *NUMBERS)


def _backends() -> Iterable[str]:
    from heterps_compile.backends.find import BACKENDS  # noqa: PLC0415 - only when asked for

    return BACKENDS


def _gpus() -> Iterable[str]:
    from heterps_compile.offers.as_device import known_gpus  # noqa: PLC0415 - pydantic

    return known_gpus()


def _offered(what: str) -> Iterable[str]:
    from heterps_compile.offers.catalogue import read_catalogue  # noqa: PLC0415 - pydantic

    return sorted({getattr(offer, what) for offer in read_catalogue().offers})


NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "cluster": _pools,
    "method": _methods,
    "methods": _methods,
    "backend": _backends,
    "passes": _passes,
    "print_after": _passes,
    "schedule": _schedules,
    "fail_on": _criteria,
    "gpu": _gpus,
    "region": partial(_offered, "region"),
    "provider": partial(_offered, "provider"),
}
"""What lists the names that a parameter takes, by the parameter's name."""

_FILES = ("FILE", "PLAN", "MODEL", "OLD", "NEW", "WORKLOAD", "FOLDER")  # words of metavars that take a path


class Word(click.types.StringParamType):
    """Any text, whose completions are names, files or folders."""

    def __init__(self, names: Callable[[], Iterable[str]] | None, paths: str) -> None:
        self._names, self._paths = names, paths

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the word for paths, which shells fall back on, and then the names that begin so."""
        del ctx, param
        known = self._names() if self._names is not None else ()
        items = [CompletionItem(name) for name in known if name.startswith(incomplete)]
        return [CompletionItem(incomplete, type=self._paths), *items] if self._paths else items


def make_completable(command: click.Command) -> None:
    """Let every parameter of a command, and of the commands below it, complete what it takes."""
    for param in command.params:
        metavar = param.metavar or ""
        names = NAMES.get(param.name or "")
        paths = "dir" if metavar == "DIR" else "file" if any(word in metavar for word in _FILES) else ""
        if param.type is click.STRING and (names or paths):
            param.type = Word(names, paths)
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        make_completable(inner)


@click.command("completion")
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, names of pools and methods, and files on the Tab key.

    SHELL is bash (4.4 or newer), zsh or fish. Put the script where the shell looks for such scripts, or evaluate it
    when the shell starts.

    \b
    Examples:
      eval "$(heterps-compile completion bash)"
      heterps-compile completion bash > \\
          ~/.local/share/bash-completion/completions/heterps-compile
      heterps-compile completion zsh > "${fpath[1]}/_heterps-compile"
      heterps-compile completion fish > \\
          ~/.config/fish/completions/heterps-compile.fish
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    click.echo(completion_script(shell, click.get_current_context().find_root().command))


def completion_script(shell: str, command: click.Command) -> str:
    """Return the script for a shell; what click would first ask an installed bash is left out."""
    found: type[ShellComplete] | None = get_completion_class(shell)
    assert found is not None  # noqa: S101 - SHELLS are click's own; this tells the type checker
    made = found(command, {}, PROGRAM, VARIABLE)
    return (made.source_template % made.source_vars()).strip()
