"""``heterps-compile launch DIR --hosts FILE``: print what is to be typed on every machine of a run.

Left out: the file of hosts and the lines (``runtime/launch/hosts.py``).
"""

import os
from typing import Any

import click

from heterps_compile.runtime.launch.run_options import RUN

from . import options
from .output import printing, result_stream
from .run import make_run_options

_PATHS = frozenset({
    "train", "data", "weights", "checkpoint", "server_directory", "trace", "log", "telemetry", "tensorboard", "output"
})  # fmt: skip


@click.command("launch")
@click.argument("directory", metavar="DIR")
@click.option("--hosts", metavar="FILE.toml", required=True, help="Machines: address, slots, and if need be speed.")
@click.option("--no-check", is_flag=True, help="Do not look the machines up from here.")
@options.takes(RUN)
@click.pass_context
def launch(ctx: click.Context, /, directory: str, hosts: str, no_check: bool, **_: Any) -> None:
    """Print the torchrun line of every machine that runs a compiled folder; the options are those of run.

    \b
    A file of hosts:
      port = 29500
      [[host]]
      address = "10.0.0.1"
      slots = 2
      [[host]]
      address = "worker-2"
      slots = 1
      speed = 2.0

    DIR is the compiled folder. It, the data and the checkpoints must be found under the same paths on every machine.

    \b
    Examples:
      heterps-compile launch model.heterps --hosts hosts.toml
      heterps-compile launch model.heterps --hosts hosts.toml --train train.py --data clicks.parquet
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a backspace
    from heterps_compile.runtime.launch.hosts import (  # noqa: PLC0415 - only when it runs
        check_hosts,
        launch_lines,
        look_up_hosts,
        ranks_of_hosts,
        read_hosts,
    )
    from heterps_compile.runtime.launch.prepare import prepare  # noqa: PLC0415

    made = make_run_options(ctx, directory)
    known = read_hosts(hosts)
    prepared = prepare(made)
    check_hosts(known, prepared)
    if not no_check:
        look_up_hosts(known)
    lines = launch_lines(known, prepared, [made.directory, *_given_words(ctx)])
    with result_stream() as stream, printing("the lines"):
        for (address, line), ranks in zip(lines, ranks_of_hosts(known), strict=True):
            what = "; ".join(str(prepared.places[rank]) for rank in ranks)
            stream.write(f"# {address}: {what}\n{line}\n")
        stream.flush()


def _given_words(ctx: click.Context) -> list[str]:
    """Give the options that were given, as they are to be written again."""
    words: list[str] = []
    for param in ctx.command.params:
        name = param.name or ""
        if name in ("directory", "hosts", "no_check") or not isinstance(param, click.Option):
            continue
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        words += [param.opts[-1]] if param.is_flag else [param.opts[-1], _as_written(name, ctx.params[name])]
    return words


def _as_written(name: str, value: Any) -> str:
    from heterps_compile.runtime.data.open import is_random  # noqa: PLC0415 - torch only when it runs

    if name in _PATHS and not (name == "data" and is_random(value)):
        return os.path.abspath(str(value))  # the lines are typed wherever a shell happens to be
    if name == "server_memory":
        return f"{value} B"
    if name == "speeds":
        return ";".join(",".join(f"{speed:g}" for speed in part) for part in value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
