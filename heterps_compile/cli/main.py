"""The command ``heterps-compile``: which sub-command runs, and how every run ends.

Exit codes: 0 done; 1 an error that the user can mend, told in one line on stderr; 2 wrong usage; 130 Ctrl-C. Anything
else that goes wrong is a bug of ours and shows its traceback.

Only click is imported here and by the sub-commands' modules; what they need they import when they run, so that
``--help`` is quick.

Left out: what the sub-commands do (one file each).
"""

import sys
import traceback
from collections.abc import Sequence

import click

from heterps_compile import __version__
from heterps_compile.errors import HeterpsError
from heterps_compile.escape import one_line, printable

from .bench import bench
from .check import check
from .clusters import clusters
from .compile import compile_model
from .diff import diff
from .explain import explain
from .ops import ops
from .show import show
from .simulate import simulate

_PROGRAM = "heterps-compile"
_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class CompileByDefault(click.Group):
    """A group whose command ``compile`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the word ``compile`` in front of what names no command."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names, "--version"}:
            args = ["compile", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show both forms."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] MODEL.onnx")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options of ``compile``, which may be given here, and the commands."""
        params = (*self.commands["compile"].params, *self.get_params(ctx))
        options = [param for param in params if isinstance(param, click.Option)]
        with formatter.section("Options"):
            formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])
        self.format_commands(ctx, formatter)


@click.group(
    cls=CompileByDefault,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 an error told on stderr, 2 wrong usage, 130 interrupted.",
)
@click.version_option(__version__, prog_name=_PROGRAM, message="%(prog)s %(version)s")
def command() -> None:
    """Cut a neural network into stages, give each the hardware it suits at the lowest price, write stages that run.

    \b
    Examples:
      heterps-compile model.onnx
      heterps-compile model.onnx -o out --min-throughput 20000
      heterps-compile model.onnx --cluster my-pool.toml --pin embedding=cpu-core
      heterps-compile model.onnx --json | jq .price_usd_per_hour
      heterps-compile clusters show heterps-paper

    The word "compile" may be left out: MODEL.onnx alone compiles.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace


command.add_command(compile_model)
command.add_command(clusters)
command.add_command(bench)
command.add_command(ops)
command.add_command(diff)
command.add_command(check)
command.add_command(show)
command.add_command(explain)
command.add_command(simulate)


def run(arguments: Sequence[str]) -> int:
    """Run the command and give its exit code."""
    try:
        code = command.main(args=list(arguments), prog_name=_PROGRAM, standalone_mode=False)
    except click.Abort:  # click's word for Ctrl-C and the end of input
        click.echo("Interrupted.", err=True)
        return _INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except HeterpsError as error:
        click.echo(f"Error: {one_line(str(error))}", err=True)
        return 1
    except Exception:  # noqa: BLE001 - the outermost frame; shown in full, not swallowed
        for line in traceback.format_exc().splitlines():
            click.echo(printable(line), err=True)
        click.echo(
            f"This is a bug in {_PROGRAM} {__version__}. Please report it with the lines above and, "
            "if you may share it, the model.",
            err=True,
        )
        return 1
    return code if isinstance(code, int) else 0


def main() -> None:
    """Run the command on this process's arguments."""
    sys.exit(run(sys.argv[1:]))
