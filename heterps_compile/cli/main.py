"""The command ``heterps-compile``: which sub-command runs, and how every run ends.

Exit codes: 0 done; 1 an error that the user can mend, told in one line on stderr; 2 wrong usage; 130 Ctrl-C. Anything
else that goes wrong is a bug of ours and shows its traceback.

Only click is imported here and by the sub-commands' modules; what they need they import when they run, so that
``--help`` is quick.

Left out: what the sub-commands do (one file each).
"""

import os
import signal
import sys
import traceback
from _thread import interrupt_main
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import StringIO

import click
from click.shell_completion import CompletionItem

from heterps_compile.errors import SIGNALLED, HeterpsError
from heterps_compile.escape import one_line, printable
from heterps_compile.packages import __version__

from .advise import advise
from .bench import bench
from .calibrate import calibrate
from .check import check
from .clusters import clusters
from .compile import compile_model
from .completion import PROGRAM, VARIABLE, completion, make_completable
from .diff import diff
from .explain import explain
from .export import export
from .help_text import add_quiet, brief
from .launch import launch
from .machines import machines
from .offers import offers
from .ops import ops
from .output import tell
from .predict import predict
from .profile import profile
from .resize import resize
from .run import run as run_folder
from .show import show
from .simulate import simulate
from .sync import sync
from .tune import tune
from .update import update

_INTERRUPTED = SIGNALLED + 2  # SIGINT
_EXIT_CODES = f"Exit codes: 0 done, 1 an error told on stderr, 2 wrong usage, {_INTERRUPTED} interrupted."


class CompileByDefault(click.Group):
    """A group whose command ``compile`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the word ``compile`` in front of what names no command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names, "--version"}:
            args = ["compile", *args]
        return super().parse_args(ctx, args)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, whose words complete, and that tells the exit codes all share where it has none of its own."""
        super().add_command(cmd, name)
        add_quiet(cmd)
        make_completable(cmd)
        _tell_exit_codes(cmd)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the first word: a command, a model's file, an option of ``compile``."""
        items = super().shell_complete(ctx, incomplete)
        if incomplete.startswith("-"):
            return [*items, *self.commands["compile"].shell_complete(ctx, incomplete)]
        return [CompletionItem(incomplete, type="file"), *items]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both forms."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] MODEL.onnx")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write everyday commands with their first sentence, the others by name: one screen of 24 lines."""
        formatter.write_paragraph()
        rows = [(f"  {name}", brief(self.commands[name])) for name in EVERYDAY]
        formatter.write_dl(rows)
        formatter.write_paragraph()
        formatter.write_dl([(f"  {title}:", ", ".join(names)) for title, names in OTHERS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Name the commands that show more."""
        formatter.write_paragraph()
        formatter.write_text(f"{ctx.command_path} COMMAND --help shows the options of a command.")


EVERYDAY = ("compile", "show", "diff", "check", "update", "explain", "run")
OTHERS = {
    "Choosing": ("machines", "tune", "profile", "calibrate", "simulate", "predict"),
    "Running": ("launch", "resize", "export"),
    "Reference": ("clusters", "offers", "ops", "bench", "advise", "sync", "completion"),
}
"""Commands by what a user does with them."""


def _tell_exit_codes(cmd: click.Command) -> None:
    cmd.epilog = cmd.epilog or _EXIT_CODES
    for inner in cmd.commands.values() if isinstance(cmd, click.Group) else ():
        _tell_exit_codes(inner)


@click.group(cls=CompileByDefault, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EXIT_CODES)
@click.version_option(__version__, prog_name=PROGRAM, message="%(prog)s %(version)s")
def command() -> None:
    """Cut a neural network into stages, place each on the hardware that suits it, and write stages that run.

    MODEL.onnx without a command is compiled.
    """


command.add_command(compile_model)
command.add_command(clusters)
command.add_command(bench)
command.add_command(ops)
command.add_command(offers)
command.add_command(advise)
command.add_command(diff)
command.add_command(check)
command.add_command(update)
command.add_command(show)
command.add_command(explain)
command.add_command(simulate)
command.add_command(sync)
command.add_command(predict)
command.add_command(run_folder)
command.add_command(resize)
command.add_command(launch)
command.add_command(export)
command.add_command(calibrate)
command.add_command(machines)
command.add_command(tune)
command.add_command(profile)
command.add_command(completion)


def run(arguments: Sequence[str], interrupted: "_Interrupted | None" = None) -> int:
    """Run the command and give its exit code."""
    try:
        code = command.main(args=list(arguments), prog_name=PROGRAM, complete_var=VARIABLE, standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - the outermost frame; told in full, not swallowed
        if isinstance(error, click.Abort) or (interrupted is not None and interrupted.is_set):
            click.echo("Interrupted.", err=True)
            return _INTERRUPTED
        return _tell(error)
    return code if isinstance(code, int) else 0


def _tell(error: BaseException) -> int:
    """Tell on stderr what ended the command, and give its exit code."""
    if isinstance(error, click.ClickException):
        words = StringIO()
        error.show(file=words)
        tell(words.getvalue().rstrip("\n"))
        return error.exit_code
    if isinstance(error, ModuleNotFoundError):
        from heterps_compile.packages import not_installed  # noqa: PLC0415 - only where an import failed

        error = not_installed(error) or error
    if isinstance(error, HeterpsError):
        tell(f"Error: {one_line(str(error))}")
        return error.exit_code
    if not isinstance(error, Exception):
        raise error
    for line in traceback.format_exception(error):
        for part in line.splitlines():
            click.echo(printable(part), err=True)
    tell(
        f"This is a bug in {PROGRAM} {__version__}. Please report it with the lines above and, "
        "if you may share it, the model."
    )
    return 1


def main() -> int:
    """Run the command on this process's arguments; give its exit code, that of Ctrl-C whatever became of one."""
    interrupted = _Interrupted()
    with interrupted.heeded():
        try:
            code = run(sys.argv[1:], interrupted)
        except KeyboardInterrupt:
            code = _INTERRUPTED
    if interrupted.is_set:  # and all that had to be put right is: Python's own end might yet tell a lost exception
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(_INTERRUPTED)
    return code


class _Interrupted:
    """Whether Ctrl-C was pressed; libraries may turn its exception into another one, or lose it."""

    def __init__(self) -> None:
        self.is_set = False

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Note the signal, and raise it where it is not lost: not in a destructor, whose exceptions nobody gets."""
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            yield
            return
        hook = sys.unraisablehook

        def again(lost: "sys.UnraisableHookArgs") -> None:
            if issubclass(lost.exc_type, KeyboardInterrupt):
                interrupt_main()
            else:
                hook(lost)

        signal.signal(signal.SIGINT, self._note)
        sys.unraisablehook = again
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, lambda _number, _frame: None)  # the end is near, and has its exit code
            sys.unraisablehook = hook

    def _note(self, _number: int, _frame: object) -> None:
        self.is_set = True
        raise KeyboardInterrupt
